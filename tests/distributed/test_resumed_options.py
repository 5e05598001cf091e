"""Whatever options a training has, it ends with the same bits where it was stopped and went on."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tests.cores import needs_two_cores
from tests.distributed.interrupted_runs import prepare_some_digits
from tests.distributed.probe_group import share_one_gpu
from tests.distributed.trainings import start_ranks
from tests.reliability.thoroughness import times
from tests.small_runs import definition_of, rank_launch

from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import rank_setup_for
from scalewise.plan.config.settings import Settings
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.runs.run_definition import RunDefinition

pytestmark = needs_two_cores

GLOBAL_BATCH = 84
"""Of 331 samples: 4 steps an epoch, the last of 79, which no number of ranks here divides."""

SHARED: dict[str, Any] = {
    "model": "planted_perilous",
    "epochs": 3,
    "learning_rate": 0.05,
    "crop_padding": 1,
    "warmup_steps": 2,
    "deterministic": True,
}
ADAMW = {"optimizer": "adamw", "learning_rate": 1e-3}
STOPS = (1, 4, 11, 12)
"""After the first step; at the end of an epoch; in the middle of one; and after the last step of all, when
only its evaluation is missing."""

FULL_SPEED = "as fast as it can"
"""Which algorithms of cuDNN are the fastest is found anew by each start."""

VARIANTS: dict[str, dict[str, Any]] = {
    "momentum": {},
    "flips": {"horizontal_flip": True, "crop_padding": 0},
    FULL_SPEED: {"deterministic": False},
    "adam, onecycle": {"optimizer": "adam", "learning_rate": 1e-3, "schedule": "onecycle"},
    "adamw, cosine, warm-up": ADAMW | {"schedule": "cosine", "learning_rate_warmup_epochs": 1.5},
    "adadelta, step, warm-up": {
        "optimizer": "adadelta",
        "learning_rate": 1.0,
        "schedule": "step",
        "learning_rate_warmup_epochs": 1.0,
    },
    "stops when accurate": {"stop_at_accuracy": 0.3, "stop_patience_epochs": 2, "epochs": 30},
    "steps": {"steps": 9, "epochs": 1},
    "steps until an interval": {"steps": {"most": 9, "until_interval": 1e-9}, "epochs": 1},
    "accumulation": {"accumulation_steps": 3},
    "workers": {"loader": "workers", "cpus_per_device": 2},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "model": "linear"},
    "fp16, overflows": {
        "precision": "fp16",
        "model": "planted_steep",
        "learning_rate": 1e-9,
    },
    "channels last": {"channels_last": True},
    "bucket view, accumulation": {"gradient_as_bucket_view": True, "accumulation_steps": 2},
    "static graph": {"static_graph": True},
    "static graph, accumulation": {"static_graph": True, "accumulation_steps": 2},
    "fp16 hook": {"communication_hook": "fp16"},
    "zero1": ADAMW | {"parallelism": "zero1", "schedule": "step"},
    "zero1, momentum": {"parallelism": "zero1", "schedule": "cosine"},
    "fsdp": ADAMW | {"parallelism": "fsdp", "schedule": "step"},
    "fsdp, momentum, accumulation": {"parallelism": "fsdp", "accumulation_steps": 3},
}
OF_EACH_STATE = ("momentum", "zero1", "fsdp")
"""One for each kind of what is kept; the others are stopped twice, unless all is asked for."""

ON_CPUS = (1, 2, 4) if times(0, 1) else (4,)
"""Sums over more than two ranks show most: they depend on their order."""


def definition(name: str, world_size: int) -> RunDefinition:
    settings = Settings(dataset="digits", global_batch_size=GLOBAL_BATCH, **(SHARED | VARIANTS[name]))
    return definition_of(settings, world_size)


def stops(name: str) -> tuple[int, ...]:
    """Steps after which a variant is stopped."""
    return STOPS if name in OF_EACH_STATE or times(0, 1) else STOPS[1:3]


def variants(world_size: int, accelerator: str) -> list[str]:
    """Those that can be resumed to the bit on so many ranks."""
    if accelerator == "cpu":
        return list(VARIANTS)
    names = [name for name in VARIANTS if name != FULL_SPEED]
    shared = share_one_gpu(accelerator, world_size)
    return [name for name in names if not (shared and VARIANTS[name].get("parallelism") == "fsdp")]


Found = Callable[[int, str], dict[str, Any]]


@pytest.fixture(scope="module")
def of_world(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What trainings of so many ranks ended with; one launch for all of them."""
    folder = tmp_path_factory.mktemp("resumed")
    dataset = folder / "prepared.safetensors"
    prepare_some_digits(dataset)

    @cache
    def found(world_size: int, accelerator: str) -> dict[str, Any]:
        output = folder / f"{accelerator}{world_size}"
        launch = rank_launch(world_size, accelerator=accelerator)
        RankFiles(output).begin(rank_setup_for(launch, SiteLaunch(), 120))
        chosen = {
            name: {"definition": definition(name, world_size).model_dump(), "stops": stops(name)}
            for name in variants(world_size, accelerator)
        }
        (output / "definitions.json").write_text(json.dumps(chosen), encoding="utf-8")
        start_ranks("resume_probe.py", world_size, output / "definitions.json", dataset, output)
        values: dict[str, Any] = json.loads((output / "found.json").read_text(encoding="utf-8"))
        return values

    return found


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("world_size", ON_CPUS)
def test_a_training_that_was_stopped_again_and_again_ends_with_the_same_bits(
    of_world: Found, world_size: int, name: str
) -> None:
    same_bits(of_world(world_size, "cpu")[name], name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != FULL_SPEED])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_training_on_a_gpu_that_was_stopped_again_and_again_ends_with_the_same_bits(
    of_world: Found, world_size: int, name: str, accelerator: str
) -> None:
    """A training on a GPU, and one of two ranks, that was stopped again and again ends with the same bits.

    What CUDA draws at random, its scaler and its optimizer's states go on.
    """
    if name not in variants(world_size, accelerator):
        pytest.skip("fsdp needs NCCL, which takes one rank a GPU: needs two GPUs")
    same_bits(of_world(world_size, accelerator)[name], name)


def same_bits(found: dict[str, Any], name: str) -> None:
    """Holds what was resumed against the whole."""
    assert found["resumed"] == found["whole"]
    assert len(found["whole"]["epochs"]) >= (0 if "steps" in VARIANTS[name] else 2)
    assert found["whole"]["weights"]
    if name == "fp16, overflows":
        assert found["whole"]["scale"] < 2**16


def test_steps_end_a_training_in_the_middle_of_an_epoch_without_an_evaluation_and_after_all_epochs_too(
    of_world: Found,
) -> None:
    """Of 4 steps an epoch: the third epoch, of one that was asked for, is cut short."""
    ended = of_world(4, "cpu")["steps"]["whole"]
    assert ended["steps"] == VARIANTS["steps"]["steps"] + SHARED["warmup_steps"] == 11
    assert ended["epochs"] == []


def test_other_options_end_with_other_bits(of_world: Found) -> None:
    """Or the comparison would compare nothing."""
    names = ("momentum", "flips", "adam, onecycle", "accumulation", "zero1")
    weights = {json.dumps(of_world(4, "cpu")[name]["whole"]["weights"]) for name in names}
    assert len(weights) == len(names)
