"""What a user's program finds in its environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from tests.small_runs import definition, rank_setup

from scalewise.execution.messages import Endpoint
from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.shape import Shape
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.program.environment import build_environment, template_values

VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
UUIDS = "GPU-5ebe9f43,GPU-ac33420d,GPU-1f0a4c2b"


@pytest.fixture(autouse=True)
def _nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VISIBILITY:
        monkeypatch.delenv(name, raising=False)


def variables_of(shape: str, rank: int = 0, accelerator: str = "cuda", **settings: Any) -> dict[str, str]:
    """The variables of one rank of a run."""
    there = Shape.parse(shape)
    setup = rank_setup(accelerator=accelerator, shape=there)
    local, size = rank % there.devices_per_node, there.world_size
    identity = Identity(rank, local, size, there.devices_per_node, "node-a", None, 0)
    program = ProgramSettings(program="train.py", **settings)
    run = definition().model_copy(update={"shape": there})
    values = template_values(run, program, Path("folder"), identity, Endpoint(host="127.0.0.1", port=29500))
    return build_environment(program, values, setup, identity, Path("startup"), Path("probe.json"))


@pytest.mark.parametrize(
    ("given", "shape", "visible"),
    [
        pytest.param(None, "1x1", "0", id="the first of a workstation"),
        pytest.param(None, "1x4", "0,1,2,3", id="as many as the run has"),
        pytest.param("2,3,5", "1x2", "2,3", id="the first of those that the user gives"),
        pytest.param(UUIDS, "1x1", "GPU-5ebe9f43", id="by their names"),
        pytest.param("0,1,2,3", "2x2", "0,1", id="more on each node than the run needs"),
        pytest.param("3", "1x4", "3", id="the one that Slurm has bound to the task"),
        pytest.param("", "1x2", "", id="none"),
    ],
)
def test_a_program_sees_the_gpus_of_its_run_on_this_node_and_no_other(
    given: str | None, shape: str, visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DataParallel and frameworks take all that they see: a run of one device would train on several."""
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    starts: Literal["ranks", "itself"]
    for starts in ("ranks", "itself"):
        found = variables_of(shape, starts=starts)
        assert found["CUDA_VISIBLE_DEVICES"] == visible
        assert "HIP_VISIBLE_DEVICES" not in found


def test_all_ranks_of_a_node_see_the_same_gpus_so_that_each_finds_its_own_by_local_rank() -> None:
    last = variables_of("2x2", rank=3)
    assert (last["CUDA_VISIBLE_DEVICES"], last["LOCAL_RANK"]) == ("0,1", "1")


@pytest.mark.parametrize(
    ("given", "visible"),
    [
        pytest.param({"HIP_VISIBLE_DEVICES": "4,5"}, "4", id="of HIP"),
        pytest.param({"ROCR_VISIBLE_DEVICES": "4,5"}, "0", id="within those of ROCR"),
        pytest.param({"ROCR_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "1,0"}, "1", id="of both"),
    ],
)
def test_a_program_under_rocm_sees_the_gpus_of_its_run(
    given: dict[str, str], visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = variables_of("1x1")
    assert found["HIP_VISIBLE_DEVICES"] == found["CUDA_VISIBLE_DEVICES"] == visible
    assert found.get("ROCR_VISIBLE_DEVICES") == given.get("ROCR_VISIBLE_DEVICES")


def test_a_program_that_is_to_train_on_cpus_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most programs take a GPU wherever they see one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = variables_of("1x2", rank=1, accelerator="cpu")
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("1", "1", "2")


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_the_experiment_has_the_last_word_on_the_gpus(accelerator: str) -> None:
    environment: dict[str, str | int | float] = {"CUDA_VISIBLE_DEVICES": "1"}
    found = variables_of("1x2", accelerator=accelerator, environment=environment)
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
