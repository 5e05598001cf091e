"""Real Snakemake on the real workflow, in new folders."""

from pathlib import Path

import pytest
from tests.workflow.workplace import TINY, FinishedStudy, LoginNode, Workplace


@pytest.fixture
def workplace(tmp_path: Path, preloaded_python: Path) -> Workplace:
    """An empty folder."""
    return Workplace(tmp_path, preloaded_python)


@pytest.fixture
def login_node(tmp_path: Path, preloaded_python: Path) -> LoginNode:
    """A fresh checkout on a machine without Slurm."""
    return LoginNode.at(tmp_path, preloaded_python)


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> FinishedStudy:
    """A tiny real study: three runs of one device; the terminal shows it as with the profiles."""
    workplace = Workplace(tmp_path_factory.mktemp("study"), preloaded_python)
    outcome = workplace.snakemake("--scheduler", "greedy", "--show-failed-logs", config=TINY)
    assert outcome.code == 0, outcome.text
    return FinishedStudy(workplace, outcome)
