"""Datasets: decoded once into uint8 tensors, then mapped by every rank.

A dataset on disk is one safetensors file: no pickle is read, and ranks of a node share its pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from scalewise.plan.catalog.datasets import DATASETS, DatasetFacts
from scalewise.plan.config.errors import RefusedValueError
from scalewise.training.data import storage
from scalewise.training.data.storage import DatasetError

if TYPE_CHECKING:
    from scalewise.training.data.fetch import Mirror, Notify

__all__ = ["Dataset", "DatasetError", "check", "load", "prepare"]

DOWNLOADS = Path("resources/downloads")


@dataclass(frozen=True)
class Dataset:
    """Images and labels of both splits.

    Args:
        train_images: uint8, [samples, channels, height, width].
        train_labels: int64, [samples].
        test_images: uint8, [samples, channels, height, width].
        test_labels: int64, [samples].
        classes: Number of classes; labels are 0 to one less.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: int


def prepare(
    dataset: str,
    destination: Path,
    *,
    downloads: Path = DOWNLOADS,
    mirror: Mirror | None = None,
    notify: Notify = print,
) -> DatasetFacts:
    """Decode a dataset and store it, checked, under its final name.

    Args:
        dataset: A known name.
        destination: The safetensors file to write.
        downloads: Holds what is fetched, and files placed by hand: downloads/{dataset}/{file}.
        mirror: The site's own source of downloads.
        notify: Gets a line of progress now and then.

    Raises:
        DatasetError: The data is not what it should be, or cannot be had.
    """
    # only to prepare: what reads and downloads is needed by no rank
    from scalewise.training.data.fetch import Mirror  # noqa: PLC0415
    from scalewise.training.data.sources import is_published, load_arrays  # noqa: PLC0415

    mirror = mirror or Mirror()
    try:
        with storage.scratch_folder(destination) as scratch:
            arrays = load_arrays(dataset, downloads, mirror, scratch, notify)
            facts = check(arrays, dataset)
            if is_published(dataset, mirror) and facts != DATASETS[dataset]:
                raise DatasetError(
                    f"{dataset}: decoded as {facts}, but the catalogue says {DATASETS[dataset]}. "
                    "The library that ships it has changed: pin the version in constraints.txt."
                )
            storage.write(_plain(arrays), destination)
    except RefusedValueError as error:
        raise DatasetError(f"dataset {error.text}. {error.fix}") from error
    except OSError as error:
        raise DatasetError(
            f"{destination}: cannot be written ({error.strerror or error}). Make room, or make "
            "the folder writable."
        ) from error
    return facts


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


def load(path: Path, verify_bytes: int = storage.VERIFY_BYTES) -> Dataset:
    """Map a prepared dataset into memory; images are not copied, and ranks of a node share their pages.

    Args:
        path: The prepared file.
        verify_bytes: Limit of what is compared with the file's sums; the labels are in any case.

    Raises:
        DatasetError: The file is missing or damaged.
    """
    try:
        storage.verify(path, verify_bytes)
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise DatasetError(
            f"the prepared dataset {path} is missing. Give the same command again: it prepares the data."
        ) from error
    except (SafetensorError, OSError, storage.DamagedFileError) as error:
        raise DatasetError(
            f"the prepared dataset {path} is damaged ({error}). Delete it and give the same command again."
        ) from error
    # copies the labels alone
    train_labels, test_labels = (tensors[f"{split}_labels"].long() for split in ("train", "test"))
    return Dataset(
        tensors["train_images"],
        train_labels,
        tensors["test_images"],
        test_labels,
        classes=int(train_labels.max()) + 1,
    )


def _plain(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """The arrays as ranks map them: contiguous, and labels of one type, whatever integers they came as."""
    return {
        name: np.ascontiguousarray(array if name.endswith("images") else array.astype(np.int64))
        for name, array in arrays.items()
    }
