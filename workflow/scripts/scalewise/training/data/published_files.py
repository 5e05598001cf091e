"""Addresses of the public datasets and weights, and the sums that their files must have.

The first mirror is the fastest, for the bytes are proved by their sum and not by where they come
from: the host of CIFAR's authors has given 55 to 85 kB/s since 2026.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One file and the places that have it.

    Args:
        name: The same on every mirror.
        sha256: 64 hexadecimal digits.
        mirrors: Addresses that the name is put behind, tried in order.
    """

    name: str
    sha256: str
    mirrors: tuple[str, ...]


_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_CIFAR = (
    "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
    "https://www.cs.toronto.edu/~kriz/",
)

FILES: dict[str, tuple[PublishedFile, ...]] = {
    "mnist": (
        PublishedFile(
            "train-images-idx3-ubyte.gz",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            _MNIST,
        ),
        PublishedFile(
            "train-labels-idx1-ubyte.gz",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            _MNIST,
        ),
        PublishedFile(
            "t10k-images-idx3-ubyte.gz",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            _MNIST,
        ),
        PublishedFile(
            "t10k-labels-idx1-ubyte.gz",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            _MNIST,
        ),
    ),
    "cifar10": (
        PublishedFile(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ("https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/", *_CIFAR),
        ),
    ),
    "cifar100": (
        PublishedFile(
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            _CIFAR,
        ),
    ),
}

WEIGHTS = {
    "resnet18": PublishedFile(
        "resnet18-f37072fd.pth",
        "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
        ("https://download.pytorch.org/models/",),
    ),
}
"""ImageNet weights as torchvision publishes them, by model."""
