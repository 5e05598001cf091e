"""Tests marked `gpu`: skipped where there is no GPU, rehearsed on the CPU, kept in a page.

pytest -m gpu FOLDERS              on a machine with a GPU
pytest -m gpu --accelerator cpu    a rehearsal: all that does not need CUDA itself
pytest -m gpu --gpu-page FILE      writes what they have shown into docs/gpu.md
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.gpu.page import describe_machine, gpu_missing, write_page
from tests.marked_outcomes import Collector, Shown, words_of

PROPERTY = "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gpu", "tests marked gpu")
    group.addoption(
        "--accelerator",
        choices=["cuda", "cpu"],
        default="cuda",
        help="what tests marked gpu train on: cpu rehearses them where there is no GPU",
    )
    group.addoption("--gpu-page", type=Path, metavar="FILE", help="write what they have shown into this page")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark and, in the process that gets the reports of all tests, the collector."""
    file: Path | None = config.getoption("--gpu-page")
    if file is None or hasattr(config, "workerinput"):
        return
    file = file.absolute()

    def write(shown: Sequence[Shown]) -> None:
        # nothing has run where all were skipped, and an earlier table is better than none
        if any(test.outcome in {"passed", "failed"} for test in shown):
            write_page(file, describe_machine(config.getoption("--accelerator")), shown)

    config.pluginmanager.register(Collector(PROPERTY, write), "gpu-page")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no GPU, with the reason."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    # asking is not free: CUDA's libraries are loaded
    if not marked or config.getoption("--accelerator") == "cpu" or not (why := gpu_missing()):
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(trylast=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test marked `gpu` its words, which go with its reports to the collector."""
    if item.get_closest_marker("gpu"):
        parameters = item.name.partition("[")[2].removesuffix("]")
        words = words_of(item)
        item.user_properties.append((PROPERTY, [f"{words} ({parameters})" if parameters else words]))


@pytest.fixture(scope="session")
def accelerator(pytestconfig: pytest.Config) -> str:
    """What tests marked `gpu` train on: ``cuda``, or ``cpu`` in a rehearsal."""
    return str(pytestconfig.getoption("--accelerator"))


@pytest.fixture
def needs_cuda(accelerator: str) -> None:
    """Leave out of a rehearsal what asks CUDA or NVML itself."""
    if accelerator == "cpu":
        pytest.skip("asks the GPU itself: no rehearsal on a CPU")
