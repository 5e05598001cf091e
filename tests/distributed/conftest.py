"""Real trainings of real ranks, made once for all tests that look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.distributed.runs import (
    PERILOUS,
    PERILOUS_LIMITS,
    Finished,
    Kill,
    Runs,
)
from tests.distributed.trainings import Place, Trainings, trainings_in
from tests.machine import skip_without_two_cores


@pytest.fixture(scope="session")
def trained_for(
    tmp_path_factory: pytest.TempPathFactory, accelerator: str, preloaded_python: Path
) -> Callable[[Place], Trainings]:
    """Every variant, for CPUs or for a GPU."""
    skip_without_two_cores()

    @cache
    def trained(place: Place) -> Trainings:
        chosen = accelerator if place == "gpu" else "cpu"
        return trainings_in(tmp_path_factory.mktemp(place), place, chosen, preloaded_python)

    return trained


@pytest.fixture(scope="session", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def trained(request: pytest.FixtureRequest, trained_for: Callable[[Place], Trainings]) -> Trainings:
    """Every variant: on CPUs, and on a GPU where there is one."""
    return trained_for(request.param)


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


@pytest.fixture
def perilous(tmp_path: Path, preloaded_python: Path) -> Iterator[Runs]:
    """Starts runs that are ended at chosen steps, below the test's folder."""
    started = Runs(tmp_path, PERILOUS, PERILOUS_LIMITS, python=preloaded_python)
    yield started
    started.close()


@pytest.fixture(scope="session")
def perilous_once(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Iterator[Runs]:
    """Starts perilous runs that all tests look at."""
    started = Runs(tmp_path_factory.mktemp("perilous"), PERILOUS, PERILOUS_LIMITS, python=preloaded_python)
    yield started
    started.close()


@pytest.fixture(scope="session")
def undisturbed_run(perilous_once: Runs) -> Callable[[int], Finished]:
    """A perilous run on so many devices that nothing disturbs."""
    return cache(lambda devices: perilous_once.complete("calm", devices))


@pytest.fixture(scope="session")
def stopped(perilous_once: Runs) -> Path:
    """What a perilous run on one device leaves that ended as requested at its step 50; `begun` copies it."""
    return perilous_once.kill_on_the_way("stopped", 1, Kill(50, "stop"))[0].folder
