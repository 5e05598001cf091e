"""Names and sizes of datasets and models, which the planner needs without loading or building them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.config.errors import unknown

MIRROR_VARIABLE = "SCALEWISE_DATA_MIRROR"
"""Environment variable: a folder or address with the archives under their own names, for the download."""

MAX_BYTES = 64 * 10**9
"""Largest synthetic dataset: a larger one is more likely a digit too many than intended."""

PREPARED_DATASET = "resources/datasets/{dataset}/dataset.safetensors"
"""The file of a dataset that every rank maps, as the rules name it."""

_SYNTHETIC = re.compile(
    r"synthetic-([1-9]\d{0,8})x([1-9]\d{0,8})x([1-9]\d{0,8})(?:-(\d{1,9})classes)?(?:-(\d{1,12})samples)?",
    re.ASCII,  # the digits of other scripts would make other folder names
)


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Sizes of an image classification dataset.

    Args:
        train_samples: Images to train on.
        test_samples: Images to evaluate on.
        height: Pixels.
        width: Pixels.
    """

    train_samples: int
    test_samples: int
    channels: int
    height: int
    width: int


DATASETS = {
    "digits": DatasetFacts(1437, 360, 1, 8, 8),
    "mnist": DatasetFacts(60_000, 10_000, 1, 28, 28),
    "cifar10": DatasetFacts(50_000, 10_000, 3, 32, 32),
    "cifar100": DatasetFacts(50_000, 10_000, 3, 32, 32),
}


def is_synthetic(dataset: str) -> bool:
    """Whether the dataset consists of random images."""
    return dataset.startswith("synthetic-")


def prepared_path(dataset: str) -> Path:
    """Return the prepared file, which every rank maps into memory."""
    return Path(PREPARED_DATASET.format(dataset=dataset))


def dataset_facts(dataset: str, image_size: int | None = None) -> DatasetFacts:
    """Sizes of a dataset as the model gets it.

    Args:
        dataset: A name of the configuration.
        image_size: Height and width after resizing; None keeps those of the dataset.

    Raises:
        ValueError: An unknown name, or a synthetic dataset's without a possible shape.
    """
    if not is_synthetic(dataset) and dataset not in DATASETS:
        raise unknown(dataset, [*DATASETS, "synthetic-3x32x32"])
    facts = synthetic_facts(dataset)[0] if is_synthetic(dataset) else DATASETS[dataset]
    return facts if image_size is None else replace(facts, height=image_size, width=image_size)


def synthetic_facts(dataset: str) -> tuple[DatasetFacts, int]:
    """Read the sizes of a synthetic dataset and its number of classes from its name.

    Raises:
        ValueError: The name does not contain them, or they are impossible.
    """
    match = _SYNTHETIC.fullmatch(dataset)
    if match is None:
        raise ValueError(
            f"is {dataset!r}, which does not contain a shape. Write such as "
            "synthetic-3x32x32-100classes-50000samples: channels, height, width."
        )
    channels, height, width = map(int, match.groups()[:3])
    classes, samples = int(match[4] or 10), int(match[5] or 10_000)
    test_samples = max(classes, samples // 10)
    size = (samples + test_samples) * channels * height * width
    if not 2 <= classes <= samples or size > MAX_BYTES:
        raise ValueError(
            f"is {dataset!r}: {classes} classes for {samples} samples, of {size / 1e9:,.1f} GB. Use two "
            f"classes or more, a sample of each, and at most {MAX_BYTES / 1e9:.0f} GB."
        )
    return DatasetFacts(samples, test_samples, channels, height, width), classes


MODELS = {"digits_cnn": True, "linear": False, "mnist_cnn": False, "resnet18": True, "wide_resnet": True}
"""Models of one size -> whether they normalise over the batch. The others carry their size in their names."""

SMALLEST_TRANSFORMER, LARGEST_TRANSFORMER = 1_000_000, 100_000_000_000

_WIDE_RESNET = re.compile(r"wrn-([1-9]\d{0,8})-[1-9]\d{0,8}", re.ASCII)
_TRANSFORMER = re.compile(r"transformer-(\d{1,9}(?:\.\d{1,9})?)([MG])", re.ASCII)


def known_models() -> list[str]:
    """List the names for the hint on an unknown one; an example stands for models of many sizes."""
    return [*MODELS, "wrn-28-10", "transformer-25M"]


def normalises_over_batch(model: str) -> bool:
    """Return whether a model normalises over the batch: it needs two images on each device.

    Raises:
        ValueError: An unknown name, or a size that no such model has.
    """
    if model.startswith("wrn-"):
        match = _WIDE_RESNET.fullmatch(model)
        if match is None or int(match[1]) < 10 or (int(match[1]) - 4) % 6:
            raise ValueError(
                f"is {model!r}, which is no wide ResNet. Write wrn-DEPTH-WIDENING with a depth of 6n + 4, "
                "such as wrn-28-10."
            )
        return True
    if model.startswith("transformer-"):
        match = _TRANSFORMER.fullmatch(model)
        millions = float(match[1]) * (1000 if match[2] == "G" else 1) if match else 0
        if not SMALLEST_TRANSFORMER <= millions * 1e6 <= LARGEST_TRANSFORMER:
            raise ValueError(
                f"is {model!r}, which is no transformer of a possible size. Write its parameters, from "
                "transformer-1M to transformer-100G."
            )
        return False
    try:
        return MODELS[model]
    except KeyError:
        raise unknown(model, known_models()) from None
