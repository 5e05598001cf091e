"""The trainings that the tests of options look at: one launch for each number of ranks trains them all."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from safetensors.torch import load_file
from scalewise.builtin.data.datasets import write
from sklearn.datasets import load_digits
from tests.distributed.probe import Seen, share_one_gpu
from tests.distributed.runs import prepare_digits
from tests.paths import SCRIPTS
from tests.small_runs import definition_of, rank_launch
from torch import Tensor
from torchvision.models import resnet18

from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import rank_setup_for
from scalewise.plan.config.settings import Settings
from scalewise.plan.jobs.launch import SiteLaunch

HERE = Path(__file__).parent

PROBE_SECONDS = 900
"""Longest wait for ranks that train all variants."""

TRAIN_SAMPLES, TEST_SAMPLES = 475, 121
GLOBAL_BATCH = 120
"""Leaves 115 samples for the last of 4 steps, which two ranks share as 58 and 57."""
STEPS_PER_EPOCH = 4

DEEP = "planted_deep"
CNN = {"model": "digits_cnn"}
ADAMW = {"model": DEEP, "optimizer": "adamw", "learning_rate": 1e-3, "schedule": "step"}
FSDP = ADAMW | {"parallelism": "fsdp"}
ONCE = {"epochs": 1}

SHARED: dict[str, Any] = {"model": "linear", "epochs": 3, "learning_rate": 0.05, "warmup_steps": 2}

Place = Literal["cpu", "gpu"]

VARIANTS: dict[str, dict[str, Any]] = {
    "linear": {},
    "cnn": CNN,
    "deep": {"model": DEEP},
    "seed": {"seed": 2} | ONCE,
    "deterministic": {"deterministic": True} | ONCE,
    "smoothed": {"label_smoothing": 0.2, "learning_rate": 1e-9} | ONCE,
    "unsmoothed": {"learning_rate": 1e-9} | ONCE,
    "stopped": {"stop_at_accuracy": 0.3, "stop_patience_epochs": 2, "epochs": 30},
    # images
    "cropped": {"crop_padding": 2} | ONCE,
    "workers": {"loader": "workers", "cpus_per_device": 2},
    # numbers and layouts
    "bf16": CNN | {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "tf32": CNN | {"precision": "tf32"},
    "channels-last": CNN | {"channels_last": True},
    "compiled": {"compile": True} | ONCE,
    # exchange of gradients
    "accumulated": {"accumulation_steps": 3},
    "bucket-view": {"model": DEEP, "gradient_as_bucket_view": True},
    "static": {"model": DEEP, "static_graph": True},
    "small-buckets": {"model": DEEP, "bucket_cap_mb": 1},
    "fp16-hook": {"model": DEEP, "communication_hook": "fp16"},
    "bf16-hook": {"model": DEEP, "communication_hook": "bf16"},
    # models in parts
    "adamw": ADAMW,
    "zero1": ADAMW | {"parallelism": "zero1"},
    "fsdp": FSDP,
    "fsdp-accumulated": FSDP | {"accumulation_steps": 3},
    "fsdp-cnn": CNN | {"parallelism": "fsdp"},
    "pretrained": {"model": "resnet18", "image_size": 64, "pretrained": True},
}
NCCL_ALONE = {"bf16-hook", *(name for name in VARIANTS if name.startswith("fsdp"))}
"""Variants that gloo cannot train on a GPU."""

GPU_ALONE = {"bf16-hook", "tf32"}
"""Variants that CPUs cannot train."""

ON_ONE_RANK = ("linear", "cnn", "deep", "accumulated", "adamw", "fsdp", "workers")


@dataclass(frozen=True)
class Training:
    """What one rank saw of one variant, and its tensors."""

    seen: Seen
    tensors: Mapping[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names begin so: ``start``, ``end`` or ``here``."""
        return {
            name.removeprefix(f"{prefix}/"): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(f"{prefix}/")
        }

    @property
    def end(self) -> dict[str, Tensor]:
        """The whole model after training; on rank 0 alone."""
        return self.part("end")

    @property
    def images(self) -> Tensor:
        """Of this rank in the first epoch, as the network got them."""
        return self.tensors["images"]


@dataclass(frozen=True)
class Trainings:
    """All variants, trained on first demand: a launch for each number of ranks.

    Args:
        folder: of one folder for each number of ranks.
        dataset: the prepared file.
        weights: of torchvision's ResNet-18, for the variant ``pretrained``.
        place: that they are trained for; on a GPU one rank trains all of them.
        accelerator: that they are trained on: ``cpu`` also for a GPU, in a rehearsal.
        python: interpreter of the ranks.
    """

    folder: Path
    dataset: Path
    weights: Path
    place: Place
    accelerator: str
    python: Path

    @cache  # noqa: B019 - lives as long as the session
    def of(self, name: str, world_size: int = 2, rank: int = 0) -> Training:
        """One rank of one variant; skips the test where this machine cannot train it."""
        if self.place == "gpu" and name in NCCL_ALONE and share_one_gpu(self.accelerator, world_size):
            pytest.skip(f"{name} needs NCCL, which takes one rank a GPU: needs two GPUs")
        if self.place == "gpu" and name in GPU_ALONE and self.accelerator == "cpu":
            pytest.skip(f"{name} needs a GPU: no rehearsal on a CPU")
        path = self._launched(world_size) / f"{name}.rank{rank}"
        values = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
        return Training(Seen(**values), load_file(path.with_name(f"{path.name}.safetensors")))

    @cache  # noqa: B019 - as above
    def _launched(self, world_size: int) -> Path:
        """The folder of what so many ranks have trained."""
        output = self.folder / f"world{world_size}"
        chosen = [_variant(name, world_size, self.weights) for name in self._variants(world_size)]
        probe_ranks(chosen, world_size, self.accelerator, self.dataset, output, self.python)
        return output

    def _variants(self, world_size: int) -> list[str]:
        """The variants that so many ranks train."""
        if self.place == "cpu":
            return [
                name for name in VARIANTS if name not in GPU_ALONE and (world_size > 1 or name in ON_ONE_RANK)
            ]
        left_out = GPU_ALONE if self.accelerator == "cpu" else set()
        if share_one_gpu(self.accelerator, world_size):
            left_out = NCCL_ALONE
        return [name for name in VARIANTS if name not in left_out]


def largest_difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Over all weights of two models of one kind."""
    assert one
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Euclidean, over all weights of two models of one kind."""
    assert one
    assert one.keys() == other.keys()
    return math.hypot(*(float((one[name].double() - other[name].double()).norm()) for name in one))


def trainings_in(folder: Path, place: Place, accelerator: str, python: Path) -> Trainings:
    """All variants below a folder, of which none is trained yet, to be trained by an interpreter."""
    dataset = folder / "prepared.safetensors"
    _prepare_coloured_digits(dataset)
    weights = folder / "resnet18.safetensors"
    write(resnet18(weights=None).state_dict(), weights)
    return Trainings(folder, dataset, weights, place, accelerator, python)


def _variant(name: str, world_size: int, weights: Path) -> dict[str, Any]:
    chosen = SHARED | {"dataset": "digits"} | VARIANTS[name]
    settings = Settings(global_batch_size=GLOBAL_BATCH, **chosen)
    definition = definition_of(settings, world_size)
    return {
        "name": name,
        "definition": definition.model_dump(),
        "weights": str(weights) if settings.pretrained else None,
        "train": not settings.pretrained,
    }


def _prepare_coloured_digits(path: Path) -> None:
    """Handwritten digits of three unlike channels: layouts of one channel cannot be distinguished."""
    grey = load_digits().images[: TRAIN_SAMPLES + TEST_SAMPLES]
    coloured = np.stack([grey, 17 - grey, grey / 2], axis=1)
    prepare_digits(path, coloured[:TRAIN_SAMPLES], coloured[TRAIN_SAMPLES:])


def probe_ranks(
    variants: list[dict[str, Any]],
    world_size: int,
    accelerator: str,
    dataset: Path,
    output: Path,
    python: Path,
) -> None:
    """Have so many ranks train variants, as probe.py takes them, and leave what they find in a folder."""
    launch = rank_launch(world_size, accelerator=accelerator)
    RankFiles(output).begin(rank_setup_for(launch, SiteLaunch(), 120))
    (output / "variants.json").write_text(json.dumps(variants), encoding="utf-8")
    command = [str(python), "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += [f"--nproc-per-node={world_size}", str(HERE / "probe.py")]
    path = [str(SCRIPTS), os.environ.get("PYTHONPATH")]
    ended = subprocess.run(
        [*command, *map(str, (output / "variants.json", dataset, output))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROBE_SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
