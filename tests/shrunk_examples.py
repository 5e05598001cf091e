"""The shipped examples, made small: the same experiments and launchers, for CPUs and in seconds.

What is shrunk stands in the tables here, and nothing else is changed. Their data are stand-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.data_files import class_images

from scalewise.config.catalog.datasets import prepared_path

FOLDER = Path(__file__).parents[1] / "config" / "examples"
OWN_EXAMPLES = sorted(path.stem for path in FOLDER.glob("own-*.yaml"))
"""Studies of scripts as users have them."""

EXAMPLES = sorted({path.stem for path in FOLDER.glob("*.yaml")} - set(OWN_EXAMPLES))
"""Studies of the trainings that Scalewise ships."""

Experiments = dict[str, dict[str, Any]]

SMALL = {
    "epochs": 1,
    "repeats": 1,
    "warmup_steps": 1,
    "runtime_minutes": 20,
    "timeout_seconds": 600,
}
"""In every experiment."""

SMALLER: dict[str, dict[Any, Any]] = {
    "batch_size_per_device": {64: 4, 32: 4, 256: 8},
    "global_batch_size": {1024: 8},
    "cpus_per_device": {4: 1, 8: 1, 18: 1},
    # nodes of the tests' cluster have 64 GB for several runs at once
    "memory_gb": {32: 4},
    "stop_patience_epochs": {2: 1},
    # ResNet-18 takes its ImageNet stem from 64 pixels on
    "image_size": {224: 64},
    "model": {"transformer-100M": "transformer-1M"},
    # fp16 and tf32 are refused on CPUs
    "precision": {"fp16": "bf16", "tf32": "fp32"},
    # compiling takes longer than all else here
    "compile": {True: False},
}
"""Values that become smaller ones, wherever they stand; the others stay."""

FEWER: dict[str, dict[str, list[Any]]] = {
    "nyu-ddp": {"gradient_as_bucket_view": [True]},
    "nyu-ddp-memory": {"gradient_as_bucket_view": [True]},
    "olivia-options": {"batch_size_per_device": [8], "precision": ["fp16"], "cpus_per_device": [1]},
    "princeton-mnist": {"cpus_per_device": [1, 2]},
}
"""Sweeps that are cut to fewer values."""

FEWER_EPOCHS = {
    "--epochs=8": "--epochs=2",
    "argument: {epochs: 8}": "argument: {epochs: 2}",
    "draw_images.py,": "draw_images.py, --images=80,",
}
"""Of custom scripts, which run to their own end if an experiment has a metric."""

SMALLER_IMAGES = {"olivia-one-gpu": 8, "palmetto-plain": 8, "palmetto-torchrun": 8}
"""Sides of images: a step takes 14.5 GFLOP for one of 32 by 32 in the WideResNet, 1.7 in a ResNet-18."""

NARROWER = {"olivia-weak", "olivia-strong", "olivia-options", "olivia-fast"}
"""Whose WideResNet becomes wrn-10-1; it stays itself in olivia-one-gpu."""


def shrunk(example: str, devices: Mapping[str, list[int | str]]) -> Experiments:
    """An example's experiments, their defaults merged in, small.

    Args:
        example: its file's name.
        devices: for each experiment, those of its device counts that the machine has room for.
    """
    content = yaml.safe_load((FOLDER / f"{example}.yaml").read_text(encoding="utf-8"))
    small: Experiments = {}
    for name, own in content["experiments"].items():
        full = content["defaults"] | own
        assert set(devices[name]) <= set(full["devices"]), f"{name} has devices {full['devices']}"
        swept = full.get("sweep", {}) | FEWER.get(name, {})
        # an experiment's sweep stands in for the default of the same key
        experiment = {key: smaller(key, value) for key, value in full.items() if key not in swept} | SMALL
        if swept:
            experiment["sweep"] = {
                key: list(dict.fromkeys(smaller(key, value) for value in values))
                for key, values in swept.items()
            }
        if name in SMALLER_IMAGES:
            experiment["image_size"] = SMALLER_IMAGES[name]
        if name in NARROWER:
            experiment["model"] = "wrn-10-1"
        small[name] = experiment | {"devices": devices[name]}
    return small


def shrunk_own(example: str) -> Experiments:
    """Return a custom script's experiments, with few steps, or two epochs and any value of the metric."""
    text = (FOLDER / f"{example}.yaml").read_text(encoding="utf-8")
    for usual, fewer in FEWER_EPOCHS.items():
        text = text.replace(usual, fewer)
    content = yaml.safe_load(text)
    small: Experiments = {}
    for name, own in content["experiments"].items():
        full = content["defaults"] | own | {"repeats": 1, "runtime_minutes": 20}
        if "steps" in full:
            full |= {"steps": 12, "warmup_steps": 3}
        if "metric" in full:
            full |= {"metric": {"pattern": full["metric"]["pattern"], "at_least": 0.0}, "devices": [2]}
        if "sweep" in full:
            full["sweep"] = {key: values[-1:] for key, values in full["sweep"].items()}
        small[name] = full
    return small


def smaller(key: str, value: Any) -> Any:
    """A setting's value on a machine without a GPU."""
    known = SMALLER.get(key, {})
    return known.get(value, value) if known else value


def place_data(folder: Path) -> None:
    """Store stand-ins where the preparation would: images for two steps of the most devices, and weights."""
    # seconds of imports, which tests that are only collected should not pay
    import torch  # noqa: PLC0415
    from torchvision.models import resnet18  # noqa: PLC0415

    from scalewise.training.prepared import write  # noqa: PLC0415

    for dataset, samples, classes, shape in (
        ("mnist", 48, 10, (1, 28, 28)),
        ("cifar10", 32, 10, (3, 32, 32)),
        ("cifar100", 32, 16, (3, 32, 32)),
    ):
        tensors = {}
        for seed, (split, count) in enumerate((("train", samples), ("test", 20))):
            images, labels = class_images(count, classes, shape, seed)
            tensors[f"{split}_images"] = torch.from_numpy(images)
            tensors[f"{split}_labels"] = torch.from_numpy(labels).long()
        write(tensors, folder / prepared_path(dataset))
    weights = {name: tensor.contiguous() for name, tensor in resnet18().state_dict().items()}
    write(weights, folder / "resources/weights/resnet18/model.safetensors")
