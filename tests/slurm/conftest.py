"""One Slurm cluster for all tests in this folder, and a check that no test leaves something on it."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.preloading import preloaded
from tests.slurm.lab import Lab, tracks_by_cgroups
from tests.slurm.machines import LabError, missing
from tests.slurm.study import ClusterStudy
from tests.waiting import wait_until

HUNG_SECONDS = 1800
"""A test of this folder has hung after so long, its fixtures included."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Studies on a cluster wait for much, and longer while other tests run."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(HUNG_SECONDS))


def _or_skip() -> None:
    """Skip where no cluster can run, but not where one must, as in continuous integration."""
    if reason := missing():
        if os.environ.get("SCALEWISE_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A Slurm cluster of four nodes, each with 16 pretended CPUs and 4 pretended GPUs."""
    _or_skip()
    # a unique name: pytest may run twice at once, and cgroups are named by node
    prefix = f"t{os.getpid()}n"
    lab = Lab.up(Path(tempfile.gettempdir()) / f"scalewise-{prefix}", prefix, ends_with=os.getpid())
    yield lab
    lab.down()


@pytest.fixture(scope="session")
def preloaded_python(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python that has torch and Snakemake loaded already, on the head and on each node."""
    if not tracks_by_cgroups():
        # Slurm then follows processes by their parents, and would not find a fork
        yield Path(sys.executable)
        return
    with preloaded(tmp_path_factory.mktemp("preloaded"), lab.hosts()) as program:
        yield program


@pytest.fixture(autouse=True)
def _left_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test after which jobs are queued or nodes do not work."""
    if "lab" not in request.fixturenames:
        yield
        return
    lab: Lab = request.getfixturevalue("lab")
    yield
    if lab.pid("slurmdbd") is None:
        lab.start_accounting()
        pytest.fail("The test leaves slurmdbd stopped.")

    def settled() -> bool:
        with suppress(LabError):
            return not lab.queue() and set(lab.node_states().values()) == {"idle"}
        return False

    with suppress(TimeoutError):
        wait_until(settled, lambda: "it is busy", 120)
        return
    jobs, states = lab.queue(), lab.node_states()
    said = lab.run("scontrol", "show", "job", *jobs[:1], check=False).stdout + lab.log("slurmctld", lines=60)
    pytest.fail(f"The test leaves jobs {jobs} in the queue and nodes {states}.\n{said}")


@pytest.fixture
def study(request: pytest.FixtureRequest, lab: Lab, tmp_path: Path) -> Iterator[ClusterStudy]:
    """An empty folder for a study on the cluster; if marked ``starts_ranks``, all starts as for users."""
    study = ClusterStudy(lab, tmp_path)
    if request.node.get_closest_marker("starts_ranks") is None:
        study.python = request.getfixturevalue("preloaded_python")
    yield study
    study.end()
