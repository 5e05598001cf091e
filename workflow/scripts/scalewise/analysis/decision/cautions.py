"""Cautions: a sentence for each weakness of a decision, with its cure."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from scalewise.analysis.decision.criteria import accuracy_lost
from scalewise.analysis.formatting import format_3sig, format_distinct, format_exact, format_ratio
from scalewise.analysis.scaling import OF_WALLS
from scalewise.analysis.statistics.significance import ENOUGH_REPEATS
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.config.shape import count_devices

SIGNIFICANCE = 0.05
"""Largest p value at which a point counts as shown to be faster."""

CLEARLY_ABOVE = 1.1
"""Efficiency from which on even single runs, which have no interval, are not taken for noise."""


def of_choice(best: pd.Series, points: pd.DataFrame, rule: DecisionRule) -> Iterator[str]:
    """Sentences on what is uncertain about the chosen point.

    Args:
        best: The chosen point.
        points: The judged points of its series.
        rule: The criteria.
    """
    if best["devices"] > best["baseline_devices"]:
        yield from _not_shown_faster(best)
        least, low = rule.min_efficiency, float(best["parallel_efficiency_low"])
        if least is not None and low < least:
            shown, limit = format_distinct(low, least)
            yield (
                f"The efficiency of {best['parallel_efficiency']:.2f} is not clear of the {limit} asked for: "
                f"its interval reaches down to {shown}."
            )
        slower = best["time_to_accuracy_speedup_high"]
        if slower < 1:
            yield (
                f"{count_devices(int(best['devices']))} reach the target later than "
                f"{int(best['baseline_devices'])}: the samples they need more outweigh their throughput "
                f"({format_ratio(best['time_to_accuracy_speedup'])}x as fast to the target)."
            )
    yield from _missed_by_a_hair(best, points, rule.min_efficiency)
    most = rule.max_device_hours
    at_most = best["device_hours"] * best["longest_seconds"] / best["wall_seconds"]
    if most is not None and at_most > most:
        yield (
            f"A run may take up to {format_3sig(at_most)} device-hours, more than the {format_exact(most)} "
            "asked for."
        )
    if rule == DecisionRule():
        yield from _unclear_knee(best, points)


def _missed_by_a_hair(best: pd.Series, points: pd.DataFrame, least: float | None) -> Iterator[str]:
    """More devices that may well be efficient enough."""
    more = points[(points["devices"] > best["devices"]) & (points["outrun_by"] == 0)]
    if least is None or more.empty:
        return
    following = more.iloc[0]
    efficiency, high = following["parallel_efficiency"], following["parallel_efficiency_high"]
    if efficiency < least <= high:
        shown, limit = format_distinct(float(high), least)
        yield (
            f"That {count_devices(int(following['devices']))} miss the efficiency of {limit} is not certain: "
            f"the interval of theirs reaches up to {shown}."
        )


def of_points(points: pd.DataFrame, planned: pd.DataFrame, target: float | None) -> Iterator[str]:
    """Sentences on the weaknesses of the points of the series.

    Args:
        points: Those with a speedup, as ``criteria.judge`` makes it.
        planned: All of the series in the scaling table.
        target: Test accuracy to reach, if any.
    """
    base_devices = int(points["baseline_devices"].iloc[0])
    if base_devices > 1:
        yield f"Speedups are relative to {base_devices} devices, not to 1."
    notes = planned["note"].fillna("")
    if notes.str.contains(OF_WALLS, regex=False).any():
        yield f"Speedups are {OF_WALLS}."
    fewest = int(points["speedup_n"].min())
    if fewest < ENOUGH_REPEATS:
        runs = "1 completed run" if fewest == 1 else f"{fewest} completed runs"
        yield f"Some points rest on {runs}; use {ENOUGH_REPEATS} or more repeats."
    yield from filter(None, (superlinear_warning(point) for _, point in points.iterrows()))
    yield from _less_accurate(points)
    for note in notes[planned.get("n_not_comparable", pd.Series(0, index=planned.index)) > 0]:
        yield f"{note[0].upper()}{note[1:]}."
    yield from _without_result(planned, target)


def _not_shown_faster(best: pd.Series) -> Iterator[str]:
    devices, p = count_devices(int(best["devices"])), best["faster_p"]
    cure = "Use more repeats, or a machine that is not busy."
    if p > SIGNIFICANCE:
        yield (
            f"{devices} have not been shown to be faster than {int(best['faster_than'])}: p = {p:.2f} "
            f"(n = {int(best['speedup_n'])}). {cure}"
        )
    elif best["speedup_low"] <= 1:
        yield (
            f"{devices} have not been shown to be faster: the interval of the speedup reaches down to "
            f"{best['speedup_low']:.2f}. {cure}"
        )


def _unclear_knee(best: pd.Series, points: pd.DataFrame) -> Iterator[str]:
    """Points whose speedup x efficiency may be as large as the knee's, by the bounds of the speedups."""
    worst = best["speedup_low"] * best["parallel_efficiency_low"]
    others = points[(points["devices"] != best["devices"]) & (points["outrun_by"] == 0)]
    rivals = others[others["speedup_high"] * others["parallel_efficiency_high"] > worst]
    if len(rivals):
        counts = " or ".join(str(int(devices)) for devices in rivals["devices"])
        yield (
            f"The knee may as well be at {counts}: the intervals of speedup x efficiency overlap. Give "
            "`decision` a criterion, or use more repeats."
        )


def superlinear_warning(point: pd.Series) -> str:
    """Likely causes and checks where an efficiency lies above 1 beyond its interval; empty elsewhere.

    Args:
        point: A row of a scaling table.
    """
    low = point["parallel_efficiency_low"]
    joined = point.get("speedup_n", point["n"] - point.get("n_not_comparable", 0))
    if pd.isna(low) or low <= (1 if joined > 1 else CLEARLY_ABOVE):
        return ""
    beyond = (
        "above 1 beyond its interval" if joined > 1 else "above 1, from single runs, which have no interval"
    )
    base = count_devices(int(point["baseline_devices"]))
    return (
        f"{count_devices(int(point['devices']))} show an efficiency of {point['parallel_efficiency']:.2f}, "
        f"{beyond}. That is an error until it is explained. Likely: the baseline was slow "
        f"or disturbed (compare throttled, other_jobs and drift of its runs in runs.csv, and run {base} "
        "again alone); cache effects (under strong scaling each device works on less data, which may fit its "
        f"caches: repeat with scaling: weak); or {base} had less of something else than devices, such as "
        "CPUs for its loader or memory (compare loader_seconds)."
    )


def _less_accurate(points: pd.DataFrame) -> Iterator[str]:
    base = points[points["devices"] == points["baseline_devices"]]
    if base.empty:
        return
    first = base.iloc[0]
    for _, point in points.iterrows():
        if lost := accuracy_lost(point, first):
            yield (
                f"Accuracy falls with devices: {format_ratio(point['speedup'])}x the throughput on "
                f"{int(point['devices'])}, but {lost:.1f} points of accuracy lost "
                f"({point['final_accuracy']:.1%}, on {int(first['devices'])} {first['final_accuracy']:.1%})."
            )


def _without_result(planned: pd.DataFrame, target: float | None) -> Iterator[str]:
    for _, point in planned.iterrows():
        where = count_devices(int(point["devices"]))
        if int(point["n_failed"]):
            total = int(point["n_failed"] + point["n"])
            yield f"{int(point['n_failed'])} of {total} runs on {where} have no result."
    for _, point in planned.iterrows():
        where = count_devices(int(point["devices"]))
        if target is not None and point["n_reached"] < point["n"]:
            some = f"{int(point['n_reached'])} of {int(point['n'])} runs"
            yield f"{some} on {where} reached {target:.1%} accuracy."
