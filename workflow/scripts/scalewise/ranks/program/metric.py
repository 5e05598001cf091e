"""Read a program's metric, a number in the lines that it prints."""

from __future__ import annotations

import math
import re

from scalewise.config.program import Metric
from scalewise.ranks.program.failure import ProgramError

_NUMBER = r"\d+(?:_\d+)*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
_WITH_COMMA = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+,\d+(?![\d.])"
# a hyphen after a word or a number is no sign: resnet-18, 2026-11-28
_TOKEN = re.compile(rf"(?:(?<![\w.)])[-+])?(?:(?P<comma>{_WITH_COMMA})|{_NUMBER})(?P<percent>\s?%)?")
_SHOWN = 200
"""Characters of a line that a message shows."""


class MetricReader:
    """Reads the whole number that a metric's group touches, or refuses the line.

    Args:
        metric: The pattern and the goal.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._in_percent: bool | None = None
        self.first_line = ""
        """The line of the first number, and the number; empty before it."""

    def read(self, line: str) -> list[float]:
        """Return the finite numbers of a line, in the order of their matches.

        Raises:
            ProgramError: Part of a number would be read, or numbers of two scales.
        """
        found = []
        line = line.replace("\N{MINUS SIGN}", "-")
        for match in re.finditer(self._metric.pattern, line):
            if match[1] is None:  # an optional group
                continue
            value = self._number(line, *match.span(1))
            if math.isfinite(value):  # the run's record is JSON, which has no other numbers
                found.append(value)
                self.first_line = self.first_line or f"{line.strip()[:_SHOWN]!r} as {value:g}"
        return found

    def _number(self, line: str, start: int, end: int) -> float:
        """Return the number that a part of a line touches; NaN if it touches none."""
        tokens = [each for each in _TOKEN.finditer(line) if each.start() < end and start < each.end()]
        if not tokens:
            return math.nan
        number = tokens[0][0].removesuffix(tokens[0]["percent"] or "")
        pattern, shown = self._metric.pattern, repr(line.strip()[:_SHOWN])
        group = line[start:end]
        if len(tokens) > 1:
            raise _refusal(pattern, group, shown, "is more than one number", "Let the group end earlier.")
        # a pattern that names a comma knows what it separates
        if tokens[0]["comma"]:
            if "," not in pattern:
                raise _refusal(
                    pattern, group, shown, f"may be a part of {number}",
                    "Print it with a decimal point and without a comma. If the comma separates two values, "
                    "name it in the pattern.",
                )  # fmt: skip
            number = group
        in_percent = bool(tokens[0]["percent"])
        goal = self._metric.at_least
        if in_percent and goal is not None and 0 < goal <= 1:
            raise _refusal(
                pattern, group, shown, f"is in percent, and at_least is {goal:g}",
                f"Write `at_least: {100 * goal:g}`.",
            )  # fmt: skip
        if self._in_percent not in (None, in_percent):
            raise _refusal(
                pattern, group, shown, f"is {'' if in_percent else 'not '}in percent, unlike those before",
                "Let the pattern fit one of the two.",
            )  # fmt: skip
        self._in_percent = in_percent
        try:
            return float(number)
        except ValueError:  # the part that the pattern takes of a number with a comma
            return math.nan


def _refusal(pattern: str, group: str, line: str, why: str, fix: str) -> ProgramError:
    return ProgramError(
        f"metric.pattern {pattern!r} reads {group!r} from the line {line}, which {why}. {fix}", permanent=True
    )
