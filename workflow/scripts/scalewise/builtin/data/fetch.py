"""Fetch published files and check them."""

from __future__ import annotations

import hashlib
import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.hub import download_url_to_file

from scalewise.builtin.data.datasets import DatasetError, writable

SILENT_SECONDS = 30.0
"""Longest wait for a connection, and for the next bytes."""

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file and where it is published.

    Args:
        sha256: 64 hexadecimal digits.
        place: Address of the folder that holds the file.
    """

    name: str
    sha256: str
    place: str


_SUMS = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    "cifar10": {
        "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    },
    "cifar100": {
        "cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    },
    "resnet18": {
        "resnet18-f37072fd.pth": "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec",
    },
}
_PLACES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    # the host of CIFAR's authors gives 55 to 85 kB/s
    "cifar10": "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10",
    "cifar100": "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets",
    "resnet18": "https://download.pytorch.org/models",
}

FILES = {
    name: tuple(PublishedFile(file, sha256, _PLACES[name]) for file, sha256 in sums.items())
    for name, sums in _SUMS.items()
}
"""The files of each dataset, and of the weights that torchvision publishes for a model."""


def fetch(file: PublishedFile, folder: Path, mirror: str | None = None, notify: Notify = print) -> Path:
    """Return the path of a file in this folder; download it if it is not there.

    A file gets its name after it was checked, so a damaged one under its name was put there by hand: it is
    refused, and never overwritten.

    Args:
        file: The published file.
        folder: Holds the file afterwards.
        mirror: An address or a folder that holds the file under its name, in place of the published one.
        notify: Gets the address of a download.

    Raises:
        DatasetError: The file cannot be downloaded or written, or has another checksum.
    """
    path = folder / file.name
    with writable(path):
        if not path.exists():
            _download(file, path, mirror or file.place, notify)
        elif _sha256(path) != file.sha256:
            raise DatasetError(
                f"{path} is damaged or another file: its sha256 is {_sha256(path)}, not {file.sha256}. "
                "Delete it to have it downloaded, or put the right file there."
            )
    return path


def _download(file: PublishedFile, path: Path, place: str, notify: Notify) -> None:
    base = place if "://" in place else Path(place).absolute().as_uri()
    url = f"{base.rstrip('/')}/{file.name}"
    notify(f"{file.name}: from {url}")
    try:
        with _time_limit():
            download_url_to_file(url, str(path), hash_prefix=file.sha256)
    # RuntimeError: torch's for a checksum
    except (OSError, http.client.HTTPException, ValueError, RuntimeError) as error:
        raise DatasetError(
            f"{file.name} cannot be downloaded from {url} to {path.parent} ({error}). Set data_mirror in the "
            "site file to an address or a folder that has it, or put it there by hand, as "
            f"{path.absolute()} with the sha256 {file.sha256}."
        ) from error


@contextmanager
def _time_limit() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
