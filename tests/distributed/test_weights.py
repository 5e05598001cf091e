"""What is learned does not depend on the number of ranks: real processes over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scalewise.plan.launch import Start
from scalewise.plan.study import load_study
from scalewise.training.attempt import Attempt
from scalewise.training.datasets import prepare
from scalewise.training.supervisor import muster_for

pytestmark = [
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="starts two ranks at once: needs 2 CPU cores"
    ),
    pytest.mark.timeout(120),
]

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "workflow" / "scripts"

GLOBAL_BATCH = 250
"""Leaves 187 of the 1,437 samples for the last step, which two ranks share as 94 and 93."""

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Learned:
    """States by (model, world size, rank)."""

    states: dict[tuple[str, int, int], State]

    def of(self, model: str, world_size: int, rank: int) -> State:
        return self.states[model, world_size, rank]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    folder = tmp_path_factory.mktemp("weights")
    dataset = folder / "dataset.safetensors"
    prepare("digits", dataset)
    site = folder / "site.yaml"
    site.write_text("accelerator: cpu\ndevices_per_node: 2\ncpus_per_node: 2\n", encoding="utf-8")
    shared = {
        "dataset": "digits",
        "global_batch_size": GLOBAL_BATCH,
        "epochs": 3,
        "learning_rate": 0.05,
        "warmup_steps": 2,
        "devices": [1, 2],
        "repeats": 1,
    }
    models = ("linear", "digits_cnn")
    study = load_study(
        {"experiments": {model: {**shared, "model": model} for model in models}}, site_file=site
    )
    states = {}
    for world_size in (1, 2):
        output = folder / f"world{world_size}"
        Attempt(output).begin(muster_for(f"1x{world_size}", "cpu", 1, "torchrun", "tcp", Start(), 120))
        definitions = [json.loads(study.runs[model, f"d{world_size}.r1"].definition) for model in models]
        (output / "definitions.json").write_text(json.dumps(definitions), encoding="utf-8")
        _start_ranks(world_size, [str(output / "definitions.json"), str(dataset), str(output)])
        for model in models:
            for rank in range(world_size):
                states[model, world_size, rank] = load_file(output / f"{model}.rank{rank}.safetensors")
    return Learned(states)


def _start_ranks(world_size: int, arguments: list[str]) -> None:
    launch = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    launch.append(f"--nproc-per-node={world_size}")
    ended = subprocess.run(
        [sys.executable, "-m", *launch, str(HERE / "weights_probe.py"), *arguments],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_two_ranks_learn_what_one_process_learns_from_the_whole_batch(learned: Learned) -> None:
    one, two = learned.of("linear", 1, 0), learned.of("linear", 2, 0)
    assert one.keys() == two.keys()
    largest = max(float((one[name] - two[name]).abs().max()) for name in one)
    assert largest < 1e-4


def test_training_moves_the_weights_that_are_compared(learned: Learned) -> None:
    weights = learned.of("linear", 1, 0)["1.weight"]
    torch.manual_seed(1)
    start = torch.nn.Linear(64, 10).weight.detach()
    assert float((weights - start).abs().max()) > 0.01


@pytest.mark.parametrize("model", ["linear", "digits_cnn"])
def test_both_ranks_end_with_the_same_model_bit_for_bit(learned: Learned, model: str) -> None:
    first, second = learned.of(model, 2, 0), learned.of(model, 2, 1)
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert different == []
