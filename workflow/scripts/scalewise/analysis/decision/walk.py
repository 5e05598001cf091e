"""The rule of the decision: which points meet the criteria, and which of them is taken.

Points are walked through from few to many devices. One is taken if it is shown to be faster than the last
that was taken, by a gain worth having. Compared with the next smaller device count only, a dip would make the
point after it look like a gain; compared with the fastest of a dense grid, no point would ever be far enough
ahead.

The functions work on arrays of shape (draws, counts): the measured points are one draw, possible speeds are
many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scalewise.analysis.statistics import ROUNDING
from scalewise.plan.config.experiment import DecisionRule

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

NONE = -1
"""The index of an answer that no count gives."""

CRITERIA = {
    "min_efficiency": "efficiency_to_best",
    "deadline_minutes": "done_minutes",
    "max_device_hours": "device_hours",
}
"""Criteria with the quantity that each of them limits: the first from below, the others from above."""


@dataclass(frozen=True)
class Answers:
    """The answer of each draw, and the counts that were taken on the way to it.

    Args:
        index: Index of the count that the rule prefers, or ``NONE``; shape (draws,).
        steps: Counts that were worth more than those before them; shape (draws, counts).
        met: Counts that miss no criterion; shape (draws, counts).
    """

    index: Indices
    steps: Mask
    met: Mask


def is_shown(at_least: Any, threshold: float) -> Any:
    """Return whether a ratio is shown to be above a threshold: the lower end of its interval is.

    Args:
        at_least: Lower ends, or ratios that are known; of any shape.
        threshold: Ratio to compare with.
    """
    return at_least > threshold * (1 + ROUNDING)


def missed(rule: DecisionRule, values: Mapping[str, Any]) -> dict[str, Mask]:
    """Return where each given criterion is missed; an unknown value misses it.

    Args:
        rule: The criteria.
        values: Arrays of the quantities in ``CRITERIA``, all of one shape.
    """
    found = {}
    for criterion, quantity in CRITERIA.items():
        limit, value = getattr(rule, criterion), np.asarray(values[quantity], dtype=np.float64)
        if limit is not None:
            least = criterion == "min_efficiency"
            found[criterion] = ~(value >= limit - ROUNDING if least else value <= limit + ROUNDING)
    return found


def walk(rule: DecisionRule, met: Mask, power: Array, is_worth_it: Callable[[int, Indices], Mask]) -> Answers:
    """Return the counts that the rule prefers.

    With a deadline, the fewest devices; with device-hours or an efficiency, the most that are shown to be
    worth having; without a criterion, those of them with the largest speedup x efficiency.

    Args:
        rule: The criteria.
        met: Counts that miss nothing, fewest devices first; shape (draws, counts).
        power: Speedup x efficiency, likewise.
        is_worth_it: Gets a count and the last count that each draw has taken, shape (draws,), as indices;
            returns whether the first is shown to be faster by a gain worth having. Not read if none is taken.
    """
    draws, counts = met.shape
    steps, last = np.zeros_like(met), np.full(draws, NONE)
    if rule.deadline_minutes is not None:
        return Answers(np.where(met.any(axis=1), met.argmax(axis=1), NONE), steps, met)
    for index in range(counts):
        steps[:, index] = met[:, index] & ((last == NONE) | is_worth_it(index, last))
        last = np.where(steps[:, index], index, last)
    if rule.without_criterion:
        # of equal ones the fewest devices
        last = np.where(last == NONE, NONE, np.where(steps, power, -np.inf).argmax(axis=1))
    return Answers(last, steps, met)
