"""What all tests share: they may show faults survived and inputs refused, and run in streams side by side."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# tests and a user's trainings on this machine do not wait for each other
os.environ.setdefault("SCALEWISE_MACHINE_LOCK", str(Path(tempfile.gettempdir()) / "scalewise-tests.lock"))

pytest_plugins = ["pytester", "tests.reliability.plugin"]

TESTS = Path(__file__).parent.name

STREAMS = {
    # one cluster for all of them, on which the tests look at all nodes
    "slurm": "cluster",
    # one training at a time has a machine to itself, whoever starts it
    "workflow": "machine",
    "distributed": "machine",
    "reliability": "machine",
}
"""Folders whose tests must not run side by side."""


class Streams(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """Tests of one stream run one after the other; the others of one file stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return STREAMS.get(_folder(file), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """What pytest-xdist asks for where several processes run the tests."""
    return Streams(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins with the long streams where there are several; the fast tests then fill what is left."""
    if hasattr(config, "workerinput"):
        long = list(STREAMS)
        items.sort(
            key=lambda item: long.index(folder) if (folder := _folder(item.nodeid)) in long else len(long)
        )


def _folder(path: str) -> str:
    """The folder of tests that a path is in, seen from the checkout."""
    return path.removeprefix(f"{TESTS}/").partition("/")[0]
