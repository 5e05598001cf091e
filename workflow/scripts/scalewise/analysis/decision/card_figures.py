"""The figures of the answer's card: gain, efficiency, cost and accuracy of the chosen point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pandas as pd

from scalewise.analysis.accuracy import accuracy_lost
from scalewise.analysis.comparison.gains import Gains, Measure
from scalewise.analysis.decision.choice import Choice
from scalewise.analysis.decision.sentences import sentence
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    Goal,
    duration_text,
    format_3sig,
    format_ratio,
    goal_text,
    points_text,
)


@dataclass(frozen=True)
class Figure:
    """A labelled figure.

    Args:
        label: Name: ``Speed`` or ``Speed to target``, ``Efficiency`` or ``Efficiency to target``, ``Cost of a
            run`` or ``Cost of training``, ``Time of a run``, ``Time to target``, ``Final accuracy``,
            ``Throughput``.
        text: Value with its unit.
        interval: 95 % interval in the unit of ``text``, such as ``1.03 to 2.16``, or the values of two
            runs; empty if unknown.
        value: The same as a number; None if unknown.
        low: Lower end of the interval.
        high: Upper end of the interval.
        note: The point that a ratio is relative to, or what the value contains; may be empty.
    """

    label: str
    text: str
    interval: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Chosen:
    """A chosen point, and all that its card tells of it.

    Args:
        choice: The point, with the questions that are open.
        points: The judged points of its series, ascending.
        rule: The criteria.
        compared: The ratios of all pairs of points.
        target: The goal that counts as trained, if there is one.
        measure: Quantity that decided.
        whole_runs: Runs went to their end, so that their time and cost are those of a training.
        noun: ``GPU`` or ``CPU process``.
        left_out: Completed runs of the series that are not comparable with the others.
        apart: Sentence on larger device counts of which no run is comparable; empty if there is none.
        fewest: Runs of the point with the fewest, of those that the answer rests on.
    """

    choice: Choice
    points: pd.DataFrame
    rule: DecisionRule
    compared: Gains
    target: Goal | None
    measure: Measure
    whole_runs: bool
    noun: str
    left_out: int = 0
    apart: str = ""
    fewest: int = ENOUGH_REPEATS

    @property
    def best(self) -> pd.Series:
        """The chosen point."""
        return self.choice.point

    def of(self, devices: float) -> str:
        """``1 GPU``, ``4 GPUs``."""
        return count_devices(int(devices), self.noun)


def card_figures(chosen: Chosen) -> Iterator[Figure]:
    """Yield the figures that are known."""
    yield from (figure for figure in _all_figures(chosen) if figure.value is not None)


def _all_figures(chosen: Chosen) -> Iterator[Figure]:
    best, target = chosen.best, chosen.target
    to_target = chosen.measure == "time to target" and target is not None
    base = chosen.of(best["gain_base"])
    own = best["devices"] == best["gain_base"]
    timed = chosen.rule.deadline_minutes is not None or chosen.rule.max_device_hours is not None
    of = " to target" if to_target else ""
    if timed:
        known = not math.isnan(best["done_minutes"])
        longest = f"up to {format_3sig(best['done_minutes'])} min{queue_text(best)}" if known else ""
        n = best["n"] if math.isnan(best["wall_n"]) else best["wall_n"]
        yield _of_column(chosen, "wall_seconds", "Time of a run", " min", 1 / 60, n, longest)
    elif not own:
        bounds = known_bounds(best["gain_low"], best["gain_high"], best["speedup_n"])
        note = f"as fast as {base}"
        if chosen.whole_runs and not math.isnan(whole := _whole_run_gain(chosen)):
            note += f"; a whole run: {format_ratio(whole)}x"
        yield _figure(f"Speed{of}", best["gain"], bounds, format_ratio, "x", note=note)
    else:
        yield _of_column(chosen, "throughput_samples_per_second", "Throughput", " samples/s", 1, best["n"])
    bounds = known_bounds(best["efficiency_to_best_low"], best["efficiency_to_best_high"], best["speedup_n"])
    relative = "1 is ideal"
    if (best["best_baseline"], best["best_baseline_devices"]) != (best["series"], best["gain_base"]):
        relative = f"relative to {best['best_baseline']}, the best baseline"
    if not own or relative != "1 is ideal":
        yield _figure(f"Efficiency{of}", best["efficiency_to_best"], bounds, _two_places, note=relative)
    yield _cost(chosen, base)
    if to_target:
        assert target is not None
        note = goal_text(target)
        if best["n_reached"] < best["n"]:
            note += f", reached by {best['n_reached']:.0f} of {best['n']:.0f} runs"
        seconds = best["expected_seconds_to_accuracy"]
        yield _figure("Time to target", seconds, (None, None), format_3sig, " s", note=note)
    elif not math.isnan(best["final_accuracy"]):
        accuracy, low, high = (100 * float(best[f"final_accuracy{end}"]) for end in ("", "_low", "_high"))
        first = chosen.points[chosen.points["devices"] == best["baseline_devices"]]
        lost = accuracy_lost(best, first.iloc[0]) if len(first) else 0.0
        note = f"{points_text(lost)} lower than on {chosen.of(best['baseline_devices'])}" if lost else ""
        bounds = known_bounds(low, high, best["n"])
        form = "{:.1f}".format
        found = _figure("Final accuracy", accuracy, bounds, form, " %", note=note)
        yield replace(found, interval=found.interval or _two_values(chosen, "final_accuracy", 100, form))
    elif not own or timed:
        yield _of_column(chosen, "throughput_samples_per_second", "Throughput", " samples/s", 1, best["n"])


def _cost(chosen: Chosen, base: str) -> Figure:
    """Return the cost of a whole run; relative to the baseline's if the runs were ended early."""
    best = chosen.best
    own = best["devices"] == best["gain_base"]
    if not chosen.whole_runs or math.isnan(best["device_hours"]):
        ratio = math.nan if own else best["cost_ratio"]
        return _figure("Cost of training", ratio, (None, None), format_ratio, "x", note=f"that on {base}")
    hours = float(best["device_hours"])
    per_second = hours / best["wall_seconds"] if best["wall_seconds"] else math.nan
    low, high = (best[f"wall_seconds_{end}"] * per_second for end in ("low", "high"))
    bounds = known_bounds(low, high, best["n"])
    note = "start-up and evaluation included"
    if per_second > 0:
        note = f"{chosen.of(round(3600 * per_second))} for {duration_text(best['wall_seconds'])}, {note}"
    if not own and not math.isnan(best["run_cost_ratio"]):
        note += f"; {format_ratio(best['run_cost_ratio'])}x that on {base}"
    return _figure("Cost of a run", hours, bounds, format_3sig, " device-hours", note=note)


def _whole_run_gain(chosen: Chosen) -> float:
    """Return how many times faster a whole run is than on the baseline; NaN if unknown."""
    best = chosen.best
    base = chosen.points[chosen.points["devices"] == best["gain_base"]]
    return float(base["wall_seconds"].iloc[0] / best["wall_seconds"]) if len(base) else math.nan


def queue_text(point: pd.Series) -> str:
    """Return a clause on the wait in the queue; empty without one."""
    wait = point["queue_minutes"]
    return sentence("waits", wait=wait) if wait else ""


def _of_column(
    chosen: Chosen, column: str, label: str, unit: str, factor: float, n: float, note: str = ""
) -> Figure:
    """Return a figure of the chosen point from a column of the scaling table with its bounds."""
    point = chosen.best
    value, low, high = (
        float(point.get(f"{column}{end}", math.nan)) * factor for end in ("", "_low", "_high")
    )
    found = _figure(label, value, known_bounds(low, high, n), format_3sig, unit, note)
    return replace(found, interval=found.interval or _two_values(chosen, column, factor, format_3sig))


def _two_values(chosen: Chosen, column: str, factor: float, form: Callable[[float], str]) -> str:
    """Return ``2 runs: 2,100 and 3,150``; empty of another number of runs."""
    runs = chosen.compared.points.get((str(chosen.best["series"]), int(chosen.best["devices"])))
    if runs is None or column not in runs:
        return ""
    values = sorted(factor * float(value) for value in runs[column].dropna())
    return f"2 runs: {' and '.join(map(form, values))}" if len(values) == 2 else ""


def _figure(
    label: str,
    value: float,
    bounds: tuple[float | None, float | None],
    form: Callable[[float], str],
    unit: str = "",
    note: str = "",
) -> Figure:
    known = None if math.isnan(value) else float(value)
    low, high = bounds
    same = low is not None and high is not None and form(low) == form(high)
    return Figure(
        label, f"{form(value)}{unit}", "" if same else range_text(low, high, form), known, low, high, note
    )


def known_bounds(low: float, high: float, n: float) -> tuple[float | None, float | None]:
    """Return the ends of an interval; None for those of too few runs."""
    if n < ENOUGH_REPEATS or math.isnan(low) or math.isnan(high):
        return None, None
    return float(low), float(high)


def range_text(low: float | None, high: float | None, form: Callable[[float], str]) -> str:
    """Return ``1.03 to 2.16``; empty if the ends are unknown."""
    if low is None or high is None or math.isnan(low):
        return ""
    return f"{form(low)} to {form(high)}"


_two_places = "{:.2f}".format
