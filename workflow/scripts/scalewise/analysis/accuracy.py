"""Losses of accuracy that the runs show."""

from __future__ import annotations

import math

import pandas as pd

from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS, Interval, difference_of

CLEAR_ACCURACY_LOSS = 0.02
"""Least difference of two accuracies without intervals that counts as a loss. The draw of 10,000 test images
moves the difference of two by up to 0.014 (95 %, binomial)."""
LEAST_LOSS = 0.05
"""Percentage points of accuracy below which a loss is not named."""


def accuracy_lost(point: pd.Series, base: pd.Series) -> float:
    """Return the percentage points of accuracy that are shown to be lost against the baseline.

    0 if none are, or fewer than half a tenth.
    """
    before, after = (
        Interval(row["final_accuracy"], row["final_accuracy_low"], row["final_accuracy_high"], int(row["n"]))
        for row in (base, point)
    )
    lost = round(100 * (before.estimate - after.estimate), 2)
    return lost if lost >= LEAST_LOSS and _is_lower(before, after) else 0.0


def _is_lower(before: Interval, after: Interval) -> bool:
    """Return whether an accuracy is shown to be lower: by Welch's 95 % interval of the difference.

    Too few runs for such an interval must differ by what a draw of test images cannot explain.
    """
    if min(before.n, after.n) < ENOUGH_REPEATS or math.isnan(before.low + after.low):
        return before.estimate - after.estimate > CLEAR_ACCURACY_LOSS
    return difference_of(before, after).low > 0
