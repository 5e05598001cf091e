"""Comparability of two runs: a speedup, the gain of an option, or no ratio at all. Pure functions of numbers.

A speedup says what devices bring, so everything else must be equal. Whatever differs is named with both
values; at equal devices the ratio is then the gain of an option, otherwise it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal, NamedTuple

import pandas as pd

from scalewise.analysis.comparison.fingerprint import (
    IMPORTED,
    NOT_RECORDED,
    imported_elsewhere,
    may_lack,
)
from scalewise.analysis.statistics.intervals import (
    ENOUGH_REPEATS,
    Interval,
    difference_of,
    mean_interval,
)
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import as_in_yaml, format_ratio, percent, pluralize
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


@dataclass(frozen=True)
class Measured:
    """One side of a comparison: a run, a point, or figures that somebody published.

    Args:
        devices: World size.
        throughput: Samples/s; None where it is not known.
        conditions: All that is known of how it was measured.
        final_accuracy: Fraction; an interval where there are repeats.
        wall_seconds: Wall time of the whole run; stands in where a throughput is not known.
    """

    devices: int
    throughput: float | None
    conditions: Mapping[str, object]
    final_accuracy: Interval | float | None = None
    wall_seconds: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The verdict on two measurements: kind of ratio, its value, and all that differs.

    Args:
        kind: ``speedup``: devices alone differ. ``option``: other things differ, at equal devices.
            ``repeat``: nothing differs. ``refused``: devices and other things differ, or there are no
            figures; then there is no ratio.
        first: The reference.
        second: The measurement set against it.
        ratio: Speed of the second over that of the first, above 1 where the second is faster.
        of_walls: The ratio is of wall times, for want of throughput.
        differing: All that differs beside devices.
        accuracy: Both accuracies where the second one is lower beyond doubt; None elsewhere.
    """

    kind: Literal["speedup", "option", "repeat", "refused"]
    first: Measured
    second: Measured
    ratio: float | None
    of_walls: bool
    differing: list[Difference]
    accuracy: tuple[float, float] | None

    @property
    def efficiency(self) -> float | None:
        """Share of the ideal speedup; None for anything but a speedup."""
        if self.kind != "speedup" or self.ratio is None:
            return None
        return self.ratio * self.first.devices / self.second.devices

    def sentence(self) -> str:
        """The comparison in words that the two measurements allow."""
        text = f"{self._claim()}."
        if self.efficiency is not None and self.efficiency > 1:
            text += " More than ideal is an error until it is explained."
        if self.of_walls and self.ratio is not None:
            text += " The ratio is of walls, which include start-up."
        return text

    def _claim(self) -> str:
        fewer, more = count_devices(self.first.devices), count_devices(self.second.devices)
        over = "as fast as" if self.of_walls else "the throughput of"
        if self.kind == "refused":
            unlike = list(self.differing)
            if unlike and self.accuracy:
                unlike.append(Difference("accuracy", *map(percent, self.accuracy)))
            why = "; ".join(map(str, unlike)) or "throughput and wall time of one of them are not known"
            return f"No speedup joins {fewer} and {more}: {why}"
        assert self.ratio is not None, "what is not refused has a ratio"
        lost = ""
        if self.accuracy:
            before, after = self.accuracy
            points = 100 * (before - after)
            lost = f"; {points:.1f} points of accuracy lost ({percent(before)} to {percent(after)})"
        gain = f"{format_ratio(self.ratio)}x {over}"
        if self.efficiency is not None:
            return f"{more}: {gain} {self.first.devices}, {percent(self.efficiency)} of ideal{lost}"
        if self.kind == "option":
            where = "; ".join(map(str, self.differing))
            return f"On {more}, {gain} the other where {where}: an option's gain, not scaling{lost}"
        return f"On {more}, {gain} a run under equal conditions{lost}"


def compare(first: Measured, second: Measured) -> Comparison:
    """Set a measurement against a reference.

    Args:
        first: The reference: the baseline, or the option's first value.
        second: The measurement set against it.
    """
    differing = differences(first.conditions, second.conditions)
    ratio, of_walls = _ratio(first, second)
    kind: Literal["speedup", "option", "repeat", "refused"]
    if ratio is None or (differing and first.devices != second.devices):
        kind, ratio = "refused", None
    elif differing:
        kind = "option"
    else:
        kind = "speedup" if first.devices != second.devices else "repeat"
    accuracy = _lower_accuracy(first.final_accuracy, second.final_accuracy)
    return Comparison(kind, first, second, ratio, of_walls, differing, accuracy)


def _ratio(first: Measured, second: Measured) -> tuple[float | None, bool]:
    if first.throughput and second.throughput:
        return second.throughput / first.throughput, False
    if first.wall_seconds and second.wall_seconds:
        return first.wall_seconds / second.wall_seconds, True
    return None, False


def _lower_accuracy(
    first: Interval | float | None, second: Interval | float | None
) -> tuple[float, float] | None:
    if first is None or second is None:
        return None
    before, after = (
        mean_interval([side]) if isinstance(side, (int, float)) else side for side in (first, second)
    )
    return (before.estimate, after.estimate) if _is_lower(before, after) else None


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
