"""Trainings that were cut off end with the weights and records of undisturbed ones, with any option."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sklearn.datasets import load_digits
from tests.distributed.probe import share_one_gpu
from tests.distributed.runs import PERILOUS, Finished, Kill, Runs, prepare_digits
from tests.distributed.trainings import probe_ranks
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record
from tests.reliability.thoroughness import times
from tests.small_runs import definition_of

from scalewise.plan.config.settings import Settings

pytestmark = [
    needs_two_cores,
    pytest.mark.timeout(times(quick=1800, thorough=3600)),
]

Calm = Callable[[int], Finished]

# --- whole runs ---------------------------------------------------------------------------------------


@pytest.mark.fault(1)
@pytest.mark.parametrize("world_size", times([2], [1, 2, 4]))
def test_kills_at_random_steps_change_neither_weights_nor_records(
    perilous: Runs, undisturbed_run: Calm, world_size: int, record_property: Record
) -> None:
    chosen = random.Random(world_size)
    # one that comes before the first checkpoint shows little; all of the passes are fewer than the steps
    kills = [Kill(70, "backward", rank=world_size - 1)]
    for how in times(["train.py"], ["train.py", "ranks", "forward", "backward", "ranks"]):
        kills.append(Kill(chosen.randint(2, 9), how, chosen.randrange(world_size)))
    for kill in kills:
        _, code = perilous.kill_on_the_way("stormy", world_size, kill)
        assert code != 0
    run, undisturbed = perilous.complete("stormy", world_size), undisturbed_run(world_size)
    assert run.learned == undisturbed.learned
    found = run.resumption
    # a start that wrote no checkpoint leaves the next one its own
    assert set(found.resumed_at_steps) <= set(run.resumed_at)
    assert len(run.resumed_at) == len(kills) == found.starts - 1
    found = undisturbed.resumption
    assert (found.starts, found.resumed_at_steps, found.lost_steps, found.problems) == (1, [], 0, [])
    figure = f"world {world_size}: {len(kills)} of {len(kills)} kills, weights and records identical"
    record_property("figure", figure)


@pytest.mark.fault(10, 12)
def test_a_run_that_got_a_signal_to_end_loses_no_step(
    perilous: Runs, undisturbed_run: Calm, record_property: Record
) -> None:
    steps = []
    # the second is asked sooner after its start than a checkpoint is due
    for at in (25, 8):
        training, code = perilous.kill_on_the_way("asked", 2, Kill(at, "stop"))
        assert code == 1
        failure = training.failure()
        assert failure.outcome == "interrupted"
        (kept,) = re.findall(r"The checkpoint at step (\d+) is kept", failure.reason)
        steps.append(int(kept))
    run = perilous.complete("asked", 2)
    found, measured = run.resumption, run.measured
    assert found.resumed_at_steps == steps == run.resumed_at
    assert (found.lost_steps, found.starts, found.problems) == (0, 3, [])
    assert found.checkpoints >= 1
    assert found.checkpoint_seconds > 0
    assert run.learned == undisturbed_run(2).learned

    # what was measured leaves out the steps after each resume; windows cover every step once
    covered = {True: set[int](), False: set[int]()}
    for window in measured.windows:
        covered[window.warmup].update(range(window.first_step, window.first_step + window.steps))
    assert sum(window.steps for window in measured.windows) == len(covered[True] | covered[False])
    assert covered[True] | covered[False] == set(range(6 * PERILOUS["epochs"]))
    warmup = PERILOUS["warmup_steps"]
    assert {first + each for first in (0, *steps) for each in range(warmup)} <= covered[True]
    assert found.unmeasured_steps == len(steps) * warmup
    counted = [window for window in measured.windows if not window.warmup]
    rate = sum(window.samples for window in counted) / sum(window.seconds for window in counted)
    assert measured.throughput_samples_per_second == pytest.approx(rate)
    record_property("figure", "stopped by SIGTERM twice: 0 steps lost")


# --- every option, in a loop that is stopped and resumed ----------------------------------------------

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

VARIANTS: dict[str, dict[str, Any]] = {
    "momentum": {},
    "flips, adam, onecycle, workers": {
        "horizontal_flip": True,
        "crop_padding": 0,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "schedule": "onecycle",
        "loader": "workers",
        "cpus_per_device": 2,
    },
    "adamw, cosine, warm-up, bf16, channels last": ADAMW
    | {
        "schedule": "cosine",
        "learning_rate_warmup_epochs": 1.5,
        "precision": "bf16",
        "channels_last": True,
    },
    "adadelta, step, warm-up, fp16 hook": {
        "optimizer": "adadelta",
        "learning_rate": 1.0,
        "schedule": "step",
        "learning_rate_warmup_epochs": 1.0,
        "communication_hook": "fp16",
    },
    "stops when accurate": {"stop_at_accuracy": 0.3, "stop_patience_epochs": 2, "epochs": 30},
    "steps": {"steps": 9, "epochs": 1},
    "steps until an interval": {"steps": {"most": 9, "until_interval": 1e-9}, "epochs": 1},
    "fp16, overflows": {"precision": "fp16", "model": "planted_steep", "learning_rate": 1e-9},
    "bucket view, accumulation": {"gradient_as_bucket_view": True, "accumulation_steps": 3},
    "static graph, accumulation": {"static_graph": True, "accumulation_steps": 2},
    "zero1": ADAMW | {"parallelism": "zero1", "schedule": "step"},
    "fsdp, accumulation": ADAMW | {"parallelism": "fsdp", "schedule": "step", "accumulation_steps": 3},
}
OF_EACH_STATE = ("momentum", "zero1", "fsdp, accumulation")
"""One for each kind of what is kept; the others are stopped twice, unless all is asked for."""

ON_CPUS = times((3,), (1, 2, 4))
"""Sums over more than two ranks show most: they depend on their order."""


def variant(name: str, world_size: int) -> dict[str, Any]:
    settings = Settings(dataset="digits", global_batch_size=GLOBAL_BATCH, **(SHARED | VARIANTS[name]))
    stops = STOPS if name in OF_EACH_STATE or times(0, 1) else STOPS[1:3]
    return {"name": name, "definition": definition_of(settings, world_size).model_dump(), "stops": stops}


def variants(world_size: int, accelerator: str) -> list[str]:
    """Those that can be resumed to the bit on so many ranks."""
    shared = share_one_gpu(accelerator, world_size)
    return [name for name in VARIANTS if not (shared and VARIANTS[name].get("parallelism") == "fsdp")]


Found = Callable[[int, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def of_world(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Found:
    """What a training of so many ranks ended with; one launch for all variants."""
    folder = tmp_path_factory.mktemp("resumed")
    images = load_digits().images
    prepare_digits(folder / "prepared.safetensors", images[:331], images[331:414])

    @cache
    def trained(world_size: int, accelerator: str) -> Path:
        output = folder / f"{accelerator}{world_size}"
        chosen = [variant(name, world_size) for name in variants(world_size, accelerator)]
        dataset = folder / "prepared.safetensors"
        probe_ranks(chosen, world_size, accelerator, dataset, output, preloaded_python)
        return output

    def found(world_size: int, accelerator: str, name: str) -> dict[str, Any]:
        file = trained(world_size, accelerator) / f"{name}.json"
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return values

    return found


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("world_size", ON_CPUS)
def test_a_training_that_was_stopped_again_and_again_ends_with_the_same_bits(
    of_world: Found, world_size: int, name: str
) -> None:
    same_bits(of_world(world_size, "cpu", name), name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_training_on_a_gpu_that_was_stopped_again_and_again_ends_with_the_same_bits(
    of_world: Found, world_size: int, name: str, accelerator: str
) -> None:
    """A training on a GPU, and one of two ranks, that was stopped again and again ends with the same bits.

    What CUDA draws at random, its scaler and its optimizer's states go on.
    """
    if name not in variants(world_size, accelerator):
        pytest.skip("fsdp needs NCCL, which takes one rank a GPU: needs two GPUs")
    same_bits(of_world(world_size, accelerator, name), name)


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
    ended = of_world(ON_CPUS[-1], "cpu", "steps")["whole"]
    assert ended["steps"] == VARIANTS["steps"]["steps"] + SHARED["warmup_steps"] == 11
    assert ended["epochs"] == []


def test_other_options_end_with_other_bits(of_world: Found) -> None:
    """Or the comparison would compare nothing."""
    names = ("momentum", "flips, adam, onecycle, workers", "bucket view, accumulation", "zero1")
    weights = {json.dumps(of_world(ON_CPUS[-1], "cpu", name)["whole"]["weights"]) for name in names}
    assert len(weights) == len(names)
