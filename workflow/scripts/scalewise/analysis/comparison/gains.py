"""The ratios of points' speeds, by throughput, by the time to a target and by the total time of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pandas as pd

from scalewise.analysis.comparison.confounding import with_blocks
from scalewise.analysis.statistics import (
    CONFIDENCE,
    ENOUGH_REPEATS,
    Interval,
    Ratio,
    Sample,
    Scatter,
    Tries,
    difference_of,
    holm,
    mean_interval,
    ratio_of,
    scatter_of,
    target_ratio,
)

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
    """

    points: Mapping[Point, pd.DataFrame]
    _known: dict[Pair, Ratio | None] = field(default_factory=dict, repr=False, compare=False)
    _scatters: dict[Measure, Scatter | None] = field(default_factory=dict, repr=False, compare=False)

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
        above, below = side_by_side(self.points[pair.point], self.points[pair.than])
        scatter = self._scatter(pair.measure)
        if pair.measure == "time to target":
            tries, than = tries_of(above), tries_of(below)
            return None if tries is None or than is None else target_ratio(than, tries, scatter)
        rates = speeds if pair.measure == "throughput" else _speeds_of_whole_runs
        return ratio_of(sample_of(above, rates), sample_of(below, rates), scatter)

    def _scatter(self, measure: Measure) -> Scatter | None:
        if measure not in self._scatters:
            rates = {"throughput": speeds, "time to target": _speeds_to_target}
            of_measure = rates.get(measure, _speeds_of_whole_runs)
            # those under other conditions may scatter as they like
            known = [
                runs
                for runs in self.points.values()
                if "conditions" not in runs or not runs["conditions"].any()
            ]
            self._scatters[measure] = scatter_of(sample_of(runs, of_measure) for runs in known)
        return self._scatters[measure]

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
        runs: Output of ``separate_conditions``: each series holds comparable runs alone.
    """
    done = runs[runs["outcome"] == "completed"]
    done = with_blocks(done)
    points = {
        (str(point["series"].iloc[0]), int(point["devices"].iloc[0])): point
        for _, point in done.groupby(["series", "devices"], sort=False)
    }
    return Gains(points)


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


def sample_of(runs: pd.DataFrame, rates: Rates) -> Sample:
    """Return the rates of a point's runs with their verified blocks and starts, as far as they are known."""
    found = rates(runs)
    return Sample.of(found, *_in_time(runs.loc[found.index]))


def _in_time(runs: pd.DataFrame) -> tuple[Iterable[int], Iterable[float]]:
    known = {"block", "started"} <= set(runs) and runs["started"].notna().all()
    return (runs["block"], runs["started"]) if known else ((), ())


def side_by_side(point: pd.DataFrame, than: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs of two points that were made in the same sessions; all if they share none.

    A count that was added on another day is compared with the runs that the baseline has of that day.
    """
    if "session" not in point or "session" not in than:
        return point, than
    # a run without a start may be of any session
    own, others = set(point["session"].dropna()), set(than["session"].dropna())
    shared = own & others
    if not shared or own == others:
        return point, than
    return point[point["session"].isin(shared)], than[than["session"].isin(shared)]


def tries_of(runs: pd.DataFrame, amounts: Sequence[float] | None = None) -> Tries | None:
    """Return the runs of a point with a target, those that never reached it included.

    Args:
        runs: Completed runs of the point.
        amounts: Amount of each run that reached the target, until then; None for its seconds.

    Returns:
        The runs; None if none reached the target, or in an unknown time.
    """
    reached = has_reached(runs)
    seconds = runs["time_to_accuracy_seconds"].where(reached, runs.get("train_seconds")).astype(float)
    # a resumed run's time is unknown
    known, lost = seconds[reached].dropna(), seconds[~reached]
    values = known.tolist() if amounts is None else list(amounts)
    if not values or known.empty:
        return None
    per_second = math.fsum(values) / len(values) / known.mean()
    failed = () if lost.isna().all() else tuple((lost.fillna(lost.mean()) * per_second).tolist())
    in_time = _in_time(runs.loc[known.index]) if amounts is None else ((), ())
    return Tries(Sample.of(values, *in_time), failed, max(int(reached.sum()) - len(values), 0))


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


def _bounds(ratio: Ratio) -> tuple[Any, ...]:
    interval = ratio.interval()
    return interval.estimate, interval.low, interval.high
