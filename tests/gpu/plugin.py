"""Tests marked `gpu`: skipped where there is no GPU, rehearsed on the CPU, kept in a page.

    pytest -m gpu                      on a machine with a GPU
    pytest -m gpu --accelerator cpu    a rehearsal: all that does not need CUDA itself
    pytest -m gpu --gpu-page FILE      writes what they have shown into docs/gpu.md

A test tells a figure by pytest's own fixture: `record_property("figure", "3.02 copies")`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pytest
from tests.gpu.page import Check, describe_machine, gpu_missing, write_checks
from tests.words_of_tests import words_of

FIGURE, WORDS = "figure", "gpu words"

TESTS = Path(__file__).parents[1]
FOLDERS = tuple(TESTS / name for name in ("gpu", "distributed", "unit/training"))
"""Folders with tests marked `gpu`: `-m gpu` reads no others, and needs nothing that only others import."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("gpu", "tests marked gpu")
    group.addoption(
        "--accelerator",
        choices=["cuda", "cpu"],
        default="cuda",
        help="what tests marked gpu train on: cpu rehearses them where there is no GPU",
    )
    group.addoption("--gpu-page", type=Path, metavar="FILE", help="write what they have shown into this page")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark and, in the process that hears of all tests, the collector where it is asked for."""
    config.addinivalue_line("markers", "gpu: needs a GPU, and is skipped where there is none")
    file: Path | None = config.getoption("--gpu-page")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(file.absolute(), config), "gpu-collector")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out what `-m gpu` would only deselect: a machine with a GPU may lack what it imports."""
    if config.option.markexpr != "gpu" or not collection_path.is_relative_to(TESTS):
        return None
    related = any(
        collection_path.is_relative_to(folder) or folder.is_relative_to(collection_path) for folder in FOLDERS
    )
    return None if related else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where there is no GPU, with the reason.

    Raises:
        pytest.UsageError: One is where `-m gpu` would not look for it.
    """
    marked = [item for item in items if item.get_closest_marker("gpu")]
    for item in marked:
        if item.path.is_relative_to(TESTS) and not any(map(item.path.is_relative_to, FOLDERS)):
            raise pytest.UsageError(f"{item.nodeid} is marked gpu: add its folder to FOLDERS in {__file__}")
    # asking is not free: CUDA's libraries are loaded
    if not marked or config.getoption("--accelerator") == "cpu" or not (why := gpu_missing()):
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def accelerator(pytestconfig: pytest.Config) -> str:
    """What tests marked `gpu` train on: ``cuda``, or ``cpu`` in a rehearsal."""
    return str(pytestconfig.getoption("--accelerator"))


@pytest.fixture
def needs_cuda(accelerator: str) -> None:
    """Leaves out of a rehearsal what asks CUDA or NVML itself."""
    if accelerator == "cpu":
        pytest.skip("asks the GPU itself: no rehearsal on a CPU")


class Collector:
    """Keeps how the tests of one call ended, and writes it after each: a call may be cut off.

    Args:
        file: Where to.
        config: Says what they train on.
    """

    def __init__(self, file: Path, config: pytest.Config) -> None:
        self._file, self._config = file, config
        self._checks: dict[str, Check] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Notes every test of this call; none has run yet."""
        self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Notes the same where other processes run them."""
        self._expect(ids)

    def _expect(self, ids: Sequence[str]) -> None:
        for test in ids:
            words = test.rpartition("::")[2].removeprefix("test_").replace("_", " ")
            self._checks.setdefault(test, Check(test, words))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes how one part of a test ended: its setup, itself, or what comes after it."""
        words = next((str(value) for name, value in report.user_properties if name == WORDS), None)
        if words is None:
            return
        before = replace(self._checks.get(report.nodeid, Check(report.nodeid, words)), words=words)
        figures = tuple(str(value) for name, value in report.user_properties if name == FIGURE)
        after = replace(before, figures=figures)
        if report.failed:
            after = replace(after, outcome="failed", reason=_last_line(report))
        elif report.skipped and before.outcome != "failed":
            after = replace(after, outcome="skipped", reason=_last_line(report))
        elif report.when == "call":
            after = replace(after, outcome="passed", seconds=round(report.duration, 2))
        self._checks[report.nodeid] = after

    def pytest_runtest_logfinish(self) -> None:
        """Writes what there is so far."""
        self.write()

    def pytest_sessionfinish(self) -> None:
        """Writes all."""
        self.write()

    def write(self) -> None:
        """Put these checks into the page."""
        # nothing has run where all were skipped, and an earlier table is better than none
        if any(check.outcome in {"passed", "failed"} for check in self._checks.values()):
            write_checks(self._file, self._machine, list(self._checks.values()))

    @cached_property
    def _machine(self) -> dict[str, str]:
        try:
            return describe_machine(self._config.getoption("--accelerator"))
        except Exception as error:  # noqa: BLE001  what the tests have shown is kept all the same
            return {"GPU": f"could not be described: {type(error).__name__}: {error}"}


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Gives each test marked `gpu` its words, which go with its reports to the collector."""
    if item.get_closest_marker("gpu"):
        parameters = item.name.partition("[")[2].removesuffix("]")
        words = words_of(item)
        item.user_properties.append((WORDS, f"{words} ({parameters})" if parameters else words))


def _last_line(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    told: Sequence[str] = str(crash.message if crash is not None else report.longrepr).splitlines()
    return told[0] if told else ""
