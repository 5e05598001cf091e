"""Small stand-ins for the published files, in their true formats and under their true names."""

import gzip
import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray


class Trap:
    """Creates a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._folder),)


def class_images(
    samples: int, classes: int, shape: tuple[int, ...], seed: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images that a model can learn, for each class has its pattern below the noise.

    Args:
        samples: number of images; every class has one where there are enough.
        classes: number of labels in use, from 0.
        shape: of an image.
        seed: of the noise; the patterns stay, so that two splits are of one kind.

    Returns:
        images of [samples, *shape] and labels of [samples], both of uint8.
    """
    patterns = np.random.default_rng(99).integers(0, 160, (classes, *shape), dtype=np.uint8)
    labels = (np.arange(samples) % classes).astype(np.uint8)
    noise = np.random.default_rng(seed).integers(0, 96, (samples, *shape), dtype=np.uint8)
    return patterns[labels] + noise, labels


def write_archives(dataset: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Write a dataset of 120 and 100 images, which torchvision then takes for the published one."""
    # takes seconds, which tests that are only collected should not pay
    from torchvision import datasets  # noqa: PLC0415

    if dataset == "mnist":
        files = {}
        for seed, (prefix, count) in enumerate((("train", 120), ("t10k", 100))):
            images, labels = class_images(count, 10, (28, 28), seed)
            for name, array in (("images-idx3", images), ("labels-idx1", labels)):
                files[f"{prefix}-{name}-ubyte.gz"] = gzip.compress(_idx(array), mtime=0)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        patch.setattr(datasets.MNIST, "resources", [(name, _md5(content)) for name, content in files.items()])
        return
    reader, classes, labels_key = datasets.CIFAR10, 10, "labels"
    if dataset == "cifar100":
        reader, classes, labels_key = datasets.CIFAR100, 100, "fine_labels"
    members = {reader.meta["filename"]: pickle.dumps({reader.meta["key"]: list("abc")})}
    patch.setattr(reader, "meta", reader.meta | {"md5": _md5(*members.values())})
    for seed, (split, count) in enumerate((("train_list", 120), ("test_list", 100))):
        names = [name for name, _ in getattr(reader, split)]
        images, labels = class_images(count, classes, (3072,), seed)
        for name, rows, own in zip(
            names, np.array_split(images, len(names)), np.array_split(labels, len(names)), strict=True
        ):
            members[name] = pickle.dumps({"data": rows, labels_key: own.tolist()})
        patch.setattr(reader, split, [(name, _md5(members[name])) for name in names])
    archive = folder / reader.filename
    with tarfile.open(archive, "w:gz") as opened:
        for name, content in members.items():
            member = tarfile.TarInfo(f"{reader.base_folder}/{name}")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    patch.setattr(reader, "tgz_md5", _md5(archive.read_bytes()))


def _idx(array: NDArray[np.uint8]) -> bytes:
    """An array of bytes in the idx format."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
