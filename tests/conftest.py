"""What all tests share: they may show faults survived and inputs refused, and run in streams side by side."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.preloading import preloaded
from tests.startup.sitecustomize import for_children
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["tests.reliability.plugin", "tests.gpu.plugin"]

TESTS = Path(__file__).parent.name

STREAMS = {
    # one cluster for all of them, on which the tests look at all nodes
    "slurm": "cluster",
    # one training at a time has a machine to itself
    "distributed": "ranks",
    "workflow": "studies",
    "reliability": "studies",
    # one browser and the reports that it shows are shared
    "browser": "browser",
    # one study on a GPU, which all of them read
    "gpu": "studies on a GPU",
}
"""Folders whose tests must not run side by side."""

STREAMS_OF_FILES = {
    # on another cluster of this machine
    **dict.fromkeys(
        ("test_faults.py", "test_resumption.py", "test_programs_on_cluster.py"), "second cluster"
    ),
    "test_examples.py": "examples",
    # it measures no speed
    "test_memory_on_a_gpu.py": "memory on a GPU",
}
"""Files that share nothing with the others of their folder: they shorten the longest streams."""

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class Streams(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """Tests of one stream run one after the other; the others of one file stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return STREAMS_OF_FILES.get(Path(file).name) or STREAMS.get(_folder(file), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Return the scheduler that pytest-xdist requests if several processes run the tests."""
    return Streams(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Give the processes that tests start the default signals, also below nohup or in a script's background.

    Children inherit an ignored signal, and a test that sends Ctrl-C would wait for ever. They do not inherit
    a handler: one that does nothing ignores the signal here only. The workers of pytest-xdist are such
    children, so the process that starts them changes nothing.
    """
    # threads that wait do not spin: there are more of them than cores
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if config.getoption("numprocesses", None):
        return
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


@pytest.fixture(scope="session", autouse=True)
def _own_machine_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trainings of one stream take turns, and wait neither for another stream's nor for a user's."""
    name = "SCALEWISE_MACHINE_LOCK"
    with pytest.MonkeyPatch.context() as patch:
        if name not in os.environ:
            patch.setenv(name, str(tmp_path_factory.getbasetemp() / "machine.lock"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _planted_models() -> Iterator[None]:
    """What tests start knows the models that they plant faults with."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in for_children().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def preloaded_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python that has torch and Snakemake loaded already."""
    with preloaded(tmp_path_factory.mktemp("preloaded")) as program:
        yield program


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from looking again and again at torch and at the tests themselves."""
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long streams where there are several; the fast tests then fill what is left."""
    if hasattr(config, "workerinput"):
        long = list(STREAMS)
        items.sort(
            key=lambda item: long.index(folder) if (folder := _folder(item.nodeid)) in long else len(long)
        )


def _folder(path: str) -> str:
    """The folder of tests that a path is in, seen from the checkout."""
    return path.removeprefix(f"{TESTS}/").partition("/")[0]
