"""Compute the speedups so far by the rule of the tables.

All runs that have completed count. The tables exclude those under other conditions than the baseline's,
such as other software or another kind of device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from scalewise.analysis.statistics import Interval
from scalewise.watch.status import PointStatus
from scalewise.watch.study import WatchedPoint

NEVER_MORE = {"out-of-memory", "diverged"}
"""Outcomes that another try would repeat, as in the tables: such a point is no baseline."""


@dataclass(frozen=True)
class Speedup:
    """A measured point compared with its baseline, the fewest devices of its series that can train it.

    Args:
        ratio: Ratio of the throughputs; without bounds if neither has two runs.
    """

    point: WatchedPoint
    baseline: int
    ratio: Interval

    @property
    def efficiency(self) -> float:
        """The speedup over the ratio of the device counts."""
        return self.ratio.estimate * self.baseline / self.point.devices


def speedups(points: Sequence[PointStatus]) -> Iterator[Speedup]:
    """Yield the speedup of every point above its baseline, if runs of both have completed."""
    series: dict[tuple[str, str], list[PointStatus]] = defaultdict(list)
    for each in points:
        series[_series(each)].append(each)
    baselines = {name: baseline_of(members) for name, members in series.items()}
    for each in points:
        baseline = baselines[_series(each)]
        if each.point.devices <= baseline.point.devices:
            continue
        above, below = tuple(each.rates), tuple(baseline.rates)
        if above and below:
            yield Speedup(each.point, baseline.point.devices, ratio(above, below))


def baseline_of(series: Sequence[PointStatus]) -> PointStatus:
    """Return the fewest devices of a series on which its training is not known to be impossible."""
    possible = [each for each in series if not _is_impossible(each)]
    return min(possible or series, key=lambda each: each.point.devices)


def _is_impossible(point: PointStatus) -> bool:
    """Return whether all runs of a point ended in a way that another try would repeat."""
    return all(run.outcome in NEVER_MORE for run in point.runs.values())


def _series(status: PointStatus) -> tuple[str, str]:
    return status.point.experiment, status.point.series


@lru_cache(maxsize=65536)
def ratio(above: tuple[float, ...], below: tuple[float, ...]) -> Interval:
    """Return the ratio of two samples of rates, computed as in the tables.

    Args:
        above: Positive rates, one for each run.
        below: Positive rates in the same unit.
    """
    # takes 0.3 s to load, and the display may end before any speedup is known
    from scalewise.analysis.statistics import ratio_interval  # noqa: PLC0415

    return ratio_interval(above, below)
