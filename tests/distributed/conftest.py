"""Real trainings of real ranks, made once for all tests that look at them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cores import skip_without_two_cores
from tests.distributed.trainings import Trainings, train_all
from tests.distributed.whole_runs import Start, clean_up, starter


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    skip_without_two_cores()
    return train_all(tmp_path_factory.mktemp("trainings"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts whole runs below the test's folder."""
    begin, started = starter(tmp_path)
    yield begin
    clean_up(started)
