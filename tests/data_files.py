"""Small stand-ins for the published files, in their true formats and under their true names."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
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


def write_mnist(folder: Path, samples: int = 200, test_samples: int = 100, classes: int = 10) -> list[Path]:
    """The four gzipped idx files of MNIST."""
    written = []
    for prefix, count, seed in (("train", samples, 0), ("t10k", test_samples, 1)):
        images, labels = class_images(count, classes, (28, 28), seed)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{prefix}-{name}-ubyte.gz"
            path.write_bytes(gzip.compress(idx(array), mtime=0))
            written.append(path)
    return written


def idx(array: NDArray[np.uint8]) -> bytes:
    """An array of bytes in the idx format."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_cifar10(folder: Path, samples: int = 200, test_samples: int = 100, classes: int = 10) -> Path:
    """cifar-10-binary.tar.gz: a label and 3,072 pixels a record, the training ones in five members."""
    images, labels = class_images(samples, classes, (3072,))
    records = np.concatenate([labels[:, None], images], axis=1)
    members = {"batches.meta.txt": b"airplane\n", "readme.html": b"<html></html>\n"}
    for number, part in enumerate(np.array_split(records, 5), 1):
        members[f"data_batch_{number}.bin"] = part.tobytes()
    images, labels = class_images(test_samples, classes, (3072,), 1)
    members["test_batch.bin"] = np.concatenate([labels[:, None], images], axis=1).tobytes()
    return write_tar(folder / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", members)


def write_cifar100(folder: Path, samples: int = 200, test_samples: int = 100, classes: int = 100) -> Path:
    """cifar-100-binary.tar.gz: a coarse label, a fine one and 3,072 pixels a record."""
    members = {"fine_label_names.txt": b"apple\n", "coarse_label_names.txt": b"fruit\n"}
    for name, count, seed in (("train", samples, 0), ("test", test_samples, 1)):
        images, labels = class_images(count, classes, (3072,), seed)
        coarse = labels // 5
        members[f"{name}.bin"] = np.concatenate([coarse[:, None], labels[:, None], images], axis=1).tobytes()
    return write_tar(folder / "cifar-100-binary.tar.gz", "cifar-100-binary", members)


def write_tar(path: Path, top: str, members: dict[str, bytes]) -> Path:
    """A gzipped archive of one folder."""
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        folder = tarfile.TarInfo(top)
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in members.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
