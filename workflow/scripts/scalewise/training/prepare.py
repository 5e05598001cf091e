"""Prepare datasets for the ranks, on a machine with internet access."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from scalewise.config.catalog import DATASETS, DatasetFacts, dataset_facts, is_synthetic
from scalewise.training.data import DatasetError
from scalewise.training.prepared import writable, write
from scalewise.training.published import Notify, read_published
from scalewise.training.synthetic_images import make_synthetic

DOWNLOADS = Path("resources/downloads")


def prepare(
    dataset: str,
    destination: Path,
    *,
    downloads: Path = DOWNLOADS,
    mirror: str | None = None,
    notify: Notify = print,
) -> DatasetFacts:
    """Store a dataset as tensors under its final name.

    Args:
        dataset: A known name.
        destination: The file to write, which ``data.read`` reads.
        downloads: Holds what is fetched, and files placed by hand: downloads/{dataset}/{file}.
        mirror: The site's source of downloads, or None.
        notify: Gets the address of a download.

    Raises:
        DatasetError: The data is not what it should be, or cannot be had or stored.
    """
    try:
        planned = dataset_facts(dataset)
    except ValueError as error:
        raise DatasetError(f"dataset {error}") from error
    with writable(destination):
        if is_synthetic(dataset):
            tensors = make_synthetic(dataset, destination.parent)
        elif dataset == "digits":
            tensors = read_digits()
        else:
            tensors = read_published(dataset, downloads / dataset, mirror, notify)
        train = tensors["train_images"]
        facts = DatasetFacts(len(train), len(tensors["test_images"]), *train.shape[1:])
        if facts != planned:
            raise DatasetError(
                f"{dataset} has {facts}, but the plan counts on {planned}. "
                "The library that ships it has changed: pin its version in constraints.txt."
            )
        write(tensors, destination)
    return facts


def read_digits() -> dict[str, torch.Tensor]:
    """Return the 1,797 handwritten digits in scikit-learn (UCI Optical Recognition, 8x8, values 0 to 16)."""
    # takes seconds to import, and only the digits need it
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.reshape(-1, 1, 8, 8).astype(np.uint8),
        labels.astype(np.int64),
        test_size=DATASETS["digits"].test_samples,
        stratify=labels,
        random_state=0,
    )
    names = ("train_images", "test_images", "train_labels", "test_labels")
    return {name: torch.from_numpy(array) for name, array in zip(names, split, strict=True)}
