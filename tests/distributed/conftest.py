"""Real trainings of real ranks, made once for all tests that look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.cores import skip_without_two_cores
from tests.distributed.interrupted_runs import Kill, Runs
from tests.distributed.trainings import Place, Trainings, trainings_in
from tests.distributed.whole_runs import RANK_PYTHON, Start, clean_up, starter


@pytest.fixture(scope="session")
def trained_for(tmp_path_factory: pytest.TempPathFactory, accelerator: str) -> Callable[[Place], Trainings]:
    """Every variant, for CPUs or for a GPU."""
    skip_without_two_cores()

    @cache
    def trained(place: Place) -> Trainings:
        chosen = accelerator if place == "gpu" else "cpu"
        return trainings_in(tmp_path_factory.mktemp(place), place, chosen)

    return trained


@pytest.fixture(scope="session", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def trained(request: pytest.FixtureRequest, trained_for: Callable[[Place], Trainings]) -> Trainings:
    """Every variant: on CPUs, and on a GPU where there is one."""
    return trained_for(request.param)


@pytest.fixture(autouse=True)
def _preloaded(
    request: pytest.FixtureRequest, preloaded_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks do not load torch each, but in tests that are marked ``starts_ranks``."""
    if request.node.get_closest_marker("starts_ranks"):
        return
    monkeypatch.setenv(RANK_PYTHON, str(preloaded_python))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts whole runs below the test's folder."""
    begin, started = starter(tmp_path)
    yield begin
    clean_up(started)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Starts runs that are to be ended, below the test's folder."""
    started = Runs(tmp_path)
    yield started
    started.close()


@pytest.fixture(scope="session")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of a run on so many devices that nothing disturbs."""
    runs = Runs(tmp_path_factory.mktemp("calm"))

    @cache
    def completed(devices: int) -> Path:
        try:
            return runs.complete("calm", devices)
        finally:
            runs.close()

    return completed


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run on one device leaves that was asked to end at its step 50; `Runs.begun` copies it."""
    runs = Runs(tmp_path_factory.mktemp("stopped"))
    try:
        return runs.kill_on_the_way("stopped", 1, Kill(50, "stop"))[0].folder
    finally:
        runs.close()
