"""A rank knows who it is, or says what is missing."""

from __future__ import annotations

import socket

import pytest
import torch

from scalewise.records import utc_now
from scalewise.training.distributed import claim_device, cpu_list, identify
from scalewise.training.provenance import commit, versions

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def test_torchrun_says_who_a_rank_is() -> None:
    identity = identify(TORCHRUN)
    assert (identity.rank, identity.local_rank) == (5, 1)
    assert (identity.world_size, identity.local_world_size) == (8, 4)
    assert identity.host == socket.gethostname()
    assert identity.slurm_job_id is None
    assert identity.restart_count == 0


def test_the_slurm_job_and_its_restarts_are_recorded() -> None:
    identity = identify(TORCHRUN | {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2"})
    assert identity.slurm_job_id == "4711"
    assert identity.restart_count == 2


@pytest.mark.parametrize("left_out", [("RANK",), ("WORLD_SIZE", "MASTER_PORT"), tuple(TORCHRUN)])
def test_a_half_set_identity_is_an_error_that_names_what_is_missing(left_out: tuple[str, ...]) -> None:
    environ = {name: value for name, value in TORCHRUN.items() if name not in left_out}
    with pytest.raises(RuntimeError, match="not started as a rank") as refused:
        identify(environ)
    message = str(refused.value)
    assert f": {', '.join(left_out)} not set" in message
    assert "train.py" in message


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0-1"),
        ([0, 1, 2, 8], "0-2,8"),
        ([9, 4, 5, 0], "0,4-5,9"),
    ],
)
def test_cpus_are_written_as_the_kernel_writes_them(cpus: list[int], text: str) -> None:
    assert cpu_list(cpus) == text


def test_a_device_of_a_machine_without_gpus_is_a_cpu_process() -> None:
    assert claim_device("cpu", 3) == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so nothing is missing")
def test_a_gpu_that_is_not_there_is_an_error_and_never_a_silent_cpu() -> None:
    with pytest.raises(RuntimeError, match="local rank 0 needs a GPU") as refused:
        claim_device("cuda", 0)
    message = str(refused.value)
    assert f"torch {torch.__version__} sees 0" in message
    assert "CUDA_VISIBLE_DEVICES" in message
    assert "`accelerator: cpu`" in message


def test_versions_name_what_matters_to_a_measurement() -> None:
    found = versions()
    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    assert {"scalewise", "python", "numpy", "safetensors"} <= found.keys()


def test_outside_a_checkout_the_commit_is_unknown_and_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALEWISE_COMMIT", raising=False)
    assert commit() is None
    monkeypatch.setenv("SCALEWISE_COMMIT", "")
    assert commit() is None
    monkeypatch.setenv("SCALEWISE_COMMIT", "abc-dirty")
    assert commit() == "abc-dirty"


def test_times_say_that_they_are_utc() -> None:
    assert utc_now().endswith("+00:00")
