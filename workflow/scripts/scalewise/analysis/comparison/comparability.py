"""The differences of two runs, with both values, and whether an accuracy is lost beyond doubt.

A speedup says what devices bring, so everything else must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

import pandas as pd

from scalewise.analysis.comparison.fingerprint import (
    IMPORTED,
    NOT_RECORDED,
    imported_elsewhere,
    may_lack,
)
from scalewise.analysis.statistics import (
    ENOUGH_REPEATS,
    Interval,
    difference_of,
)
from scalewise.plan.formatting import as_in_yaml, pluralize
from scalewise.records import Provenance

NOT_IMPORTED = "not imported"

MAX_DIFFERENCES = 3
"""Differences in one sentence; fingerprints.json has all."""

CLEAR_ACCURACY_LOSS = 0.02
"""Least difference of two accuracies without intervals that counts as a loss. The draw of 10,000 test images
alone moves the difference of two by up to 0.014 (95 %, binomial)."""


class Difference(NamedTuple):
    """One condition in which two runs differ.

    Args:
        field: The user's word for it.
        first: Value in the first run, the reference.
        second: Value in the second run.
    """

    field: str
    first: str
    second: str

    def __str__(self) -> str:
        if not self.is_file:
            return f"{self.field} is {self.second}, not {self.first}"
        if NOT_IMPORTED in (self.first, self.second):
            return f"{self._file} was imported by some runs only"
        return f"{self._file} differs"

    @property
    def is_file(self) -> bool:
        """Whether the condition is the contents of a file that a program imports."""
        return self.field.startswith(IMPORTED)

    @property
    def second_side(self) -> str:
        """``precision fp16``: the condition of the second run, for the name of its series."""
        if not self.is_file:
            return f"{self.field} {self.second}"
        word = {self.first: "with", self.second: "without"}.get(NOT_IMPORTED, "another")
        return f"{word} {self._file}"

    @property
    def _file(self) -> str:
        """Name and folder of the file: the whole path is long, and hashes help nobody."""
        return "/".join(PurePath(self.field.removeprefix(IMPORTED)).parts[-2:])


def differences(first: Mapping[str, object], second: Mapping[str, object]) -> list[Difference]:
    """The conditions that differ, in the order of the first, imported files last.

    What a record could not hold differs from nothing.
    """
    elsewhere = imported_elsewhere(first, second)
    found = [
        Difference(
            key,
            *(
                as_in_yaml(side[key]) if key in side else NOT_IMPORTED if key in elsewhere else NOT_RECORDED
                for side in (first, second)
            ),
        )
        for key in dict.fromkeys((*first, *second))
        if (key in first and key in second) or key in elsewhere or not may_lack(key)
    ]
    return sorted(
        (difference for difference in found if difference.first != difference.second),
        key=lambda difference: difference.is_file,
    )


def named(differing: Iterable[Difference]) -> str:
    """``precision is fp16, not fp32; model.py differs; and 2 other files``; empty without a difference."""
    distinct = sorted(dict.fromkeys(differing), key=lambda difference: difference.is_file)
    shown, others = distinct[:MAX_DIFFERENCES], distinct[MAX_DIFFERENCES:]
    kind = "other file" if all(difference.is_file for difference in others) else "other difference"
    more = [f"and {pluralize(str(len(others)), kind)}"] if others else []
    return "; ".join([*map(str, shown), *more])


LEAST_LOSS = 0.05
"""Percentage points of accuracy below which a loss is not named."""


def _is_lower(before: Interval, after: Interval) -> bool:
    """Whether an accuracy is lower beyond doubt: by Welch's 95 % interval of the difference.

    Too few runs for such an interval must differ by what a draw of test images cannot explain.
    """
    if min(before.n, after.n) < ENOUGH_REPEATS or math.isnan(before.low + after.low):
        return before.estimate - after.estimate > CLEAR_ACCURACY_LOSS
    return difference_of(before, after).low > 0


def origin_cautions(origins: Sequence[Provenance]) -> list[str]:
    """A sentence for each difference among the runs of an experiment for which no speedup is refused."""
    found = {
        "the commit of the workflow": {origin.commit or NOT_RECORDED for origin in origins},
        "the operating system": {
            environment.operating_system for origin in origins for environment in origin.environments
        },
    }
    return [
        f"The runs differ in {name} ({'; '.join(sorted(values))}). Speedups join them all the same: make "
        "them again where a figure surprises."
        for name, values in found.items()
        if len(values) > 1
    ]


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
