"""Speedups so far, by the rule of the tables and without the libraries that those take long to load.

All runs that have completed count. The tables leave out those that were not made under the baseline's
conditions, such as other software or another kind of device.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median, variance

from scalewise.analysis.statistics.intervals import CONFIDENCE, Interval, welch_error
from scalewise.watch.points import WatchedPoint
from scalewise.watch.standing import PointStanding

NEVER_MORE = {"out-of-memory", "diverged"}
"""Outcomes that another try would repeat, as the tables have them: such a point is no baseline."""

_TINY = 1e-300


@dataclass(frozen=True)
class Speedup:
    """A measured point against its baseline, the fewest devices of its series that can train it.

    Args:
        ratio: Ratio of the throughputs; without bounds where neither has two runs.
    """

    point: WatchedPoint
    baseline: int
    ratio: Interval

    @property
    def efficiency(self) -> float:
        """The speedup over what as many devices could give at most."""
        return self.ratio.estimate * self.baseline / self.point.devices


def speedups(points: Sequence[PointStanding]) -> Iterator[Speedup]:
    """The speedup of every point that has completed runs, as has its baseline; none of the baseline."""
    series: dict[tuple[str, str], list[PointStanding]] = defaultdict(list)
    for each in points:
        series[_series(each)].append(each)
    baselines = {name: baseline_of(mine) for name, mine in series.items()}
    for each in points:
        baseline = baselines[_series(each)]
        if each.point.devices <= baseline.point.devices:
            continue
        above, below = tuple(each.rates), tuple(baseline.rates)
        if above and below:
            yield Speedup(each.point, baseline.point.devices, ratio(above, below))


def baseline_of(series: Sequence[PointStanding]) -> PointStanding:
    """The fewest devices of a series; those on which its training is known to be impossible do not count."""
    possible = [each for each in series if not _is_impossible(each)]
    return min(possible or series, key=lambda each: each.point.devices)


def _is_impossible(standing: PointStanding) -> bool:
    """Whether all of its runs have ended and say so."""
    return all(facts.outcome in NEVER_MORE for facts in standing.runs.values())


def _series(standing: PointStanding) -> tuple[str, str]:
    return standing.point.experiment, standing.point.series


@lru_cache(maxsize=65536)
def ratio(above: tuple[float, ...], below: tuple[float, ...]) -> Interval:
    """The ratio of two samples of rates, by Welch's t on logarithms, as the tables have it.

    Args:
        above: Positive rates, one for each run.
        below: Positive rates in the same unit.
    """
    estimate, n = median(above) / median(below), min(len(above), len(below))
    sides = [[math.log(value) for value in side] for side in (above, below)]
    scatters = [variance(side) for side in sides if len(side) > 1]
    if not scatters:
        return Interval(estimate, estimate, estimate, 0.0, n)
    if len(scatters) == 1:
        error = math.sqrt(scatters[0] * sum(1 / len(side) for side in sides))
        freedom = float(max(map(len, sides)) - 1)
    else:
        error, freedom = welch_error([(variance(side) / len(side), len(side)) for side in sides])
    lead, reach = fmean(sides[0]) - fmean(sides[1]), t_quantile(freedom) * error
    low, high = math.exp(lead - reach), math.exp(lead + reach)
    return Interval(estimate, min(low, estimate), max(high, estimate), CONFIDENCE, n)


@lru_cache(maxsize=4096)
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Half width of Student's central interval in standard errors, by bisection of its tail.

    Args:
        freedom: Degrees of freedom, positive.
        confidence: Probability of the interval.
    """
    low, high = 0.0, 1.0
    while _both_tails(high, freedom) > 1 - confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _both_tails(middle, freedom) > 1 - confidence else (low, middle)
    return high


def _both_tails(t: float, freedom: float) -> float:
    """Probability that Student's t lies outside of -t to t: the incomplete beta function."""
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(logs) * _fraction(x, a, b) / a
    return 1 - math.exp(logs) * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's evaluation of the continued fraction."""
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or _TINY)
    value = d
    for m in range(1, 300):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / ((1 + step * d) or _TINY), (1 + step / c) or _TINY
            value *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return value
