"""Write docs/reliability.md from what tests marked `fault` or `refuses` show: `pytest --reliability FILE`.

A mark that names nothing in the catalogue stops pytest at collection, whatever the option.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.marked_outcomes import Collector, Shown, words_of
from tests.reliability.catalogue import FAULTS, GROUPS
from tests.reliability.page import page, problems

MARKS = {
    "fault": lambda value: type(value) is int and 0 < value <= len(FAULTS),
    "refuses": lambda value: str(value).partition(": ")[0] in GROUPS,
}
"""Whether a value is an argument of a mark."""
PROPERTY = "fault or refuses"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the page."""
    words = "write what tests of faults and of inputs to refuse have shown into this page"
    parser.addoption("--reliability", type=Path, metavar="FILE", help=words)


def pytest_configure(config: pytest.Config) -> None:
    """Register the collector, in the process that gets the reports of all tests."""
    if (file := config.getoption("--reliability")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ReliabilityPage(file.absolute()), "reliability-page")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Check the marks of every test, also of those that -m leaves out later.

    Raises:
        pytest.UsageError: A mark names what the catalogue does not hold, or nothing.
    """
    if wrong := dict.fromkeys(line for item in items for line in _unknown(item)):
        raise pytest.UsageError("\n".join(wrong))
    for item in items:
        if marks := dict.fromkeys(value for name in MARKS for value in _marked(item, name)):
            item.user_properties.append((PROPERTY, [words_of(item), *marks]))


class ReliabilityPage(Collector):
    """Write the page, and end pytest with 1 if something on it is not shown."""

    def __init__(self, file: Path) -> None:
        def write(shown: Sequence[Shown]) -> None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(page(shown), encoding="utf-8")

        super().__init__(PROPERTY, write)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Change the exit status of a call that is not whole."""
        if problems(self.shown) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each fault and input that is not shown."""
        for line in problems(self.shown):
            terminalreporter.write_line(line)


def _marked(item: pytest.Item, name: str) -> Iterator[Any]:
    return (value for mark in item.iter_markers(name) for value in mark.args)


def _unknown(item: pytest.Item) -> Iterator[str]:
    for name, is_known in MARKS.items():
        for mark in item.iter_markers(name):
            if not mark.args or not all(map(is_known, mark.args)):
                yield f"{item.nodeid}: {name}{mark.args} names nothing in tests/reliability/catalogue.py."
