"""The shipped examples, made small: the same experiments and launchers, for CPUs and in seconds.

What is shrunk stands in the tables here, and nothing else is changed. Their data are stand-ins.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.data_files import class_images

from scalewise.config.catalog import prepared_path

FOLDER = Path(__file__).parents[1] / "config" / "examples"
OWN_EXAMPLES = sorted(path.stem for path in FOLDER.glob("own-*.yaml"))
"""Studies of scripts as users have them."""

EXAMPLES = sorted({path.stem for path in FOLDER.glob("*.yaml")} - set(OWN_EXAMPLES))
"""Studies of the trainings that Scalewise ships."""

Experiments = dict[str, dict[str, Any]]

SMALL = {"epochs": 1, "repeats": 1, "warmup_steps": 1, "runtime_minutes": 20, "timeout_seconds": 600}
"""In every experiment."""

IN_PLACE: dict[str, Any] = {
    "batch_size_per_device": 4,
    "global_batch_size": 8,
    "cpus_per_device": 1,
    # nodes of the tests' cluster have 64 GB for several runs at once
    "memory_gb": 4,
    "stop_patience_epochs": 1,
    # ResNet-18 takes its ImageNet stem from 64 pixels on
    "image_size": 64,
    # compiling takes longer than all else here
    "compile": False,
}
"""Values of keys that an experiment has."""

SMALLER = {"transformer-100M": "transformer-1M", "wide_resnet": "wrn-10-1", "fp16": "bf16", "tf32": "fp32"}
"""Models, and formats that CPUs have, in place of others."""

EIGHT_PIXELS = {"image_size": 8}
SMALLER_IMAGES = {"palmetto-plain": EIGHT_PIXELS, "palmetto-torchrun": EIGHT_PIXELS}
"""A step of a ResNet-18 takes 1.7 GFLOP for an image of 32 by 32."""

FEWER_EPOCHS = {
    "--epochs=8": "--epochs=2",
    "argument: {epochs: 8}": "argument: {epochs: 2}",
    "draw_images.py,": "draw_images.py, --images=80,",
}
"""Of custom scripts, which run to their own end if an experiment has a metric."""


def shrunk(example: str, devices: Mapping[str, list[int | str]]) -> Experiments:
    """Return an example's experiments, their defaults merged in, small: sweeps are of launchers only.

    Args:
        example: Name of its file.
        devices: For each experiment, those of its device counts that the cluster has room for.
    """
    content = yaml.safe_load((FOLDER / f"{example}.yaml").read_text(encoding="utf-8"))
    small: Experiments = {}
    for name, own in content["experiments"].items():
        full = content["defaults"] | own
        assert set(devices[name]) <= set(full["devices"]), f"{name} has devices {full['devices']}"
        swept = full.pop("sweep", {})
        full |= {key: values[-1] for key, values in swept.items() if key != "launcher"}
        full = {
            key: IN_PLACE.get(key, SMALLER.get(value, value) if isinstance(value, str) else value)
            for key, value in full.items()
        }
        if "launcher" in swept:
            full["sweep"] = {"launcher": swept["launcher"]}
        small[name] = full | SMALL | SMALLER_IMAGES.get(name, {}) | {"devices": devices[name]}
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
