"""Tests marked `gpu`: skipped where there is no GPU, rehearsed on the CPU, kept in a page.

pytest -m gpu FOLDERS              on a machine with a GPU
pytest -m gpu --accelerator cpu    a rehearsal: all that does not need CUDA itself
pytest -m gpu --gpu-page FILE      writes what they have shown into docs/gpu.md
"""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.marked_outcomes import Collector, Shown, words_of
from tests.paths import SCRIPTS

from scalewise.config.site import cpu_model
from scalewise.measure.origins import versions
from scalewise.ranks.monitoring.environments import source_version

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


BEGIN, END = "<!-- begin: made by pytest -m gpu -->", "<!-- end: made by pytest -m gpu -->"


def write_page(page: Path, machine: str, tests: Sequence[Shown]) -> None:
    """Put what tests have shown in place of what earlier ones had.

    Raises:
        ValueError: the page does not say where it goes.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the line {BEGIN!r} or {END!r}, between which the tests stand")
    page.write_text(f"{before}{BEGIN}\n\n{outcomes(machine, tests)}\n\n{END}{after}", encoding="utf-8")


def outcomes(machine: str, tests: Sequence[Shown]) -> str:
    """Return how tests ended, what they measured, and on which machine, as Markdown.

    Each test that measured something or failed has a line; the others are counted.
    """
    ended = Counter(test.outcome for test in tests)
    lines = [", ".join(f"{number} {outcome}" for outcome, number in ended.items()) + ".", ""]
    lines += ["| what was shown | outcome | measured |", "|---|---|---|"]
    for test in tests:
        if test.figures or test.outcome == "failed":
            outcome = f"**failed**: {test.reason}" if test.outcome == "failed" else test.outcome
            cells = (test.words, outcome, "; ".join(test.figures))
            # a bar would begin another cell
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    reasons = Counter(
        test.reason or "no time was left" for test in tests if test.outcome in {"skipped", "not run"}
    )
    lines += ["", *(f"- {number} tests not run: {reason}" for reason, number in reasons.items())]
    lines += ["", f"{machine}."]
    return "\n".join(lines)


def gpu_missing() -> str:
    """Say why no GPU can be used; empty where one can."""
    if torch.cuda.is_available():
        return ""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return f"no GPU: torch {torch.__version__}, {built}, sees none (CUDA_VISIBLE_DEVICES={visible})"


def describe_machine(accelerator: Literal["cpu", "cuda"]) -> str:
    """Return date, commit, device and versions."""
    device = torch.cuda.get_device_name(0) if accelerator == "cuda" else "none: a rehearsal on the CPU"
    found = {"commit": source_version(SCRIPTS) or "unknown", "GPU": device, "CPU": cpu_model()}
    found |= versions(accelerator == "cuda")
    return f"{datetime.now(UTC):%Y-%m-%d}, " + ", ".join(f"{name} {value}" for name, value in found.items())
