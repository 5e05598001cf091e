"""Public datasets: downloaded and checked once, and read by torchvision."""

from __future__ import annotations

import hashlib
import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.hub import download_url_to_file

from scalewise.training.data import DatasetError
from scalewise.training.prepared import writable

SILENT_SECONDS = 30.0
"""Longest wait for a connection, and for the next bytes."""

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file on the internet.

    Args:
        checksum: Hexadecimal digits.
        algorithm: A name in hashlib.
    """

    url: str
    checksum: str
    algorithm: str = "md5"

    @property
    def name(self) -> str:
        """Name of the file, the same on every mirror."""
        return self.url.rpartition("/")[2]

    def checksum_of(self, path: Path) -> str:
        """Return the checksum of another file."""
        with path.open("rb") as file:
            return hashlib.file_digest(
                file, lambda: hashlib.new(self.algorithm, usedforsecurity=False)
            ).hexdigest()


def archives_of(dataset: str) -> list[PublishedFile]:
    """Return the archives of a dataset, with torchvision's addresses and checksums."""
    reader = _reader(dataset)
    if dataset == "mnist":
        return [PublishedFile(f"{reader.mirrors[0]}{name}", md5) for name, md5 in reader.resources]
    return [PublishedFile(reader.url, reader.tgz_md5)]


def _reader(dataset: str) -> Any:
    # takes seconds to import, and only these datasets need it
    from torchvision import datasets  # noqa: PLC0415

    return getattr(datasets, dataset.upper())


def read_published(
    dataset: str, folder: Path, mirror: str | None = None, notify: Notify = print
) -> dict[str, torch.Tensor]:
    """Return images and labels of both splits, by their names in ``Dataset``.

    Args:
        dataset: mnist, cifar10 or cifar100.
        folder: Keeps the archives.
        mirror: See ``fetch``.
        notify: Gets the address of a download.

    Raises:
        DatasetError: An archive cannot be had, or there is no room.
    """
    from torchvision.datasets.utils import extract_archive  # noqa: PLC0415

    archives = [fetch(file, folder, mirror, notify) for file in archives_of(dataset)]
    tensors = {}
    with writable(folder / "unpacked"), TemporaryDirectory(prefix=".unpacked.", dir=folder) as root:
        unpacked = Path(root, "MNIST", "raw") if dataset == "mnist" else Path(root)
        unpacked.mkdir(parents=True, exist_ok=True)
        for archive in archives:
            extract_archive(str(archive), str(unpacked))
        for split in ("train", "test"):
            read = _reader(dataset)(root, train=split == "train")
            images = torch.as_tensor(read.data)
            # [samples, height, width] without channels, or with them last
            images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
            tensors[f"{split}_images"] = images.contiguous()
            tensors[f"{split}_labels"] = torch.as_tensor(read.targets)
    return tensors


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
            _download(file, path, mirror, notify)
        elif (found := file.checksum_of(path)) != file.checksum:
            raise DatasetError(
                f"{path} is damaged or another file: its {file.algorithm} is {found}, not {file.checksum}. "
                "Delete it to have it downloaded, or put the right file there."
            )
    return path


def _download(file: PublishedFile, path: Path, mirror: str | None, notify: Notify) -> None:
    url = file.url
    if mirror is not None:
        base = mirror if "://" in mirror else Path(mirror).absolute().as_uri()
        url = f"{base.rstrip('/')}/{file.name}"
    notify(f"{file.name}: from {url}")
    try:
        with _time_limit(), TemporaryDirectory(prefix=".part.", dir=path.parent) as place:
            part = Path(place, file.name)
            download_url_to_file(url, str(part))
            if (found := file.checksum_of(part)) != file.checksum:
                raise ValueError(f"other bytes than published: their {file.algorithm} is {found}")
            part.replace(path)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DatasetError(
            f"{file.name} cannot be downloaded from {url} to {path.parent} ({error}). Behind a "
            "proxy, set https_proxy in the shell. If a copy is near, set SCALEWISE_DATA_MIRROR to its "
            f"folder or address. Or put the file there by hand: {path.absolute()} ({file.algorithm} "
            f"{file.checksum})."
        ) from error


@contextmanager
def _time_limit() -> Iterator[None]:
    """Limit each wait for the network within this block; torch.hub has no parameter for it."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
