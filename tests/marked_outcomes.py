"""How the marked tests of one call of pytest end and what they measure, kept for the page made of it.

A test adds a figure, and a message that a user gets, by pytest's own fixture: `record_property("figure",
"50 of 50 resumed")`, `record_property("message", "experiments.yaml:3: ...")`.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

Record = Callable[[str, object], None]
"""pytest's ``record_property``."""

Outcome = Literal["passed", "failed", "skipped", "not run"]


@dataclass(frozen=True)
class Shown:
    """What one marked test shows.

    Attributes:
        test: pytest's name of it, file first.
        words: What it shows, as a clause.
        marks: Arguments of its marks.
        reason: Why it was skipped, or how it failed.
        figures: What it measured or counted.
        messages: What a user reads.
    """

    test: str
    words: str
    marks: tuple[Any, ...] = ()
    outcome: Outcome = "not run"
    reason: str = ""
    figures: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The test's file, from the root of the repository."""
        return self.test.partition("::")[0]


class Collector:
    """Keep how the tests of a call end, and write the page after each: a call may be cut off.

    Args:
        name: Property of the tests that it keeps: their words, then the arguments of their marks.
        write: Writes the page of them.
    """

    def __init__(self, name: str, write: Callable[[Sequence[Shown]], object]) -> None:
        self._name, self._write = name, write
        self._shown: dict[str, Shown] = {}

    @property
    def shown(self) -> list[Shown]:
        """What there is so far, in the order of the call."""
        return list(self._shown.values())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how the setup of a test, the test or its teardown ended."""
        properties: dict[str, Any] = dict(report.user_properties)
        if self._name not in properties:
            return
        words, *marks = properties[self._name]
        before = self._shown.get(report.nodeid, Shown(report.nodeid, words, tuple(marks)))
        outcome, reason = before.outcome, before.reason
        if report.failed:
            outcome, reason = "failed", _reason(report)
        elif report.skipped and outcome != "failed":
            outcome, reason = "skipped", _reason(report)
        elif report.when == "call":
            outcome = "passed"
        figures, messages = (
            tuple(str(value) for name, value in report.user_properties if name == kind)
            for kind in ("figure", "message")
        )
        self._shown[report.nodeid] = replace(
            before, outcome=outcome, reason=reason, figures=figures, messages=messages
        )
        self._write(self.shown)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash is not None else report.longrepr).splitlines()
    return lines[0] if lines else ""


def words_of(item: pytest.Item) -> str:
    """Return the first paragraph of a test's docstring, or its name in words."""
    function = getattr(item, "function", None)
    if docstring := inspect.getdoc(function) if function is not None else None:
        return " ".join(docstring.partition("\n\n")[0].split()).removesuffix(".")
    return item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
