"""Real trainings of real ranks, made once for all tests that look at them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.distributed.runs import Runs


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path, preloaded_python: Path) -> Iterator[Runs]:
    """Starts runs below the test's folder; if it is marked ``starts_ranks``, each rank loads torch itself."""
    starts_ranks = request.node.get_closest_marker("starts_ranks") is not None
    started = Runs(tmp_path, python=None if starts_ranks else preloaded_python)
    yield started
    started.close()


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Iterator[Runs]:
    """Starts runs that several tests of a file look at."""
    started = Runs(tmp_path_factory.mktemp("shared"), python=preloaded_python)
    yield started
    started.close()
