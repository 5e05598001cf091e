"""The ratios of points' speeds, by throughput, by the time to a target and by the total time of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import pandas as pd

from scalewise.analysis.comparison.confounding import has_trend, take_turns
from scalewise.analysis.statistics.intervals import (
    CONFIDENCE,
    ENOUGH_REPEATS,
    Interval,
    difference_of,
    mean_interval,
    t_quantile,
)
from scalewise.analysis.statistics.ratios import Ratio, holm, paired_ratio, ratio_of

SIGNIFICANCE = (1 - CONFIDENCE) / 2
"""Largest one-sided p value at which something counts as shown: 95 % intervals have as much on each side."""

Measure = Literal["throughput", "time to target", "total time"]

Point = tuple[str, int]
"""Series and devices."""

Rates = Callable[[pd.DataFrame], pd.Series]
"""Gives the speed of each run, higher is faster; runs for which it is not known are left out."""

COLUMNS = [
    "measure", "series", "devices", "than_series", "than_devices", "n", "ratio", "ratio_low", "ratio_high",
]  # fmt: skip


class Pair(NamedTuple):
    """Two points and what they are compared by: ``point`` is expected to be the faster one."""

    measure: Measure
    point: Point
    than: Point


@dataclass(frozen=True)
class Gains:
    """The ratios of points' speeds, each computed at its first use.

    Args:
        points: Completed, comparable runs of each point.
        trends: Whether the speed of a series drifts with time, by its name.
    """

    points: Mapping[Point, pd.DataFrame]
    trends: Mapping[str, bool]
    _known: dict[Pair, Ratio | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def on_slurm(self) -> bool:
        """Whether runs were jobs of Slurm."""
        return any(runs.get("slurm_job_id", pd.Series()).notna().any() for runs in self.points.values())

    def of(self, measure: Measure, point: Point, than: Point) -> Ratio | None:
        """The ratio of a pair; None where one of them has no rate, and of a point over itself."""
        pair = Pair(measure, point, than)
        if pair not in self._known:
            self._known[pair] = self._ratio(pair)
        return self._known[pair]

    def _ratio(self, pair: Pair) -> Ratio | None:
        if pair.point == pair.than or not {pair.point, pair.than} <= self.points.keys():
            return None
        above, below = self.points[pair.point], self.points[pair.than]
        if pair.measure == "time to target":
            reached = has_reached(above).any() and has_reached(below).any()
            return target_contrast(above, below) if reached else None
        rates = speeds if pair.measure == "throughput" else _speeds_of_whole_runs
        drifts = self.trends[pair.point[0]] or self.trends[pair.than[0]]
        return contrast(above, below, rates, blocked=drifts)

    def listed(self) -> Iterator[tuple[Pair, Ratio]]:
        """The ratios of gains.csv, of all pairs of points that a decision may have to tell apart.

        Within a series every device count over every smaller one; between series every point over those of
        equal devices that come before it.
        """
        measures: tuple[Measure, ...] = ("throughput", "time to target")
        for point, than in _pairs(self.points):
            for measure in measures:
                if (ratio := self.of(measure, point, than)) is not None:
                    yield Pair(measure, point, than), ratio

    def table(self) -> pd.DataFrame:
        """Return the contents of gains.csv."""
        rows = [
            (pair.measure, *pair.point, *pair.than, ratio.n, *_bounds(ratio)) for pair, ratio in self.listed()
        ]
        return pd.DataFrame(rows, columns=COLUMNS)


def gains(runs: pd.DataFrame) -> Gains:
    """The gains of a study.

    Args:
        runs: Output of ``leave_out``: completed runs are comparable.
    """
    done = runs[runs["outcome"] == "completed"]
    points = {
        (str(point["series"].iloc[0]), int(point["devices"].iloc[0])): point
        for _, point in done.groupby(["series", "devices"], sort=False)
    }
    trends = {str(series): has_trend(table) for series, table in done.groupby("series", sort=False)}
    return Gains(points, trends)


def shown_faster(
    compared: Gains, measure: Measure, series: Sequence[str], first: str, devices: int
) -> set[str]:
    """Return the series that are shown to be faster than the first one on as many devices.

    Of many that are all alike the fastest looks faster than it is, so the p values are adjusted for their
    number (Holm). Too few runs of one show nothing.

    Args:
        compared: Output of ``gains``.
        measure: Quantity that is compared.
        series: Series that are compared with the first one.
        first: Name of the first one.
        devices: Devices of each.
    """
    rivals = [name for name in series if name != first]
    found = [compared.of(measure, (name, devices), (first, devices)) for name in rivals]
    p_values = [math.nan if ratio is None or ratio.n < ENOUGH_REPEATS else ratio.p_above() for ratio in found]
    return {name for name, p in zip(rivals, holm(p_values), strict=True) if p <= SIGNIFICANCE}


def accuracy_difference(compared: Gains, point: Point, than: Point) -> Interval | None:
    """Return the final accuracy of a point less that of another, with its 95 % interval by Welch's t.

    Args:
        compared: Output of ``gains``.
        point: Point whose runs are looked at.
        than: Point that it is compared with.

    Returns:
        A difference of fractions; None with fewer than three runs of one that know their accuracy.
    """
    if not {point, than} <= compared.points.keys():
        return None
    sides = [
        compared.points[each]["final_accuracy"].astype(float).dropna().tolist() for each in (point, than)
    ]
    if min(map(len, sides)) < ENOUGH_REPEATS:
        return None
    return difference_of(mean_interval(sides[0]), mean_interval(sides[1]))


def _pairs(points: Iterable[Point]) -> Iterator[tuple[Point, Point]]:
    known = list(points)
    order = {series: rank for rank, series in enumerate(dict.fromkeys(series for series, _ in known))}
    for point in known:
        for than in known:
            fewer = point[0] == than[0] and than[1] < point[1]
            earlier = point[1] == than[1] and order[than[0]] < order[point[0]]
            if fewer or earlier:
                yield point, than


def speeds(runs: pd.DataFrame) -> pd.Series:
    """Throughput of each run, or the inverse of its wall where no run's throughput is known."""
    rates = runs["throughput_samples_per_second"].astype(float).dropna()
    return _speeds_of_whole_runs(runs) if rates.empty and "wall_seconds" in runs else rates


def _speeds_of_whole_runs(runs: pd.DataFrame) -> pd.Series:
    return 1 / runs["wall_seconds"].astype(float).dropna()


def contrast(point: pd.DataFrame, than: pd.DataFrame, rates: Rates, *, blocked: bool = False) -> Ratio | None:
    """The ratio of two points' rates, of runs that were made side by side.

    Where both points have runs of the same sessions, those alone are compared: a count that was added on
    another day is held against the runs that the baseline has of that day. Where speed drifts with time,
    each run is compared with the other point's run of its own block, if the repeats took turns.

    Args:
        point: Completed, comparable runs of one device count.
        than: Those of another.
        rates: Gives the speed of each run.
        blocked: Compare within blocks.

    Returns:
        The ratio; None where one side has no rate.
    """
    above, below = _side_by_side(point, than)
    if blocked:
        keys = [column for column in ("session", "repeat") if column in above and column in below]
        sides = [side.assign(_rate=rates(side))[[*keys, "_rate"]].dropna() for side in (above, below)]
        joined = sides[0].merge(sides[1], on=keys)
        in_turn = take_turns(pd.concat([above, below]))
        ratio = paired_ratio(zip(joined["_rate_x"], joined["_rate_y"], strict=True))
        if ratio is not None and in_turn:
            return ratio
    return ratio_of(rates(above).tolist(), rates(below).tolist())


def _side_by_side(point: pd.DataFrame, than: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    if "session" not in point or "session" not in than:
        return point, than
    # where a start is not known nobody can say what it was beside
    own, others = set(point["session"].dropna()), set(than["session"].dropna())
    shared = own & others
    if not shared or own == others:
        return point, than
    return point[point["session"].isin(shared)], than[than["session"].isin(shared)]


def target_contrast(point: pd.DataFrame, than: pd.DataFrame) -> Ratio | None:
    """The ratio of two points' speed to a target, runs that never reached it counted as what they are.

    The time to reach it is what all runs took, those included that ended without it, over the number of
    those that reached it: what a user spends who starts again until one does (expected running time;
    Hansen et al., Optimization Methods and Software 36, 2021).

    Returns:
        The ratio; None where no run of one side reached the target.
    """
    ratio = contrast(point, than, _speeds_to_target)
    return None if ratio is None else ratio_of_all(ratio, than, point)


def ratio_of_all(ratio: Ratio, point: pd.DataFrame, than: pd.DataFrame) -> Ratio:
    """Return the ratio of two points' amounts until the target with the runs that never reached it.

    Args:
        ratio: Ratio of the runs that reached it.
        point: Completed runs of the point above, of which one or more reached the target.
        than: Completed runs of the point below.
    """
    factor = spent_in_vain(point) / spent_in_vain(than)
    error = math.hypot(ratio.standard_error, error_of_success(point), error_of_success(than))
    return replace(ratio, log_mean=ratio.log_mean + math.log(factor), standard_error=error)


def interval_of_all(amount: Interval, runs: pd.DataFrame) -> Interval:
    """Return the interval of an amount until the target with the runs that never reached it.

    Args:
        amount: Geometric mean over the runs that reached it, with its interval.
        runs: Completed runs of the point, of which one or more reached the target.
    """
    found, error = amount.scaled(spent_in_vain(runs)), error_of_success(runs)
    if not error:
        return found
    below, above = (
        math.hypot(math.log(end / found.estimate), t_quantile(math.inf) * error)
        for end in (found.low, found.high)
    )
    return replace(found, low=found.estimate * math.exp(-below), high=found.estimate * math.exp(above))


def error_of_success(runs: pd.DataFrame) -> float:
    """Return the standard error of the logarithm of ``spent_in_vain``, from the share of runs that succeed.

    With a share p of n runs, the factor is 1 + r (1 - p) / p, where r is the time of a failure over that of
    a success; the error of p is the root of p (1 - p) / n, and the rest is the delta method. Zero if all
    succeeded: nothing is known of the failures then.
    """
    succeeded, n = int(has_reached(runs).sum()), len(runs)
    if succeeded == n:
        return 0.0
    factor = spent_in_vain(runs)
    return (factor - 1) / factor * math.sqrt(n / (succeeded * (n - succeeded)))


def _speeds_to_target(runs: pd.DataFrame) -> pd.Series:
    return 1 / runs["time_to_accuracy_seconds"].astype(float).dropna()


def work_to_target(runs: pd.DataFrame) -> pd.Series:
    """Epochs until each run reached the target; of a program, which has none, samples. NaN for none."""
    epochs = runs["epochs_to_accuracy"].astype(float)
    return (
        epochs if "samples_to_target" not in runs else epochs.fillna(runs["samples_to_target"].astype(float))
    )


def has_reached(runs: pd.DataFrame) -> pd.Series:
    """Whether each run reached the target, also where its time to it is not known."""
    return work_to_target(runs).notna()


def spent_in_vain(runs: pd.DataFrame) -> float:
    """Time of all runs over the time of those that reached the target: 1 where all did.

    Args:
        runs: Completed runs of a point, of which one or more reached the target.
    """
    reached = has_reached(runs)
    # a resumed run's time is not known, reached or not
    seconds = runs["time_to_accuracy_seconds"].where(reached, runs.get("train_seconds")).astype(float)
    each, failed = seconds[reached].mean(), seconds[~reached].mean()
    if math.isnan(each) or math.isnan(failed):
        return 1.0
    return float(1 + failed * (~reached).sum() / (each * reached.sum()))


def _bounds(ratio: Ratio) -> tuple[Any, ...]:
    interval = ratio.interval()
    return interval.estimate, interval.low, interval.high
