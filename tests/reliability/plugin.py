"""Collects, with `pytest --reliability FILE`, what tests marked `fault` or `refuses` have shown.

A mark that names no fault and no input of the catalogue stops pytest at collection, whatever the option.
A test tells a figure, and what a user is told, by pytest's own fixture: `record_property("figure", "50 of 50
resumed")`, `record_property("message", "experiments.yaml:3: ...")`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.reliability.catalogue import BAD_INPUTS, FAULTS
from tests.reliability.evidence import Evidence, Outcome, Shown
from tests.words_of_tests import words_of

NUMBERS = tuple(fault.number for fault in FAULTS)
KEYS = tuple(given.key for given in BAD_INPUTS)
MARKS = "fault or refuses"
"""The property under which a test's words, faults and inputs go with its reports."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that names the file."""
    parser.addoption(
        "--reliability",
        type=Path,
        metavar="FILE",
        help="write what tests of faults and of inputs to refuse have shown to this file, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marks, and the collector where it is asked for."""
    config.addinivalue_line("markers", "fault(*numbers): shows what happens under these faults")
    config.addinivalue_line("markers", "refuses(*keys): shows that these inputs are refused")
    # of several processes that run tests, the one that hears of all of them writes
    if (file := config.getoption("--reliability")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(file.absolute()), "reliability-collector")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Checks the marks of every test, also of those that -m leaves out later.

    Raises:
        pytest.UsageError: A mark names what the catalogue does not hold, or nothing.
    """
    problems = dict.fromkeys(problem for item in items for problem in _problems(item))
    if problems:
        raise pytest.UsageError("\n".join(problems))
    for item in items:
        faults, inputs = _marked(item, "fault"), _marked(item, "refuses")
        if faults or inputs:
            item.user_properties.append((MARKS, (words_of(item), faults, inputs)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps what a test tells as text: an exception, for one, does not go from one process to another."""
    report = yield
    report.user_properties = [
        (name, value if name == MARKS else str(value)) for name, value in report.user_properties
    ]
    return report


class Collector:
    """Keeps what the tests of one call have shown, and writes it at the end.

    Args:
        file: Where to.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.shown: dict[str, Shown] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes every marked test of this call; none has run yet."""
        for item in session.items:
            self._note(item.nodeid, item.user_properties)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes how one part of a test ended: its setup, itself, or what comes after it."""
        # a test that another process runs is heard of by its reports alone
        self._note(report.nodeid, report.user_properties)
        before = self.shown.get(report.nodeid)
        if before is None:
            return
        outcome, reason = _outcome(before, report)
        self.shown[report.nodeid] = replace(
            before,
            outcome=outcome,
            reason=reason,
            figures=_told(report, "figure"),
            messages=_told(report, "message"),
        )

    def _note(self, nodeid: str, properties: Iterable[tuple[str, Any]]) -> None:
        for words, faults, inputs in (value for name, value in properties if name == MARKS):
            self.shown.setdefault(nodeid, Shown(nodeid, words, tuple(faults), tuple(inputs)))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Writes the evidence after each test: a call that takes hours may be killed."""
        if nodeid in self.shown:
            Evidence.of(list(self.shown.values())).write(self.file)

    def pytest_sessionfinish(self) -> None:
        """Writes the evidence, also where no test has run."""
        Evidence.of(list(self.shown.values())).write(self.file)


def _outcome(before: Shown, report: pytest.TestReport) -> tuple[Outcome, str]:
    if report.failed or before.outcome == "failed":
        return "failed", ""
    if report.skipped:
        # a test that is expected to fail is reported as skipped, and says why under another name
        told = getattr(report, "wasxfail", None)
        if told is None:
            told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return "skipped", told.removeprefix("Skipped: ")
    if report.when == "call":
        return "passed", ""
    return before.outcome, before.reason


def _told(report: pytest.TestReport, property_name: str) -> tuple[str, ...]:
    return tuple(str(value) for name, value in report.user_properties if name == property_name)


def _marked(item: pytest.Item, name: str) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(value for mark in item.iter_markers(name) for value in mark.args))


def _problems(item: pytest.Item) -> Iterable[str]:
    known: tuple[tuple[str, Sequence[int | str], str], ...] = (
        ("fault", NUMBERS, f"numbers from 1 to {len(FAULTS)}"),
        ("refuses", KEYS, "keys of BAD_INPUTS"),
    )
    for name, values, words in known:
        for mark in item.iter_markers(name):
            if not mark.args or mark.kwargs:
                yield f"{item.nodeid}: the mark {name} takes {words}, as in {name}({_example(name)})."
            for value in mark.args:
                if isinstance(value, bool) or value not in values:
                    yield (
                        f"{item.nodeid}: the mark {name}({value!r}) names nothing in "
                        f"tests/reliability/catalogue.py. It takes {words}."
                    )


def _example(name: str) -> str:
    return "10" if name == "fault" else f'"{BAD_INPUTS[0].key}"'
