"""Means of repeats, their ratios, and how well both are known. Pure functions of numbers.

Rates, times and costs scatter by factors: means are geometric, and Student's t is of logarithms. Each choice
below won in simulations (docs/statistics.md): pairs within verified blocks, a scatter that borrows one degree
of freedom from the other points, and runs that stand apart, which may not decide a comparison alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CONFIDENCE = 0.95

ENOUGH_REPEATS = 3
"""Runs below which a sample has no interval, and shows nothing."""

ASSUMED_SCATTER = 0.05
"""Standard deviation of logarithms that single runs are taken to have. Published repeats scatter by 0.3 to
0.6 % on GPUs of one cluster (DLPerf), CPU processes on a busy machine by up to 10 %."""

BORROWED = 1
"""Degrees of freedom that a point takes from the scatter of all points. Two narrow an interval of three runs
by 16 instead of 13 %, but hold 90 % of the truths if one point scatters five times as much as the others."""

APART = 6.0
"""Distance from the median, in scatters by the median deviation, from which a run stands apart."""
RARE, OF_RUNS = 0.3, 5
"""Largest share of runs that may stand apart, and fewest runs: more of them are a habit of the machine."""

ROUNDING = 1e-9
"""Logarithms that differ by less are equal: sums round differently."""

POWER = 0.8
"""Share of the studies in which the planned repeats show a difference that is as large as it looks."""
MOST_PLANNED = 100
"""Repeats of a point beyond which none are planned."""

DRAWS = 2_000
SEED = 20260131


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds.

    Args:
        estimate: The value that is stated.
        low: Lower bound; NaN if unknown, as that of fewer than ``ENOUGH_REPEATS`` runs.
        high: Upper bound, likewise.
        n: Runs it rests on; of a ratio, those of the smaller sample.
    """

    estimate: float
    low: float
    high: float
    n: int

    def as_columns(self, name: str) -> dict[str, float]:
        """The columns of a table that hold the interval: ``{name}``, ``{name}_low`` and ``{name}_high``."""
        return {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}

    def scaled(self, factor: float) -> Interval:
        """The interval of a multiple; the factor is positive."""
        return Interval(self.estimate * factor, self.low * factor, self.high * factor, self.n)


@dataclass(frozen=True)
class Sample:
    """Values of a point's runs.

    Args:
        values: Positive rates, times or costs, one for each run.
        blocks: Verified block of each run, 0 for none; empty if there are no blocks.
        starts: Start of each run in seconds; empty if unknown.
    """

    values: tuple[float, ...]
    blocks: tuple[int, ...] = ()
    starts: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert all(not each or len(each) == len(self.values) for each in (self.blocks, self.starts))

    @classmethod
    def of(cls, values: Iterable[float], blocks: Iterable[int] = (), starts: Iterable[float] = ()) -> Sample:
        """Return the sample of values of any kind of sequence."""
        return cls(tuple(map(float, values)), tuple(map(int, blocks)), tuple(map(float, starts)))

    @property
    def logs(self) -> list[float]:
        """Logarithm of each value."""
        return [math.log(value) for value in self.values]

    @property
    def mean(self) -> float:
        """Geometric mean; NaN without a value."""
        return math.exp(fmean(self.logs)) if self.values else math.nan

    def scaled(self, factor: float) -> Sample:
        """The sample of a multiple; the factor is positive."""
        return replace(self, values=tuple(value * factor for value in self.values))

    def by_block(self) -> dict[int, float]:
        """Mean logarithm of the runs in each block."""
        found = defaultdict(list)
        for block, log in zip(self.blocks, self.logs, strict=False):
            if block:
                found[block].append(log)
        return {block: fmean(logs) for block, logs in found.items()}

    def only(self, kept: Sequence[bool]) -> Sample:
        """Return the runs that are kept."""
        return Sample(
            tuple(compress(self.values, kept)),
            tuple(compress(self.blocks, kept)),
            tuple(compress(self.starts, kept)),
        )


@dataclass(frozen=True)
class Scatter:
    """The scatter of the runs of one point, from all points of an experiment. Runs that stand apart are out.

    Args:
        variance: Variance of the logarithm of a run about its point's mean: the median of the points.
        freedom: Degrees of freedom of all points together.
        in_blocks: Variance after what the runs of a block share is taken off as well; None without blocks,
            and for two points, whose pairs have it.
        drift: Change of the logarithm in a second, of runs of one point; 0 if unknown.
        drift_error: Standard error of the drift.
    """

    variance: float
    freedom: float = math.inf
    in_blocks: float | None = None
    drift: float = 0.0
    drift_error: float = 0.0


@dataclass(frozen=True)
class Ratio:
    """The ratio of two samples.

    Args:
        estimate: Ratio of the geometric means; of the paired runs alone if there are pairs.
        log_center: Center of the t distribution: ``log(estimate)``, unless runs stand apart.
        standard_error: Standard error of the center; 0 if nothing scatters.
        freedom: Degrees of freedom of the standard error; infinite if the scatter is assumed, because both
            samples are single runs.
        n: Pairs, or runs of the smaller sample.
        draws: Draws of the ratio in ascending order, which then give bounds and p values; empty for t.
    """

    estimate: float
    log_center: float
    standard_error: float
    freedom: float
    n: int
    draws: tuple[float, ...] = ()

    @property
    def at_least(self) -> float:
        """Lower end of the 95 % interval, which always holds the estimate."""
        return min(self._ends()[0], self.estimate)

    @property
    def at_most(self) -> float:
        """Upper end of the 95 % interval, which always holds the estimate."""
        return max(self._ends()[1], self.estimate)

    def _ends(self) -> tuple[float, float]:
        if self.draws:
            tail = round((1 - CONFIDENCE) / 2 * len(self.draws))
            return self.draws[tail], self.draws[-1 - tail]
        reach = t_quantile(self.freedom) * self.standard_error
        return math.exp(self.log_center - reach), math.exp(self.log_center + reach)

    def scaled(self, factor: float) -> Ratio:
        """The ratio times a positive factor, as that of costs is from that of times."""
        center, draws = self.log_center + math.log(factor), tuple(factor * draw for draw in self.draws)
        return replace(self, estimate=self.estimate * factor, log_center=center, draws=draws)

    def interval(self) -> Interval:
        """The ratio with its 95 % interval, which needs ``ENOUGH_REPEATS`` runs on each side."""
        known = self.n >= ENOUGH_REPEATS
        low, high = (self.at_least, self.at_most) if known else (math.nan, math.nan)
        return Interval(self.estimate, low, high, self.n)

    def p_above(self, threshold: float = 1.0) -> float:
        """One-sided p value that the ratio lies above a threshold.

        How probable so large a lead would be, were the ratio the threshold itself: 0.5 if it is. It is below
        0.025 if and only if ``at_least`` is above the threshold.
        """
        lead = math.log(self.estimate / threshold)
        if abs(lead) <= ROUNDING:
            return 0.5
        p = self._tail(threshold)
        return min(p, 0.5) if lead > 0 else max(p, 0.5)

    def _tail(self, threshold: float) -> float:
        if self.draws:
            return (sum(draw <= threshold for draw in self.draws) + 1) / (len(self.draws) + 1)
        lead = self.log_center - math.log(threshold)
        if self.standard_error == 0:
            return 0.5 if abs(lead) <= ROUNDING else float(lead < 0)
        from scipy.special import stdtr  # noqa: PLC0415  # see t_quantile

        return float(stdtr(self.freedom, -lead / self.standard_error))


def ratio_of(one: Sample, other: Sample, scatter: Scatter | None = None) -> Ratio | None:
    """Return the ratio of two samples' geometric means.

    Runs of the same verified blocks are compared in pairs if there are three or more of them, and they are
    at least half of the smaller sample: what the hour does to both sides is not in the ratio. Otherwise the
    samples are independent, and may differ in number and scatter (Welch, Biometrika 34, 1947). Few runs that
    stand far apart are not in the scatter, but in the estimate, and the interval reaches from one to the
    other: they may leave a comparison open, and cannot decide it. Of independent samples with known starts
    it also reaches to the ratio without a steady drift of all speeds.

    A single run is taken to scatter as all points do, or as the other sample, or by ``ASSUMED_SCATTER``.

    Args:
        one: Runs above the fraction bar.
        other: Those below it.
        scatter: Scatter of all points of the experiment; None if the two samples are all there is.

    Returns:
        The ratio; None if a sample is empty.
    """
    if not one.values or not other.values:
        return None
    pairs = _shared(one, other)
    found = _paired(pairs, scatter) if pairs else _unpaired(one, other, scatter)
    kept = _kept(one, other)
    if kept is None:
        return found
    one, other = one.only(kept[0]), other.only(kept[1])
    if pairs and not (pairs := _shared(one, other)):
        return found
    typical = _paired(pairs, scatter) if pairs else _unpaired(one, other, scatter)
    return replace(typical, estimate=found.estimate)


def ratio_to(sample: Sample, limit: float, scatter: Scatter | None = None) -> Ratio:
    """Return the geometric mean of a sample, of one or more runs, over a number that is known exactly."""
    center, error, freedom = _center(sample, scatter)
    center -= math.log(limit)
    return Ratio(math.exp(center), center, error, freedom, len(sample.values))


def _shared(one: Sample, other: Sample) -> list[float]:
    """Differences of logarithms in shared blocks; none if too few runs are in them."""
    above, below = one.by_block(), other.by_block()
    shared = sorted(above.keys() & below.keys())
    enough = max(ENOUGH_REPEATS, min(len(one.values), len(other.values)) / 2)
    return [above[block] - below[block] for block in shared] if len(shared) >= enough else []


def _paired(leads: Sequence[float], scatter: Scatter | None) -> Ratio:
    n, own, freedom = len(leads), _variance(leads), float(len(leads) - 1)
    if scatter is not None and scatter.in_blocks is not None:
        # where hours make no difference the scatter of single runs says the same, and one bad run less
        all_pairs = 2 * min(scatter.in_blocks, scatter.variance)
        own, freedom = _borrowing(own, freedom, all_pairs)
    center = fmean(leads)
    return Ratio(math.exp(center), center, math.sqrt(own / n), freedom, n)


def _unpaired(one: Sample, other: Sample, scatter: Scatter | None) -> Ratio:
    above, below = one.logs, other.logs
    lead, n = fmean(above) - fmean(below), min(len(above), len(below))
    if n > 1:
        sides = [(len(side), *_spread(side, scatter)) for side in (above, below)]
        error, freedom = welch([(variance / size, freedom) for size, variance, freedom in sides])
        if scatter is None or not (one.starts and other.starts):
            return Ratio(math.exp(lead), lead, error, freedom, n)
        apart = fmean(one.starts) - fmean(other.starts)
        center, error = lead - scatter.drift * apart, math.hypot(error, scatter.drift_error * apart)
        return Ratio(math.exp(lead), center, error, freedom, n)
    if scatter is not None:
        variance, freedom = scatter.variance, scatter.freedom
    elif len(above) == len(below):
        variance, freedom = ASSUMED_SCATTER**2, math.inf
    else:
        longer = max(above, below, key=len)
        variance, freedom = _variance(longer), float(len(longer) - 1)
    error = math.sqrt(variance * (1 / len(above) + 1 / len(below)))
    return Ratio(math.exp(lead), lead, error, freedom, n)


def _spread(logs: Sequence[float], scatter: Scatter | None) -> tuple[float, float]:
    """Variance of a sample with its degrees of freedom, those that it borrows included."""
    own, freedom = _variance(logs), float(len(logs) - 1)
    return (own, freedom) if scatter is None else _borrowing(own, freedom, scatter.variance)


def _borrowing(own: float, freedom: float, of_all: float) -> tuple[float, float]:
    """Variance and freedom of a point with what it borrows, never less than its own.

    A point that scatters more than the others is as uncertain as it looks.
    """
    freedom_of_both = freedom + BORROWED
    return max(own, (freedom * own + BORROWED * of_all) / freedom_of_both), freedom_of_both


def _kept(one: Sample, other: Sample) -> tuple[list[bool], list[bool]] | None:
    """Return which runs of two samples do not stand apart; None if none does, or too many do."""
    distances = [_distances(sample.logs) for sample in (one, other)]
    scales = [_median_deviation(each) for each in distances]
    least, most = (APART * of(scales) for of in (min, max))
    if not all(_is_rare(sum(each > least for each in side), len(side)) for side in distances):
        return None
    kept = tuple([each <= most for each in side] for side in distances)
    return None if all(map(all, kept)) else (kept[0], kept[1])


def _distances(logs: Sequence[float]) -> list[float]:
    center = median(logs)
    return [abs(log - center) for log in logs]


def _median_deviation(distances: Sequence[float]) -> float:
    """Standard deviation by the median distance; the median of an odd number has none of its own."""
    rest = sorted(distances)[len(distances) % 2 :]
    return 1.4826 * median(rest) if rest else 0.0


def scatter_of(points: Iterable[Sample]) -> Scatter | None:
    """Return the scatter of all points of an experiment; None if no point has two runs."""
    known = [_without_apart(point) for point in points if len(point.values) > 1]
    enough = [point for point in known if len(point.values) >= ENOUGH_REPEATS] or known
    if not enough:
        return None
    # the median of so few degrees of freedom is less than the mean
    sizes = [_variance(point.logs) / _median_of_variances(len(point.values) - 1) for point in enough]
    freedom = float(sum(len(point.values) - 1 for point in enough))
    in_blocks = _variance_in_blocks([point.by_block() for point in known])
    return Scatter(median(sizes), freedom, in_blocks, *_drift(known))


def _drift(points: Sequence[Sample]) -> tuple[float, float]:
    """Slope of logarithms over starts within points, and its standard error; zeros if too little is known."""
    times, logs, freedom = [], [], -1
    for point in points:
        if point.starts:
            times += [start - fmean(point.starts) for start in point.starts]
            logs += [log - fmean(point.logs) for log in point.logs]
            freedom += len(point.values) - 1
    spread = math.fsum(time**2 for time in times)
    if freedom < 2 or not spread > 0:
        return 0.0, 0.0
    slope = math.fsum(time * log for time, log in zip(times, logs, strict=True)) / spread
    left = math.fsum((log - slope * time) ** 2 for time, log in zip(times, logs, strict=True))
    return slope, math.sqrt(left / freedom / spread)


def _without_apart(point: Sample) -> Sample:
    distances = _distances(point.logs)
    limit = APART * _median_deviation(distances)
    kept = [each <= limit for each in distances]
    return point.only(kept) if _is_rare(kept.count(False), len(kept)) else point


def _is_rare(apart: int, n: int) -> bool:
    return apart <= (RARE * n if n >= OF_RUNS else 0)


def _variance_in_blocks(points: Sequence[Mapping[int, float]]) -> float | None:
    """Variance of what is left of logarithms without point and block means."""
    import numpy as np  # noqa: PLC0415  # see t_quantile

    rows = [point for point in points if len(point) > 1]
    blocks = {block for row in rows for block in row}
    freedom = sum(map(len, rows)) - len(rows) - len(blocks) + 1
    if len(rows) < 3 or freedom < 2:
        return None
    left = np.array([[row.get(block, math.nan) for block in blocks] for row in rows])
    # one sweep is exact if no cell is empty
    for _ in range(10 if np.isnan(left).any() else 1):
        left -= np.nanmean(left, axis=1, keepdims=True)
        left -= np.nanmean(left, axis=0)
    return float(np.nansum(left**2)) / freedom


@dataclass(frozen=True)
class Tries:
    """Runs of a point that has a target.

    Args:
        reached: Times until the target, of the runs that reached it.
        failed: Times of the runs that ended without it.
    """

    reached: Sample
    failed: tuple[float, ...] = ()

    @property
    def successes(self) -> int:
        """Number of runs that reached the target."""
        return len(self.reached.values)

    @property
    def n(self) -> int:
        """Number of all runs."""
        return self.successes + len(self.failed)

    @property
    def factor(self) -> float:
        """Time of all runs over that of those that reached the target: 1 if all did.

        It is what somebody spends who starts again until a run reaches it, over the time of that run
        (expected running time; Hansen et al., Optimization Methods and Software 36, 2021).
        """
        return 1 + sum(self.failed) / (fmean(self.reached.values) * self.successes)

    @property
    def estimate(self) -> float:
        """Expected time until a run reaches the target."""
        return math.exp(fmean(self.reached.logs)) * self.factor

    def draw(self, scatter: Scatter | None, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        """Draw the logarithm of the expected time, for runs of which one or more of two points failed.

        The share of successes is of a beta distribution by Jeffreys' prior, which doubts even a point
        without a failure; the logarithm of the times is Student's.
        """
        import numpy as np  # noqa: PLC0415  # see t_quantile

        center, error, freedom = _center(self.reached, scatter)
        times = center + error * generator.standard_t(min(freedom, 1e6), DRAWS)
        share = generator.beta(self.successes + 0.5, len(self.failed) + 0.5, DRAWS)
        lost = fmean(self.failed or self.reached.values) / fmean(self.reached.values)
        drawn: npt.NDArray[np.float64] = times + np.log1p(lost * (1 - share) / share)
        return drawn


def target_ratio(one: Tries, other: Tries, scatter: Scatter | None = None) -> Ratio | None:
    """Return the ratio of two points' expected times to a target, runs that never reached it included.

    Args:
        one: Runs above the fraction bar.
        other: Those below it.
        scatter: Scatter of the times to the target of all points; None if the two are all there is.

    Returns:
        The ratio; None if no run of one side reached the target.
    """
    found = ratio_of(one.reached, other.reached, scatter)
    if found is None or not (one.failed or other.failed):
        return found
    import numpy as np  # noqa: PLC0415  # see t_quantile

    generator = np.random.default_rng(SEED)
    drawn = np.sort(one.draw(scatter, generator) - other.draw(scatter, generator))
    estimate, error = one.estimate / other.estimate, float(drawn.std())
    draws = tuple(np.exp(drawn.clip(-700, 700)).tolist())
    return Ratio(estimate, math.log(estimate), error, math.inf, min(one.n, other.n), draws=draws)


def geometric_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of rates or times, by t on logarithms.

    Args:
        values: One for each run, at least one; positive.
    """
    of_logs = mean_interval([math.log(value) for value in values])
    # exp(log(x)) is not x to the last digit
    estimate = values[0] if len(values) == 1 else math.exp(of_logs.estimate)
    return Interval(estimate, math.exp(of_logs.low), math.exp(of_logs.high), of_logs.n)


def _center(sample: Sample, scatter: Scatter | None) -> tuple[float, float, float]:
    """Mean logarithm, its standard error and its degrees of freedom."""
    logs = sample.logs
    if len(logs) > 1:
        variance, freedom = _spread(logs, scatter)
    elif scatter is not None:
        variance, freedom = scatter.variance, scatter.freedom
    else:
        variance, freedom = ASSUMED_SCATTER**2, math.inf
    return fmean(logs), math.sqrt(variance / len(logs)), freedom


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the arithmetic mean of values that may be zero or negative, by t.

    Args:
        values: One for each run, at least one.
    """
    mean, n = fmean(values), len(values)
    half = t_quantile(n - 1) * math.sqrt(_variance(values) / n) if n >= ENOUGH_REPEATS else math.nan
    return Interval(mean, mean - half, mean + half, n)


def difference_of(one: Interval, other: Interval) -> Interval:
    """Return the difference of two means that ``mean_interval`` gave, by Welch's t.

    Each has ``ENOUGH_REPEATS`` values or more.
    """
    errors = [(each.high - each.estimate) / t_quantile(each.n - 1) for each in (one, other)]
    error, freedom = welch([(errors[0] ** 2, one.n - 1), (errors[1] ** 2, other.n - 1)])
    estimate, half = one.estimate - other.estimate, t_quantile(freedom) * error
    return Interval(estimate, estimate - half, estimate + half, min(one.n, other.n))


def next_value_bound(values: Sequence[float]) -> float:
    """Return the value that one more run stays below with 95 % probability, by the t of its logarithm.

    Unlike the largest value so far it does not grow with the runs (Hahn & Meeker, Statistical Intervals,
    1991, section 4.7). Fewer than ``ENOUGH_REPEATS`` runs are taken to scatter by
    ``ASSUMED_SCATTER`` or more.

    Args:
        values: Positive, one for each run, at least one.
    """
    logs = [math.log(value) for value in values]
    scatter, freedom = math.sqrt(_variance(logs)), float(len(logs) - 1)
    if len(logs) < ENOUGH_REPEATS:
        scatter, freedom = max(scatter, ASSUMED_SCATTER), math.inf
    reach = t_quantile(freedom, 2 * CONFIDENCE - 1) * scatter * math.sqrt(1 + 1 / len(logs))
    return math.exp(fmean(logs) + reach)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values of tests that are made together, adjusted (Holm, Scand. J. Statist. 6, 1979).

    The chance that any of those at or below 0.05 is false is at most 0.05, however many there are. One that
    is unknown stays so and does not count.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted, least = list(p_values), 0.0
    for rank, (p, index) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        adjusted[index] = least
    return adjusted


def runs_to_tell(ratio: Ratio, threshold: float) -> int | None:
    """Return the runs on each side that show on which side of a threshold a ratio lies.

    They show it in the share ``POWER`` of studies.

    Args:
        ratio: The ratio so far; the true one is taken to be equal, and later runs to scatter as these.
        threshold: Ratio to be told from.

    Returns:
        The number, more than there are now; None if it would be above ``MOST_PLANNED``.
    """
    distance = abs(math.log(ratio.estimate / threshold))
    # the standard error falls with the root of the runs
    scatter = ratio.standard_error * math.sqrt(ratio.n)
    per_run = 2.0 if math.isinf(ratio.freedom) else ratio.freedom / max(ratio.n - 1, 1)
    for n in range(ratio.n + 1, MOST_PLANNED + 1):
        reach = t_quantile(max(round(per_run * (n - 1)), 1)) + t_quantile(math.inf, 2 * POWER - 1)
        if reach * scatter <= distance * math.sqrt(n):
            return n
    return None


def welch(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the standard error of a difference of means, and its degrees of freedom (Welch, 1947).

    Args:
        parts: The variance of each mean, and its degrees of freedom.

    Returns:
        Both; if nothing scatters the freedom is that of all parts together.
    """
    squared = math.fsum(variance for variance, _ in parts)
    weights = math.fsum(variance**2 / freedom for variance, freedom in parts)
    return math.sqrt(squared), squared**2 / weights if weights else sum(freedom for _, freedom in parts)


@cache
def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return half the width of Student's central interval, in standard errors."""
    # takes 0.3 s to load, and not every command needs it
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(freedom, (1 + confidence) / 2))


@cache
def _median_of_variances(freedom: int) -> float:
    """Median of a variance of so many degrees of freedom, over the true one."""
    from scipy.special import chdtri  # noqa: PLC0415  # see t_quantile

    return float(chdtri(freedom, 0.5)) / freedom


def _variance(values: Sequence[float]) -> float:
    """Unbiased variance; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
