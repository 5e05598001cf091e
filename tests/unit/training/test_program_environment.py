"""What a user's program finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.small_runs import rank_setup

from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.shape import Shape
from scalewise.training.distributed.identity import Identity
from scalewise.training.program.environment import Meeting, rank_values, variables

IDENTITY = Identity(1, 1, 2, 2, "node-a", None, 0)


@pytest.mark.parametrize(
    ("accelerator", "environment", "visible"),
    [
        pytest.param("cpu", {}, "", id="hidden from CPU processes"),
        pytest.param("cuda", {}, "0,1", id="as they are for GPUs"),
        pytest.param("cpu", {"CUDA_VISIBLE_DEVICES": "1"}, "1", id="what the experiment says"),
    ],
)
def test_a_program_that_is_to_train_on_cpus_sees_no_gpu(
    accelerator: str, environment: dict[str, str | int | float], visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most programs take a GPU wherever they see one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    settings = ProgramSettings(program="train.py", environment=environment)
    setup = rank_setup(accelerator=accelerator)
    values = rank_values({}, IDENTITY, Meeting("127.0.0.1", 29500), Shape.parse(setup.shape))
    found = variables(settings, values, setup, IDENTITY, Path("startup"), Path("probe.json"))
    assert found["CUDA_VISIBLE_DEVICES"] == visible
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("1", "1", "2")
