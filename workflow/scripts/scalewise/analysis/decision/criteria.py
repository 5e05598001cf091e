"""The user's criteria, held against each point. Pure functions of a table.

A decision rule may hold several criteria; a point must meet them all. Without any, the knee is taken:
the point of the largest speedup times efficiency (Eager, Zahorjan & Lazowska, "Speedup versus efficiency
in parallel systems", IEEE Trans. Computers 38(3), 1989; Kleinrock's power).

With a target, speedup is that of the time to reach it: throughput that more epochs eat up is no gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from scalewise.analysis.comparison.gains import Gains, Measure, Point
from scalewise.analysis.decision.sentences import SENTENCES, sentence
from scalewise.analysis.decision.walk import CRITERIA, missed
from scalewise.analysis.statistics.ratios import ROUNDING
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.formatting import Goal, format_distinct

_MAY_BE_MISSING = (
    "throughput_samples_per_second", "wall_seconds", "wall_seconds_low", "wall_seconds_high",
    "wall_seconds_next", "wall_n", "device_hours", "billed_devices", "final_accuracy",
    "final_accuracy_low", "final_accuracy_high", "n_reached", "n_failed", "n_unsuccessful", "unsuccessful",
    "n_not_comparable", "speedup_n",
    "statistical_efficiency", "time_to_accuracy_seconds", "expected_seconds_to_accuracy",
    "time_to_accuracy_baseline_devices", "time_to_accuracy_speedup", "time_to_accuracy_speedup_low",
    "time_to_accuracy_speedup_high",
)  # fmt: skip
"""Columns of scaling.csv that published or older figures do not have: NaN there."""

SUCCESSFUL_FROM = 0.75
"""Least share of a point's runs that must end with a result for it to be recommended: of jobs that end
without one more often than one in four, somebody has to look after every study."""


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


def measure_of(scaling: pd.DataFrame, target: Goal | None) -> Measure:
    """The speed that decides: to the target where there is one and a run has reached it, else throughput."""
    known = scaling.get("time_to_accuracy_speedup")
    by_target = target is not None and known is not None and known.notna().any()
    return "time to target" if by_target else "throughput"


def rated(scaling: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """The points that have a speedup, in order of devices, each with its ``gain`` over ``gain_base`` devices.

    Args:
        scaling: Output of ``scaling_table``; columns that are not needed may be missing.
        measure: Quantity that the gain is of.
    """
    points = scaling.reindex(columns=list(dict.fromkeys([*scaling.columns, *_MAY_BE_MISSING])))
    points = points[points["speedup"].notna() & points["parallel_efficiency"].notna()].copy()
    points = points.sort_values("devices", kind="stable")
    source, base = (
        ("time_to_accuracy_speedup", "time_to_accuracy_baseline_devices")
        if measure == "time to target"
        else ("speedup", "baseline_devices")
    )
    points["gain_base"] = points[base]
    for end in ("", "_low", "_high"):
        points[f"gain{end}"] = points[f"{source}{end}"].astype(float)
    return points[points["gain"].notna()].copy()


def evaluate(
    points: pd.DataFrame,
    rule: DecisionRule,
    compared: Gains,
    best: Point,
    queue_minutes: Mapping[int, float] | None = None,
    measure: Measure = "throughput",
) -> pd.DataFrame:
    """The points with what the rule says of each.

    Added columns: ``efficiency_to_best`` with its bounds, the speed over that of the best baseline,
    ``best_baseline`` on ``best_baseline_devices``, for each of these devices; ``speedup_of``, what
    ``speedup_n`` would be if all completed runs were comparable; ``cost_ratio``, device-hours for the same
    training over those of ``gain_base``; ``run_cost_ratio``, the same of whole runs; ``power``, gain x
    efficiency; ``queue_minutes``; ``done_minutes``, a bound of the next whole run and its queue;
    ``unreliable``, a clause if too many runs ended without a result, else empty; ``missed``, the criteria
    that the point does not meet; ``misses``, that clause and one for each of these.

    Args:
        points: Output of ``rated``, of series that train the same.
        rule: The criteria.
        compared: Output of ``gains``.
        best: The best configuration of the fewest devices.
        queue_minutes: Devices -> usual wait in the queue.
        measure: Quantity that the gain is of.
    """
    points, by_target = points.copy(), measure == "time to target"
    points["best_baseline"], points["best_baseline_devices"] = best
    efficiencies = pd.DataFrame(
        [_efficiency(point, compared, best, measure) for _, point in points.iterrows()], points.index
    )
    points = points.assign(**efficiencies)
    of_base = points["devices"] == points["gain_base"]

    def baseline(values: pd.Series) -> pd.Series:
        return points["series"].map(dict(zip(points.loc[of_base, "series"], values[of_base], strict=True)))

    runs = points["n_reached" if by_target else "n"].astype(float)
    fewest = pd.Series(np.fmin(runs, baseline(runs)), index=points.index)
    points["speedup_n"] = fewest if by_target else points["speedup_n"].astype(float).fillna(fewest)
    completed = points["n"] + points["n_not_comparable"].fillna(0)
    points["speedup_of"] = np.nan if by_target else np.fmin(completed, baseline(completed))
    paid = points["billed_devices"].fillna(points["devices"])
    points["cost_ratio"] = paid / baseline(paid).fillna(points["gain_base"]) / points["gain"]
    points["run_cost_ratio"] = points["device_hours"] / baseline(points["device_hours"])
    points["power"] = points["gain"] * points["efficiency_to_best"]
    waits = dict(queue_minutes or {})
    points["queue_minutes"] = [float(waits.get(int(devices), 0.0)) for devices in points["devices"]]
    # an interval is of the mean run; a deadline is for the next one
    points["longest_seconds"] = points["wall_seconds_next"].fillna(points["wall_seconds_high"])
    points["done_minutes"] = points["longest_seconds"] / 60 + points["queue_minutes"]
    points["unreliable"] = [_unreliable(point) for _, point in points.iterrows()]
    misses = missed(rule, {quantity: points[quantity] for quantity in CRITERIA.values()})
    points["missed"] = [
        [name for name, where in misses.items() if where[place]] for place in range(len(points))
    ]
    points["misses"] = [
        [
            *filter(None, [point["unreliable"]]),
            *(miss_text(name, point, rule, measure) for name in point["missed"]),
        ]
        for _, point in points.iterrows()
    ]
    return points


def _efficiency(point: pd.Series, compared: Gains, best: Point, measure: Measure) -> dict[str, float]:
    """``efficiency_to_best`` of a point with its bounds."""
    series, devices = str(point["series"]), int(point["devices"])
    own = {end: float(point[f"gain{end}"]) for end in ("", "_low", "_high")}
    if (series, float(point["gain_base"])) != best and (
        ratio := compared.of(measure, (series, devices), best)
    ):
        interval = ratio.interval()
        own = {"": interval.estimate, "_low": interval.low, "_high": interval.high}
    return {f"efficiency_to_best{end}": gain * best[1] / devices for end, gain in own.items()}


def closest(points: pd.DataFrame, rule: DecisionRule) -> pd.Series:
    """The point to name where none meets the rule: the first done, or the cheapest.

    Args:
        points: Output of ``evaluate``.
        rule: The criteria; a deadline asks for the first done, others for the cheapest.
    """
    key = "done_minutes" if rule.deadline_minutes is not None else "device_hours"
    return points.sort_values([key, "devices"]).iloc[0]


def may_be_in_time(point: pd.Series, rule: DecisionRule) -> bool:
    """Whether the mean run may keep the deadline, though the runs do not show that the next one does."""
    if rule.deadline_minutes is None:
        return False
    minutes = least_seconds(point) / 60 + point["queue_minutes"]
    latest = rule.deadline_minutes + ROUNDING
    return bool(minutes <= latest < point["done_minutes"])


def may_meet(point: pd.Series, rule: DecisionRule) -> bool:
    """Return whether a point misses criteria by its means only: each of their intervals reaches its limit.

    Args:
        point: Row of ``evaluate``.
        rule: The criteria.
    """
    reaches = {"deadline_minutes": may_be_in_time(point, rule)}
    if rule.min_efficiency is not None:
        reaches["min_efficiency"] = point["efficiency_to_best_high"] >= rule.min_efficiency - ROUNDING
    if rule.max_device_hours is not None:
        least = point["device_hours"] * least_seconds(point) / point["wall_seconds"]
        reaches["max_device_hours"] = least <= rule.max_device_hours + ROUNDING
    return (
        bool(point["missed"]) and not point["unreliable"] and all(reaches[each] for each in point["missed"])
    )


def may_miss(point: pd.Series, rule: DecisionRule) -> bool:
    """Return whether a point meets the criteria by its means only: an interval reaches beyond a limit.

    Args:
        point: A point that misses none. A deadline is judged by a bound, and needs no interval.
        rule: The criteria.
    """
    least, most = rule.min_efficiency, rule.max_device_hours
    if least is not None and point["efficiency_to_best_low"] < least - ROUNDING:
        return True
    hours = point["device_hours"] * point["wall_seconds_high"] / point["wall_seconds"]
    return bool(most is not None and hours > most + ROUNDING)


def least_seconds(point: pd.Series) -> float:
    """Return the lower end of the interval of a point's mean run; the mean if it has no interval."""
    low = point["wall_seconds_low"]
    return float(point["wall_seconds"] if pd.isna(low) else low)


def may_exceed(point: pd.Series, rule: DecisionRule) -> float | None:
    """Return the device-hours that a further run may take; None if they are allowed or unknown."""
    most = rule.max_device_hours
    if most is None or not point["wall_seconds"]:
        return None
    hours = float(point["device_hours"] * point["longest_seconds"] / point["wall_seconds"])
    return hours if hours > most + ROUNDING else None


def _unreliable(point: pd.Series) -> str:
    ended = point["n_unsuccessful"] + point["n"]
    unsuccessful = point["n_unsuccessful"] > 0 and point["n"] / ended < SUCCESSFUL_FROM
    return f"{point['unsuccessful']} of {ended:.0f} runs" if unsuccessful else ""


def miss_text(criterion: str, point: pd.Series, rule: DecisionRule, measure: Measure) -> str:
    """Return the clause on a criterion that a point misses.

    Args:
        criterion: Key of ``CRITERIA``.
        point: The point.
        rule: The criteria.
        measure: Quantity that the efficiency is of.
    """
    value, limit = float(point[CRITERIA[criterion]]), getattr(rule, criterion)
    if math.isnan(value):
        return SENTENCES[f"unknown {criterion}"]
    shown, least = format_distinct(value, limit)
    return sentence(
        f"missed {criterion}",
        value=value,
        limit=limit,
        distinct=shown,
        least=least,
        of=of_target(measure),
        queue=SENTENCES["in the queue"] if point["queue_minutes"] else "",
    )


def of_target(measure: Measure) -> str:
    """Return what a speed or an efficiency is relative to, in words: empty for throughput."""
    return SENTENCES["to the target"] if measure == "time to target" else ""
