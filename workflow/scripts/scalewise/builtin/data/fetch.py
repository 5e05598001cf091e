"""Fetch published files: from several mirrors in turn, resumed where they were cut, right to the last byte.

A file gets its name once its sha256 is right, so it does not matter where its bytes come from: the fastest
mirror is first. The host of CIFAR's authors has given 55 to 85 kB/s since 2026.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
import urllib3.exceptions
from filelock import FileLock, Timeout

from scalewise.builtin.data.datasets import DatasetError, writable

SILENT_SECONDS = 15.0
"""Longest wait for a connection, and for the next bytes."""

WINDOW_SECONDS, SLOW_BYTES = 30.0, 30_000
"""Each window of time ends with a line of progress; a mirror that gives fewer bytes in one is left."""

PAUSES = (0.0, 2.0, 10.0)
"""Seconds before each round over the mirrors."""

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file and the places that have it.

    Args:
        name: The same on every mirror.
        sha256: 64 hexadecimal digits.
        mirrors: Folders and addresses that hold the name, tried in order.
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
_CIFAR10 = ("https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/", *_CIFAR)
_TORCHVISION = ("https://download.pytorch.org/models/",)
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
_MIRRORS = {"mnist": _MNIST, "cifar10": _CIFAR10, "cifar100": _CIFAR, "resnet18": _TORCHVISION}

FILES = {
    name: tuple(PublishedFile(file, sha256, _MIRRORS[name]) for file, sha256 in sums.items())
    for name, sums in _SUMS.items()
}
"""The files of each dataset, and of the weights that torchvision publishes for a model."""


def fetch(file: PublishedFile, folder: Path, mirror: str | None = None, notify: Notify = print) -> Path:
    """Return the path of a file in this folder; unless it is there, download it from the first good mirror.

    A file that is already there under its name is used without the network, and never overwritten: no
    download leaves wrong bytes under that name, so a person put them there.

    Args:
        file: Name and checksum of the file, and the mirrors that are tried after the site's own.
        folder: Holds the file afterwards.
        mirror: The site's source, which is tried first: an http(s):// or file:// address, or a folder, that
            holds the files under their own names.
        notify: Gets a line of progress now and then.

    Raises:
        DatasetError: No mirror gave the file, or another one is there under its name.
    """
    file = replace(file, mirrors=(mirror, *file.mirrors)) if mirror else file
    path = folder / file.name
    with writable(path), _one_at_a_time(path, notify):
        if not path.exists():
            _download(file, path, notify)
        elif (found := _sha256(path)) != file.sha256:
            raise DatasetError(
                f"{path} is there already, but is not {file.name}: its sha256 is {found} "
                f"({_size(path):,} bytes), and must be {file.sha256}. Delete it to have it "
                "downloaded, or put the right file there."
            )
    return path


@contextmanager
def _one_at_a_time(path: Path, notify: Notify) -> Iterator[None]:
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        notify(f"{path.name}: another process downloads it; waiting")
        held = lock.acquire()
    with held:
        yield


class _MirrorError(Exception):
    """A mirror does not give the file; ``final`` if another try would not help."""

    def __init__(self, answer: str, final: bool = False) -> None:
        super().__init__(answer)
        self.final = final


def _download(file: PublishedFile, path: Path, notify: Notify) -> None:
    """Try the mirrors in turn; bytes that one of them gave are kept for the next one."""
    part = path.with_name(f".{file.name}.part")
    places = (place if "://" in place else Path(place).absolute().as_uri() for place in file.mirrors)
    addresses = [f"{place.rstrip('/')}/{file.name}" for place in places]
    answers = {}
    for pause in PAUSES:
        time.sleep(pause)
        for address in tuple(addresses):
            shown = redacted(address)
            notify(f"{file.name}: from {shown}")
            try:
                _obtain(file, address, part, notify)
                part.replace(path)
                return
            except _MirrorError as error:
                answers[shown] = f"  {shown}: {error}"
                notify(f"{file.name}: {error}")
                if error.final:
                    addresses.remove(address)
    variables = ", ".join(
        f"{name} is {'set' if os.environ.get(name) or os.environ.get(name.upper()) else 'not set'}"
        for name in PROXY_VARIABLES
    )
    tried = "\n".join(answers.values())
    raise DatasetError(
        f"{file.name} cannot be downloaded:\n"
        f"{tried}\n"
        f"  {variables}\n"
        "If this machine reaches the internet only through a proxy, set https_proxy in the shell. If "
        "a copy is near, set `data_mirror:`. Or put the file there by hand and give the same command again:\n"
        f"  {path.absolute()}\n  sha256 {file.sha256}"
    )


def _obtain(file: PublishedFile, address: str, part: Path, notify: Notify) -> None:
    """Bring ``part`` to the whole file, from an address that is tried again as long as it brings bytes."""
    while True:
        before = _size(part)
        try:
            _transfer(address, part, notify)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            if _size(part) - before < SLOW_BYTES:
                raise _MirrorError(*_reason(address, error)) from error
            continue
        if _sha256(part) == file.sha256:
            return
        part.unlink()
        if not before:
            raise _MirrorError("gave other bytes than published (their sha256 differs)", final=True)
        notify(f"{file.name}: an earlier download left other bytes; starting again")


def _transfer(address: str, part: Path, notify: Notify) -> None:
    """Add to ``part`` what is missing of the file at the address; what arrives stays there in any case."""
    url = urlsplit(address)
    if url.scheme == "file":
        source = Path(unquote(url.path))
        try:
            opened = source.open("rb")
        except OSError as error:
            raise _MirrorError(f"cannot be read ({error.strerror})", final=True) from error
        with opened, part.open("wb") as file:
            shutil.copyfileobj(opened, file)
        return
    kept = _size(part)
    # bytes as they are stored: some servers unpack a .gz as they send it
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={kept}-"} if kept else {})
    with requests.get(address, headers=headers, stream=True, timeout=SILENT_SECONDS) as response:
        if response.status_code == requests.codes.range_not_satisfiable:
            part.unlink(missing_ok=True)  # longer than the file, so of another one
        response.raise_for_status()
        if response.headers.get("Content-Type", "").startswith(("text/html", "application/xhtml")):
            raise _MirrorError("gave a web page in place of the file", final=True)
        with part.open("ab" if response.status_code == requests.codes.partial_content else "wb") as file:
            done = window = file.tell()
            missing, began = response.raw.length_remaining, time.monotonic()
            of_total = f" of {(done + missing) / 1e6:.0f}" if missing else ""
            # read1 returns what has arrived: waiting for a full piece would lose it where the line is cut
            while chunk := response.raw.read1(1 << 16, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                if (seconds := time.monotonic() - began) >= WINDOW_SECONDS:
                    if done - window < SLOW_BYTES:
                        raise _MirrorError(f"gave {done - window:,} bytes in {seconds:.0f} s")
                    rate = (done - window) / seconds / 1e3
                    notify(f"{url.hostname}: {done / 1e6:.0f}{of_total} MB, {rate:,.0f} kB/s")
                    window, began = done, time.monotonic()


def _reason(address: str, error: Exception) -> tuple[str, bool]:
    """Say why a transfer ended, and whether for good; an error's own text may hold a password."""
    if isinstance(error, requests.HTTPError):
        status = error.response.status_code
        final = 400 <= status < 500 and status not in {408, 416, 425, 429}
        return f"answered {status} {error.response.reason}", final
    if isinstance(error, requests.exceptions.SSLError):
        return "has a certificate that is not accepted", False
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return "cut the connection", False
    proxy = requests.utils.select_proxy(address, requests.utils.get_environ_proxies(address))
    way = " through the proxy" if proxy else ""
    if isinstance(error, requests.Timeout | urllib3.exceptions.ReadTimeoutError):
        return f"did not answer{way} for {SILENT_SECONDS:.0f} s", False
    cause: BaseException = error
    while (before := cause.__cause__ or cause.__context__) is not None:
        cause = before
    # the system's words, such as unknown name or refused, or the proxy's
    words = str(cause) if type(cause) is OSError else getattr(cause, "strerror", None) or type(cause).__name__
    return f"could not be reached{way} ({words})", False


def redacted(url: str) -> str:
    """Return the address without user, password and query, which may be secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
