"""A rank knows who it is, or says what is missing."""

from __future__ import annotations

import socket

import pytest
import torch

from scalewise.measure.origins import versions
from scalewise.plan.config.shape import Shape
from scalewise.ranks.distributed.cpus import cpu_list, take_cpus
from scalewise.ranks.distributed.devices import claim_device
from scalewise.ranks.distributed.identity import Identity, check_place, identify, node_rank, tasks_on_node
from scalewise.ranks.monitoring.environments import commit, merge_environments
from scalewise.ranks.monitoring.sensors import driver_version
from scalewise.records import Environment, utc_now

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "11",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
}


def test_torchrun_says_who_a_rank_is() -> None:
    identity = identify(TORCHRUN, "torchrun")
    assert (identity.rank, identity.local_rank) == (5, 1)
    assert (identity.world_size, identity.local_world_size) == (8, 4)
    assert identity.host == socket.gethostname()
    assert identity.slurm_job_id is None
    assert identity.restart_count == 0


def test_the_slurm_job_and_its_restarts_are_recorded() -> None:
    identity = identify(TORCHRUN | {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2"}, "torchrun")
    assert identity.slurm_job_id == "4711"
    assert identity.restart_count == 2


@pytest.mark.parametrize("left_out", [("RANK",), ("WORLD_SIZE", "LOCAL_WORLD_SIZE"), tuple(TORCHRUN)])
@pytest.mark.parametrize("launcher", ["popen", "torchrun", "spawn"])
def test_a_half_set_identity_is_an_error_that_names_what_is_missing(
    left_out: tuple[str, ...], launcher: str
) -> None:
    environ = {name: value for name, value in TORCHRUN.items() if name not in left_out}
    with pytest.raises(RuntimeError, match=f"not started as a rank by {launcher}") as refused:
        identify(environ, launcher)
    message = str(refused.value)
    assert f": {', '.join(left_out)} not set" in message
    assert "Only a job of Scalewise starts ranks." in message


def test_srun_says_who_a_rank_is() -> None:
    identity = identify(SRUN, "srun")
    assert (identity.rank, identity.local_rank) == (9, 1)
    assert (identity.world_size, identity.local_world_size) == (11, 3)
    assert identity.slurm_job_id == "4711"


@pytest.mark.parametrize("launcher", ["popen", "torchrun", "spawn"])
def test_inside_a_slurm_job_the_word_of_the_launcher_counts(launcher: str) -> None:
    identity = identify(SRUN | TORCHRUN, launcher)
    assert (identity.rank, identity.local_rank, identity.world_size, identity.local_world_size) == (
        5,
        1,
        8,
        4,
    )
    assert identify(SRUN | TORCHRUN, "srun").rank == 9


@pytest.mark.parametrize("left_out", [("SLURM_PROCID",), ("SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE")])
def test_a_rank_that_slurm_told_half_names_what_is_missing(left_out: tuple[str, ...]) -> None:
    environ = {name: value for name, value in SRUN.items() if name not in left_out}
    with pytest.raises(RuntimeError, match="not started as a rank by srun") as refused:
        identify(environ, "srun")
    assert f": {', '.join(left_out)} not set" in str(refused.value)


@pytest.mark.parametrize(
    ("counts", "tasks"),
    [("4", [4]), ("4(x2),3", [4, 4, 3]), ("1(x3)", [1, 1, 1]), ("2,1(x2),16", [2, 1, 1, 16])],
)
def test_the_tasks_of_every_node_are_read_from_the_notation_of_slurm(counts: str, tasks: list[int]) -> None:
    assert [tasks_on_node(counts, node) for node in range(len(tasks))] == tasks


def test_the_process_of_a_node_knows_which_node_it_is() -> None:
    assert node_rank({}) == 0
    assert node_rank({"SLURM_PROCID": "3"}) == 3


def at_place(world_size: int, local_world_size: int) -> Identity:
    return Identity(0, 0, world_size, local_world_size, "node-a", None, 0)


def test_ranks_that_stand_as_planned_pass() -> None:
    check_place(at_place(8, 4), Shape(2, 4))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ((8, 8), "planned were 8 ranks, 4 on each node (2x4), but 8 were started, 8 of them on node-a."),
        ((4, 4), "planned were 8 ranks, 4 on each node (2x4), but 4 were started, 4 of them on node-a."),
        ((8, 1), "planned were 8 ranks, 4 on each node (2x4), but 8 were started, 1 of them on node-a."),
    ],
)
def test_ranks_that_stand_elsewhere_are_not_measured_and_both_shapes_are_named(
    found: tuple[int, int], says: str
) -> None:
    with pytest.raises(RuntimeError) as refused:
        check_place(at_place(*found), Shape(2, 4))
    assert str(refused.value).startswith(says)
    assert "srun_extra" in str(refused.value)


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


IN_SLURM = pytest.mark.parametrize("job", [None, "7"], ids=["one machine", "Slurm"])


@IN_SLURM
def test_advice_on_cpus_names_options_of_srun_only_where_srun_starts_ranks(job: str | None) -> None:
    with pytest.raises(RuntimeError, match="but cpus_per_device is 4096") as refused:
        take_cpus("gpu", Identity(0, 0, 1, 1, "node-a", job, 0), 4096)
    assert ("srun_extra" in str(refused.value)) == (job is not None)
    assert ("cpus_per_node" in str(refused.value)) == (job is None)


@IN_SLURM
def test_advice_on_a_single_visible_gpu_names_options_of_srun_only_where_srun_starts_ranks(
    job: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RuntimeError, match=r"local rank 1 on .* sees one GPU only") as refused:
        claim_device("cuda", 1, in_slurm=job is not None)
    assert ("srun_extra" in str(refused.value)) == (job is not None)
    assert ("devices_per_node" in str(refused.value)) == (job is None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so nothing is missing")
def test_a_gpu_that_is_not_there_is_an_error_and_never_a_silent_cpu() -> None:
    with pytest.raises(RuntimeError, match="local rank 0 needs a GPU") as refused:
        claim_device("cuda", 0)
    message = str(refused.value)
    assert f"torch {torch.__version__} sees 0" in message
    assert "CUDA_VISIBLE_DEVICES" in message
    assert "`accelerator: cpu`" in message


def test_versions_name_what_matters_to_a_measurement() -> None:
    found = versions(cuda=False)
    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    assert {"python", "numpy"} <= found.keys()


def test_a_cpu_process_names_no_nccl_that_it_does_not_use() -> None:
    assert "nccl" not in versions(cuda=False)


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_a_gpu_process_names_its_driver_and_nccl() -> None:
    assert str(driver_version()).split(".")[0].isdigit()
    assert versions(cuda=True)["nccl"].count(".") == 2


def test_hosts_that_have_all_alike_share_an_environment_and_others_have_their_own() -> None:
    mine = Environment(hosts=["node-a"], cpu_model="a CPU", operating_system="Linux", versions={"torch": "2"})
    other = mine.model_copy(update={"hosts": ["node-c"], "cpu_model": "another CPU"})
    same = mine.model_copy(update={"hosts": ["node-b"]})
    merged = merge_environments([mine, mine, other, other, same, same])
    assert [each.hosts for each in merged] == [["node-a", "node-b"], ["node-c"]]
    assert merged[1].cpu_model == "another CPU"


def test_outside_a_checkout_the_commit_is_unknown_and_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALEWISE_COMMIT", raising=False)
    assert commit() is None
    monkeypatch.setenv("SCALEWISE_COMMIT", "")
    assert commit() is None
    monkeypatch.setenv("SCALEWISE_COMMIT", "abc-dirty")
    assert commit() == "abc-dirty"


def test_times_say_that_they_are_utc() -> None:
    assert utc_now().endswith("+00:00")
