"""The command that starts the ranks of a run."""

from __future__ import annotations

import pytest

from scalewise.plan.launch import torchrun
from scalewise.plan.topology import Shape


def test_torchrun_starts_one_rank_a_device_with_its_threads() -> None:
    launch = torchrun("/usr/bin/python3", ["train_rank.py", "an attempt; $(x)"], Shape(1, 2), 3)

    assert launch.name == "torchrun"
    assert launch.argv == (
        "/usr/bin/python3",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nnodes=1",
        "--nproc-per-node=2",
        "train_rank.py",
        "an attempt; $(x)",
    )
    assert launch.environment == {
        "OMP_NUM_THREADS": "3",
        "MKL_NUM_THREADS": "3",
        "OPENBLAS_NUM_THREADS": "3",
    }


def test_one_device_is_started_as_many_are() -> None:
    one, two = (torchrun("python", ["rank.py"], Shape(1, devices), 1) for devices in (1, 2))

    assert [set(one.argv) ^ set(two.argv)] == [{"--nproc-per-node=1", "--nproc-per-node=2"}]


def test_several_nodes_are_not_started_on_one_machine() -> None:
    with pytest.raises(ValueError, match="cannot start 2 nodes"):
        torchrun("python", ["rank.py"], Shape(2, 2), 1)
