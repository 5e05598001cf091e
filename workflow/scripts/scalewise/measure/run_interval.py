"""The interval of one run's own throughput, and whether it is narrow enough to end the run. Pure functions.

A value is the time of a window of ``WINDOW_STEPS`` steps, per sample or per step. The first steps of a run
are slower, or faster, than all that follow: code is compiled, cuDNN tries its algorithms, clocks rise and
fall. So MSER-5 excludes the windows that warm up (White, Cobb and Spratt 2000; chosen among 44 rules by Hoad,
Robinson and Davies 2010): as many as make the standard error of the rest least, windows of five each. With a
minimum in the second half there is no steady part yet. Noise alone makes such a minimum somewhere, so windows
are excluded only if their mean differs from that of the rest by ``CLEAR_DIFFERENCE`` standard errors.

The interval is that of a mean of autocorrelated values: the variance over the number of values that are
independent in effect, ``n (1 - r) / (1 + r)`` with the first autocorrelation r (Bayley and Hammersley 1946),
by Student's t (Zwiers and von Storch 1995). The estimate of r is too low in short series; its bias ``(1 + 3
r) / n`` (Kendall 1954) and ``AUTOCORRELATION_MARGIN / sqrt(n)`` are added. Values that follow each other for
longer than one autocorrelation shows widen the interval of pairs (Flyvbjerg and Petersen 1989): the wider one
of the intervals of windows and of pairs of windows counts.

An interval that is checked until it is narrow is narrow too often. So there are few checks, each after a
fifth more windows than the one before, and none before ``FEWEST_WINDOWS``. 4,000 simulated runs of at
most 500 steps each, that end once half the width is 1 %; the true value is the mean of the process that the
run is a part of:

=================================  =======  ================  ===========  =====  =======
step times                         covers   covers, if early  ended early  steps  warm-up
=================================  =======  ================  ===========  =====  =======
noise of 2 %, independent          98 %     98 %              100 %        108    0
noise of 5 %, independent          97 %     97 %              100 %        177    0
2 %, AR(1) with rho 0.5            97 %     97 %              100 %        130    0
5 %, AR(1) with rho 0.5            96 %     95 %              73 %         393    0
1 %, AR(1) with rho 0.9            94 %     94 %              95 %         246    3
2 %, AR(1) with rho 0.9            94 %     86 %              42 %         413    6
1 %, each 10th step 10 % longer    100 %    100 %             100 %        101    0
1 %, each 50th step 50 % longer    100 %    100 %             100 %        265    0
1 %, 1 step in 20 twice as long    94 %                       2 %          493    70
1 %, compiles, then settles        95 %     95 %              100 %        187    64
1 %, 5 % slower from step 60 on    98 %     98 %              100 %        186    65
1 %, 5 % slower from step 200 on   0 %      0 %               100 %        101    0
1 %, 2 % slower over 500 steps     10 %     10 %              100 %        105    1
=================================  =======  ================  ===========  =====  =======

Fewer windows before the first check would cost more than 2 points where rho is 0.9: with 12 of them the two
rows cover 90 %, with 16 they cover 93 and 92 %. As with all such rules, runs that end early although their
noise is far above the required width were lucky (the sixth row). And no interval knows what comes after it
(the last two rows): the throughput is that of the steps that were made.
tests/unit/training/test_run_interval.py repeats the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WINDOW_STEPS = 5
"""Steps of a window, the batches of MSER-5."""

FEWEST_WINDOWS = 20
"""Windows that an interval needs, without those that warm up."""

GROWTH = 1.2
"""Ratio of the windows at a check to those at the check before."""

CONFIDENCE = 0.95

_FREEDOM = (2, 3, 4, 5, 6, 7, 8, 10, 13, 17, 24, 40, 100)
_FACTORS = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.228, 2.160, 2.110, 2.064, 2.021, 1.984)
STUDENT = dict(zip(_FREEDOM, _FACTORS, strict=True))
"""Factors of Student's t for ``CONFIDENCE``, by the least degrees of freedom that they are for."""

CLEAR_DIFFERENCE = 4.0
"""Standard errors by which windows that warm up differ from the others."""

AUTOCORRELATION_MARGIN = 0.3
"""Allowance for the error of an autocorrelation that n values give, in units of 1 / sqrt(n)."""

MOST_AUTOCORRELATION = 0.97
LEAST_EFFECTIVE = 3.0
"""Bounds of these estimates from few values."""

LEAST_TAIL = 5
"""Fewest windows that remain behind those that MSER-5 excludes."""


@dataclass(frozen=True)
class RunInterval:
    """The interval of the mean of some windows.

    Args:
        half_width: Half the width of the interval, as a share of the mean.
        windows: Number of windows.
        effective_windows: Number of independent windows with the same standard error.
    """

    half_width: float
    windows: int
    effective_windows: float


@dataclass(frozen=True)
class Steadiness:
    """The steady part of a run, and its interval.

    Args:
        warmup_windows: First windows that are excluded.
        steady: Whether the windows were steady by the middle of them.
        interval: The interval of the others; None if they are fewer than ``FEWEST_WINDOWS``.
    """

    warmup_windows: int
    steady: bool
    interval: RunInterval | None

    def is_narrow(self, until_interval: float) -> bool:
        """Return whether the run may end: it is steady, and its interval is as narrow as this share."""
        return self.steady and self.interval is not None and self.interval.half_width <= until_interval

    def record(self, until_interval: float, warmup_steps: int, ended: str) -> dict[str, Any]:
        """Return the values of ``scalewise.records.OwnInterval``, which describes them."""
        found = self.interval
        if found is not None and not math.isfinite(found.half_width):
            found = None
        return {
            "until_interval": until_interval,
            "half_width_fraction": None if found is None else found.half_width,
            "confidence": CONFIDENCE,
            "windows": None if found is None else found.windows,
            "effective_windows": None if found is None else found.effective_windows,
            "warmup_steps": warmup_steps,
            "steady": self.steady,
            "ended": ended,
        }


def check_points(most_steps: int) -> list[int]:
    """Return the numbers of windows at which a run of at most so many steps is checked."""
    found, windows = [], FEWEST_WINDOWS
    while windows * WINDOW_STEPS < most_steps:
        found.append(windows)
        windows = math.ceil(windows * GROWTH)
    return found


def assess(values: Sequence[float], most_steps: int) -> Steadiness:
    """Find the steady part of a run so far, and its interval.

    Args:
        values: Times of its windows, in their order.
        most_steps: Most steps of the run; half of them may warm up.
    """
    first = warmup_windows(values)
    steady = first <= len(values) // 2
    first = min(first, most_steps // 2 // WINDOW_STEPS)
    rest = values[first:]
    return Steadiness(first, steady, mean_interval(rest) if len(rest) >= FEWEST_WINDOWS else None)


def warmup_windows(values: Sequence[float]) -> int:
    """Return the number of first windows that are unlike the others, by MSER-5."""
    number = len(values)
    if number <= LEAST_TAIL:
        return 0
    level = sum(values) / number
    total = squares = 0.0
    least, first = math.inf, 0
    for index in range(number - 1, -1, -1):
        value = values[index] - level
        total, squares, count = total + value, squares + value * value, number - index
        if count >= LEAST_TAIL:
            error = (squares - total * total / count) / count**2
            if error <= least:
                least, first = error, index
    if not first:
        return 0
    rest = values[first:]
    mean, variance, correlation = _moments(rest)
    inflation = (1 + correlation) / (1 - correlation)
    error = math.sqrt(max(variance, 0.0) * inflation * (1 / len(rest) + 1 / first))
    return first if abs(sum(values[:first]) / first - mean) > CLEAR_DIFFERENCE * error else 0


def mean_interval(values: Sequence[float]) -> RunInterval:
    """Return the interval of the mean of consecutive windows."""
    pairs = [(values[index] + values[index + 1]) / 2 for index in range(len(values) % 2, len(values) - 1, 2)]
    half_width, effective = max(_half_width(values), _half_width(pairs))
    return RunInterval(half_width, len(values), effective)


def _half_width(values: Sequence[float]) -> tuple[float, float]:
    """Return half the width of an interval as a share of the mean, and the effective number of values."""
    number = len(values)
    mean, variance, correlation = _moments(values)
    effective = min(max(number * (1 - correlation) / (1 + correlation), LEAST_EFFECTIVE), float(number))
    # the mean itself follows values that are alike: their variance about it is too small by one of these
    variance *= (1 - 1 / number) / (1 - 1 / effective)
    half_width = student_quantile(effective - 1) * math.sqrt(variance / effective)
    return (half_width / mean if mean else math.inf), effective


def _moments(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, variance and first autocorrelation, the last at its upper end, not below 0."""
    number = len(values)
    mean = sum(values) / number
    away = [value - mean for value in values]
    squares = sum(value * value for value in away)
    if not squares:
        return mean, 0.0, 0.0
    found = sum(map(float.__mul__, away, away[1:])) / squares
    found += (1 + 3 * found) / number + AUTOCORRELATION_MARGIN / math.sqrt(number)
    return mean, squares / (number - 1), min(max(found, 0.0), MOST_AUTOCORRELATION)


def student_quantile(freedom: float) -> float:
    """Return Student's factor of a two-sided interval of ``CONFIDENCE``, or a slightly larger one.

    Args:
        freedom: Degrees of freedom, 2 or more, whole or not.
    """
    return next(factor for least, factor in reversed(STUDENT.items()) if least <= freedom)
