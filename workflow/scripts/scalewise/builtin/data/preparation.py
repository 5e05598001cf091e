"""Prepare datasets and pretrained weights for the ranks, on a machine with internet access."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from scalewise.builtin.data.datasets import DatasetError, writable, write
from scalewise.builtin.data.decoders import decode_cifar, decode_digits, decode_mnist
from scalewise.builtin.data.fetch import FILES, Notify, fetch
from scalewise.builtin.data.synthetic_images import make_synthetic
from scalewise.plan.catalog.datasets import DATASETS, DatasetFacts, is_synthetic
from scalewise.plan.config.errors import RefusedValueError

DOWNLOADS = Path("resources/downloads")


def prepare(
    dataset: str,
    destination: Path,
    *,
    downloads: Path = DOWNLOADS,
    mirror: str | None = None,
    notify: Notify = print,
) -> DatasetFacts:
    """Decode a dataset, check it, and store it under its final name.

    Args:
        dataset: A known name.
        destination: The file to write, which ``datasets.load`` reads.
        downloads: Holds what is fetched, and files placed by hand: downloads/{dataset}/{file}.
        mirror: The site's source of downloads, or None.
        notify: Gets a line of progress now and then.

    Raises:
        DatasetError: The data is not what it should be, or cannot be had or stored.
    """
    with writable(destination):
        if is_synthetic(dataset):
            try:
                arrays = make_synthetic(dataset, destination.parent)
            except RefusedValueError as error:
                raise DatasetError(f"dataset {error.text}. {error.fix}") from error
        elif dataset == "digits":
            arrays = decode_digits(DATASETS["digits"].test_samples)
        else:
            paths = {file.name: fetch(file, downloads / dataset, mirror, notify) for file in FILES[dataset]}
            arrays = decode_mnist(paths) if dataset == "mnist" else decode_cifar(dataset, *paths.values())
        facts = check(arrays, dataset)
        if facts != DATASETS.get(dataset, facts):
            raise DatasetError(
                f"{dataset}: decoded as {facts}, but the catalogue says {DATASETS[dataset]}. "
                "The library that ships it has changed: pin the version in constraints.txt."
            )
        write({name: _as_tensor(name, array) for name, array in arrays.items()}, destination)
    return facts


def _as_tensor(name: str, array: NDArray[np.generic]) -> torch.Tensor:
    """Return images as uint8 and labels as int64, whatever integers they came as; copied only if needed."""
    return torch.from_numpy(np.require(array, np.uint8 if name.endswith("images") else np.int64, ["C", "W"]))


def prepare_weights(
    model: str,
    destination: Path,
    *,
    downloads: Path = DOWNLOADS,
    mirror: str | None = None,
    notify: Notify = print,
) -> int:
    """Fetch the weights that torchvision publishes for a model, and store them by their names.

    Args:
        model: A name such as resnet18.
        destination: The file to write, which ``datasets.read`` reads.
        downloads: Holds what is fetched: downloads/{model}/{file}.
        mirror: The site's source of downloads, or None.
        notify: Gets a line of progress now and then.

    Returns:
        Number of tensors.

    Raises:
        DatasetError: The file cannot be had, holds no weights, or cannot be stored.
    """
    (file,) = FILES[model]
    path = fetch(file, downloads / model, mirror, notify)
    try:
        # the published format is a pickle; torch reads its tensors, and refuses everything else in it
        state = torch.load(path, map_location="cpu", weights_only=True)
        # tensors may share memory there
        tensors = {str(name): tensor.clone().contiguous() for name, tensor in state.items()}
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError) as error:
        raise DatasetError(
            f"{path}: does not hold tensors by name, and nothing else ({type(error).__name__}). Delete it "
            "and give the same command again."
        ) from error
    write(tensors, destination)
    return len(tensors)


def check(arrays: Mapping[str, NDArray[np.generic]], name: str) -> DatasetFacts:
    """Check shapes, types, range of labels and number of classes.

    Raises:
        DatasetError: The message names the array and both values.
    """
    train, test = arrays["train_images"], arrays["test_images"]
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if images.dtype != np.uint8 or images.ndim != 4 or not images.size:
            raise DatasetError(
                f"{name}: {split}_images are {images.dtype} of shape {list(images.shape)}, "
                "not uint8 of [samples, channels, height, width] with at least one sample."
            )
        if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
            raise DatasetError(
                f"{name}: {split}_labels are {labels.dtype} of shape {list(labels.shape)}, "
                f"not {len(images)} integers."
            )
        if labels.min() < 0:
            raise DatasetError(f"{name}: {split}_labels go down to {labels.min()}; use 0 and up.")
    if train.shape[1:] != test.shape[1:]:
        raise DatasetError(
            f"{name}: train_images are {list(train.shape[1:])} each, test_images "
            f"{list(test.shape[1:])}; both must have one shape."
        )
    # only what is there: an array as long as the largest label could be endless
    present = np.unique(arrays["train_labels"])
    classes = int(present[-1]) + 1
    if len(present) < 2 or len(present) < classes:
        first_gap = next((n for n, label in enumerate(present) if n != label), len(present))
        raise DatasetError(
            f"{name}: train_labels go up to {classes - 1}, but only {len(present)} classes have an image; "
            f"class {first_gap} has none. Number two classes or more from 0 without gaps."
        )
    if int(arrays["test_labels"].max()) >= classes:
        raise DatasetError(
            f"{name}: test_labels go up to {int(arrays['test_labels'].max())}, but training has "
            f"{classes} classes, 0 to {classes - 1}."
        )
    return DatasetFacts(len(train), len(test), *train.shape[1:])
