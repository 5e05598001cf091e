"""The device counts that meet the user's criteria, and the best of them. Pure functions of a table.

A decision rule may hold several criteria; a point must meet them all. Without any, the knee is taken:
the point of the largest speedup times efficiency (Eager, Zahorjan & Lazowska, "Speedup versus efficiency
in parallel systems", IEEE Trans. Computers 38(3), 1989; Kleinrock's power). Whatever the rule, a point
that is not faster than fewer devices of its series is not recommended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from scalewise.analysis.comparison.comparability import CLEAR_ACCURACY_LOSS
from scalewise.analysis.formatting import format_3sig, format_distinct, format_exact
from scalewise.analysis.statistics.significance import ENOUGH_REPEATS
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.config.shape import count_devices

_MAY_BE_MISSING = (
    "throughput_samples_per_second", "wall_seconds", "wall_seconds_low", "wall_seconds_high",
    "wall_seconds_most",
    "device_hours", "billed_devices", "final_accuracy", "final_accuracy_low", "final_accuracy_high",
    "n_reached", "n_not_comparable", "speedup_confidence", "faster_than", "faster_p",
    "statistical_efficiency", "time_to_accuracy_seconds", "time_to_accuracy_speedup",
    "time_to_accuracy_speedup_low", "time_to_accuracy_speedup_high",
)  # fmt: skip
"""Columns of scaling.csv that published or older figures do not have: NaN there."""

ROUNDING = 1e-9
"""Tolerance of a limit: 2.4 / 3 meets 0.8."""


def as_billed(scaling: pd.DataFrame, billed: Mapping[int, float]) -> pd.DataFrame:
    """The table with the device-hours that are paid, and ``billed_devices``.

    Args:
        scaling: Output of ``scaling_table``, with device-hours of the devices that were used.
        billed: Devices -> devices that are paid, where a site gives whole nodes; others pay their own.
    """
    paid = scaling["devices"].map(lambda devices: billed.get(int(devices), int(devices)))
    return scaling.assign(
        billed_devices=paid, device_hours=scaling["device_hours"] * paid / scaling["devices"]
    )


def evaluate(
    scaling: pd.DataFrame, rule: DecisionRule, queue_minutes: Mapping[int, float] | None = None
) -> pd.DataFrame:
    """The points that have a speedup, with what the rule says of each.

    Added columns: ``speedup_n``, repeats that the speedup rests on; ``cost_ratio``, device-hours for the
    same samples over the baseline's; ``power``, speedup x efficiency; ``queue_minutes``; ``done_minutes``,
    the slowest of the whole runs and its queue; ``outrun_by``, fewer devices that are at least as fast, 0
    for none; ``misses``, a clause for each criterion that the point does not meet.

    Args:
        scaling: Output of ``scaling_table``; columns that are not needed may be missing.
        rule: The criteria; without any, only points that fewer devices outrun miss something.
        queue_minutes: Devices -> usual wait in the queue.
    """
    points = scaling.reindex(columns=list(dict.fromkeys([*scaling.columns, *_MAY_BE_MISSING])))
    points = points[points["speedup"].notna() & points["parallel_efficiency"].notna()].copy()
    points = points.sort_values("devices", kind="stable")
    compared = points["n"] - points["n_not_comparable"].fillna(0)
    paid = points["billed_devices"].fillna(points["devices"])
    of_base = points["devices"] == points["baseline_devices"]

    def baseline(values: pd.Series) -> pd.Series:
        return points["series"].map(dict(zip(points.loc[of_base, "series"], values[of_base], strict=True)))

    points["speedup_n"] = np.fmin(compared, baseline(compared))
    points["cost_ratio"] = paid / baseline(paid).fillna(points["baseline_devices"]) / points["speedup"]
    points["power"] = points["speedup"] * points["parallel_efficiency"]
    waits = dict(queue_minutes or {})
    points["queue_minutes"] = [float(waits.get(int(devices), 0.0)) for devices in points["devices"]]
    # an interval is of the median run; what a next run may take is told by the slowest so far
    points["longest_seconds"] = points["wall_seconds_most"].fillna(points["wall_seconds_high"])
    points["done_minutes"] = points["longest_seconds"] / 60 + points["queue_minutes"]
    points["outrun_by"] = [_slower_than(point, points) for _, point in points.iterrows()]
    points["misses"] = [list(_violations(point, rule)) for _, point in points.iterrows()]
    return points


def candidates(points: pd.DataFrame, rule: DecisionRule) -> pd.DataFrame:
    """The point of each series that the rule prefers among those that miss nothing, if any.

    With a deadline, the fewest devices, and then only series that need no more than another; with
    device-hours, the shortest run; with an efficiency, the most devices; else the knee. Where two are
    equal, the one of fewer devices.

    Args:
        points: Output of ``evaluate``.
        rule: The criteria; without any, the knee is preferred.
    """
    met = points.loc[[not misses for misses in points["misses"]]]
    if rule.deadline_minutes is not None:
        met = met[met["devices"] == met["devices"].min()]
    elif rule.max_device_hours is not None:
        met = met.sort_values(["wall_seconds", "devices"])
    elif rule.min_efficiency is not None:
        met = met.sort_values("devices", ascending=False, kind="stable")
    else:
        met = met.sort_values("power", ascending=False, kind="stable")
    return met.groupby("series", sort=False).head(1)


def closest(points: pd.DataFrame, rule: DecisionRule) -> pd.Series:
    """The point to name where none meets the rule: the first done, or the cheapest.

    Args:
        points: Output of ``evaluate``.
        rule: The criteria; a deadline asks for the first done, others for the cheapest.
    """
    key = "done_minutes" if rule.deadline_minutes is not None else "device_hours"
    return points[points["outrun_by"] == 0].sort_values([key, "devices"]).iloc[0]


def accuracy_lost(point: pd.Series, base: pd.Series) -> float:
    """Accuracy in percentage points that is lost beyond doubt against the baseline; 0 for none.

    Where there are too few runs for an interval that means something, they must differ by what a draw of test
    images cannot explain.
    """
    doubt = 0.0 if min(point["n"], base["n"]) >= ENOUGH_REPEATS else CLEAR_ACCURACY_LOSS
    if base["final_accuracy_low"] - point["final_accuracy_high"] > doubt:
        return 100 * float(base["final_accuracy"] - point["final_accuracy"])
    return 0.0


def _slower_than(point: pd.Series, points: pd.DataFrame) -> int:
    fewer = points[(points["series"] == point["series"]) & (points["devices"] < point["devices"])]
    faster = fewer[fewer["speedup"] >= point["speedup"]]
    return int(faster.sort_values("speedup").iloc[-1]["devices"]) if len(faster) else 0


def _violations(point: pd.Series, rule: DecisionRule) -> Iterator[str]:
    if point["outrun_by"]:
        yield f"no gain over {count_devices(int(point['outrun_by']))}"
    least, efficiency = rule.min_efficiency, float(point["parallel_efficiency"])
    if least is not None and not efficiency >= least - ROUNDING:
        shown, limit = format_distinct(efficiency, least)
        yield f"efficiency {shown}, below the {limit} asked for"
    deadline, done = rule.deadline_minutes, float(point["done_minutes"])
    if deadline is not None and np.isnan(done):
        yield "a run of unknown length"
    elif deadline is not None and done > deadline + ROUNDING:
        queue = " in the queue and running" if point["queue_minutes"] else ""
        yield (
            f"up to {format_3sig(done)} minutes{queue}, {format_3sig(done - deadline)} more than the "
            f"{format_exact(deadline)} asked for"
        )
    most, hours = rule.max_device_hours, float(point["device_hours"])
    if most is not None and np.isnan(hours):
        yield "unknown device-hours"
    elif most is not None and hours > most + ROUNDING:
        yield (
            f"{format_3sig(hours)} device-hours, {format_3sig(hours - most)} more than the "
            f"{format_exact(most)} asked for"
        )
