"""The sources of a dataset's arrays. Needed to prepare alone: no rank imports this."""

from __future__ import annotations

from pathlib import Path

from scalewise.plan.catalog.datasets import DATASETS, is_synthetic
from scalewise.training.data.decoders import decode_cifar, decode_digits, decode_mnist
from scalewise.training.data.fetch import FILES, Mirror, Notify, fetch
from scalewise.training.data.storage import Arrays
from scalewise.training.data.synthetic_images import make_synthetic


def load_arrays(dataset: str, downloads: Path, mirror: Mirror, scratch: Path, notify: Notify) -> Arrays:
    """Images and labels of both splits, as they come: their form is checked afterwards.

    Args:
        dataset: A known name.
        downloads: Holds what is fetched.
        mirror: The site's own source of downloads.
        scratch: A folder for arrays that memory need not hold.
        notify: Gets a line of progress now and then.

    Raises:
        DatasetError: The data cannot be had or read.
    """
    if is_synthetic(dataset):
        return make_synthetic(dataset, scratch)
    if dataset == "digits":
        return decode_digits(DATASETS["digits"].test_samples)
    files = {file.name: fetch(file, downloads / dataset, mirror, notify) for file in FILES[dataset]}
    if dataset == "mnist":
        return decode_mnist(files)
    return decode_cifar(dataset, *files.values())


def is_published(dataset: str, mirror: Mirror) -> bool:
    """True if a dataset's files are the published ones, so that its sizes are known."""
    return dataset in DATASETS and not any(file.name in mirror.sums for file in FILES.get(dataset, ()))
