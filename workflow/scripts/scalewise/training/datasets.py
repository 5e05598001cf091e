"""Datasets: decoded once into uint8 tensors, then mapped by every rank.

A dataset on disk is one safetensors file: no pickle is read, and ranks of a node share its pages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file
from safetensors.torch import load_file

from scalewise.plan.catalog import DATASETS, DatasetFacts, is_file_dataset

Arrays = dict[str, NDArray[np.uint8] | NDArray[np.int64]]

TEST_SAMPLES_OF_DIGITS = 360


class DatasetError(ValueError):
    """Data that must not be trained on; the message names the file, the values and the cure."""


@dataclass(frozen=True)
class Dataset:
    """Images and labels of both splits.

    Args:
        train_images: uint8, [samples, channels, height, width].
        train_labels: int64, [samples].
        test_images: uint8, as train_images.
        test_labels: int64.
        classes: number of classes.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: int


def prepare(dataset: str, destination: Path) -> DatasetFacts:
    """Decode a dataset and store it, checked, under its final name.

    Args:
        dataset: a known name, or the path of the user's own file.
        destination: the safetensors file to write.

    Raises:
        DatasetError: the data is not what it should be.
    """
    arrays = _own(Path(dataset)) if is_file_dataset(dataset) else _DECODERS[dataset]()
    facts = check(arrays, dataset)
    if not is_file_dataset(dataset) and facts != DATASETS[dataset]:
        raise DatasetError(
            f"{dataset}: decoded as {facts}, but the catalogue says {DATASETS[dataset]}. "
            "The library that ships it has changed: pin the version in constraints.txt."
        )
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        # labels of one type, whatever integers they came as
        plain = {
            key: array if key.endswith("images") else array.astype(np.int64) for key, array in arrays.items()
        }
        save_file(plain, temporary)
        temporary.replace(destination)
    finally:
        temporary.unlink(missing_ok=True)
    return facts


def check(arrays: Mapping[str, NDArray[np.generic]], name: str) -> DatasetFacts:
    """Shapes, types, label range and class counts.

    Raises:
        DatasetError: names the array and both values.
    """
    train, test = arrays["train_images"], arrays["test_images"]
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if images.dtype != np.uint8 or images.ndim != 4 or not len(images):
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


def load(path: Path) -> Dataset:
    """Map a prepared dataset into memory; nothing is copied until it is used.

    Raises:
        DatasetError: the file is damaged.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}). Delete it and run snakemake again.") from error
    return Dataset(
        tensors["train_images"],
        tensors["train_labels"].long(),
        tensors["test_images"],
        tensors["test_labels"].long(),
        classes=int(tensors["train_labels"].max()) + 1,
    )


def _own(path: Path) -> Arrays:
    try:
        return dict(load_arrays(path))
    except (SafetensorError, OSError) as error:
        raise DatasetError(
            f"{path}: cannot be read ({error}). Write it with safetensors.numpy.save_file."
        ) from error


def _digits() -> Arrays:
    """The 1,797 handwritten digits in scikit-learn (UCI Optical Recognition, 8x8, values 0 to 16)."""
    # only to prepare: no rank pays for the import
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.reshape(-1, 1, 8, 8).astype(np.uint8),
        labels.astype(np.int64),
        test_size=TEST_SAMPLES_OF_DIGITS,
        stratify=labels,
        random_state=0,
    )
    names = ("train_images", "test_images", "train_labels", "test_labels")
    return {name: np.ascontiguousarray(array) for name, array in zip(names, split, strict=True)}


_DECODERS = {"digits": _digits}
