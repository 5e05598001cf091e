"""Published files, brought here whole or not at all.

Mirrors are tried in order, and a file gets its name once its sum is right. Many processes make one
download, and an error says what to do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout

from scalewise.plan.catalog.datasets import CHECKSUMS_VARIABLE, MIRROR_VARIABLE
from scalewise.training.data.http_transfer import RetryPolicy, TransferError, redacted, transfer
from scalewise.training.data.published_files import PublishedFile
from scalewise.training.data.storage import DatasetError

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")
WAIT_MESSAGE_SECONDS = 60.0

Notify = Callable[[str], None]


class DownloadError(DatasetError):
    """A file that cannot be had; the message names it, what each mirror answered, and the fix."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """A site's own source of downloads.

    Args:
        place: An http(s):// or file:// address, or a folder, that holds the files under their own names.
            It is tried first.
        sums: sha256 by name of the files there that are not the published ones.
    """

    place: str | None = None
    sums: Mapping[str, str] | None = None

    @classmethod
    def of(cls, place: str | None, checksums: Path | None) -> Mirror:
        """The mirror that the site's two keys describe.

        Raises:
            DownloadError: The file of sums cannot be read.
        """
        return cls(place or None, read_checksums(checksums) if checksums else None)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Mirror:
        """The mirror that the rules' environment describes, which carries the site's keys.

        Raises:
            DownloadError: The file of sums cannot be read.
        """
        checksums = environ.get(CHECKSUMS_VARIABLE)
        return cls.of(environ.get(MIRROR_VARIABLE), Path(checksums) if checksums else None)

    def apply(self, file: PublishedFile) -> PublishedFile:
        """The file as this site has it: a sum of the site's own leaves no other mirror that could have it."""
        own = (self.place,) if self.place else ()
        if self.sums and file.name in self.sums:
            return replace(file, sha256=self.sums[file.name], mirrors=own)
        return replace(file, mirrors=(*own, *file.mirrors))

    def differs(self, names: Iterable[str]) -> bool:
        """True if any of the files is not the published one."""
        return any(name in (self.sums or {}) for name in names)


def read_checksums(path: Path) -> dict[str, str]:
    """Read sums by name from a file as ``sha256sum`` writes it.

    Raises:
        DownloadError: The message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DownloadError(
            f"data_checksums is {str(path)!r}, which cannot be read ({error}). Write it with sha256sum."
        ) from error
    sums = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9A-Fa-f]{64}) [ *](?:\./)?([^/]+)", line.rstrip())
        if match is None:
            raise DownloadError(
                f"{path}, line {number}: {line[:90]!r} is no sum and name. Write it with sha256sum, in the "
                "folder of the files."
            )
        sums[match[2]] = match[1].lower()
    return sums


def fetch(
    file: PublishedFile,
    folder: Path,
    mirror: Mirror | None = None,
    notify: Notify = print,
    retry: RetryPolicy | None = None,
) -> Path:
    """Have a file, from this folder or from the first mirror that gives the right bytes.

    A file already there under its name is used without the network, and never overwritten: this
    function leaves no wrong bytes under that name, so a person put them there.

    Args:
        file: Name and sum of the file, and the mirrors that are tried after the site's own.
        folder: Holds the file afterwards.
        mirror: The site's own source.
        notify: Gets a line of progress now and then.
        retry: Limits of waiting and of tries.

    Returns:
        The file's path.

    Raises:
        DownloadError: No mirror gave the file, or another lies there under its name.
    """
    file = (mirror or Mirror()).apply(file)
    path = folder / file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(path, notify):
            if path.exists():
                _check_placed(path, file)
            else:
                _try_mirrors(file, path, notify, retry or RetryPolicy())
    except OSError as error:
        raise DownloadError(
            f"{path}: cannot be written ({error.strerror or error}). Make room, or make the folder writable."
        ) from error
    return path


def _check_placed(path: Path, file: PublishedFile) -> None:
    if (found := _sha256(path)) != file.sha256:
        raise DownloadError(
            f"{path} is there already, but is not {file.name}: its sha256 is {found} "
            f"({path.stat().st_size:,} bytes), and must be {file.sha256}. Delete it to have it "
            "downloaded, or put the right file there."
        )


def _try_mirrors(file: PublishedFile, path: Path, notify: Notify, retry: RetryPolicy) -> None:
    answers = []
    for mirror in file.mirrors:
        address = _address(mirror, file.name)
        shown = redacted(address)
        notify(f"{file.name}: from {shown}")
        try:
            _retrieve(file, address, path, notify, retry)
            return
        except TransferError as error:
            answers.append(f"  {shown}: {error}")
            notify(f"{file.name}: {error}")
    variables = ", ".join(
        f"{name} is {'set' if os.environ.get(name) or os.environ.get(name.upper()) else 'not set'}"
        for name in PROXY_VARIABLES
    )
    tried = (
        "\n".join(answers) or "  no mirror: this file is not the published one, and data_mirror is not set"
    )
    raise DownloadError(
        f"{file.name} cannot be downloaded:\n{tried}\n  {variables}\n"
        "If this machine reaches the internet only through a proxy, set `proxies:` in the site file. If "
        "a copy is near, set `data_mirror:`. Or put the file there by hand and give the same command again:\n"
        f"  {path.absolute()}\n  sha256 {file.sha256}"
    )


def _retrieve(file: PublishedFile, address: str, path: Path, notify: Notify, retry: RetryPolicy) -> None:
    part = path.with_name(f".{file.name}.part")
    # bytes from before may be of another mirror or damaged: a second try begins from nothing
    for kept in (part.exists(), False):
        if urlsplit(address).scheme in ("http", "https"):
            transfer(address, part, notify, retry)
        else:
            _copy(address, part)
        if _sha256(part) == file.sha256:
            part.replace(path)
            return
        part.unlink()
        if not kept:
            raise TransferError("gave other bytes than published (their sha256 differs)")
        notify(f"{file.name}: what was kept of an earlier download does not fit; from the beginning")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(url: str, output: Path) -> None:
    source = Path(unquote(urlsplit(url).path))
    try:
        with source.open("rb") as opened, output.open("wb") as written:
            shutil.copyfileobj(opened, written, 1 << 20)
    except OSError as error:
        if error.filename != str(source):
            raise
        raise TransferError(f"cannot be read ({error.strerror})") from error


def _address(mirror: str, name: str) -> str:
    if "://" not in mirror:
        mirror = Path(mirror).absolute().as_uri()
    return f"{mirror.rstrip('/')}/{name}"


@contextmanager
def _one_at_a_time(path: Path, notify: Notify) -> Iterator[None]:
    """Hold the download of a path; say now and then that another process has it."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    # asked briefly first, so that whoever must wait hears of it
    seconds = 1.0
    while not lock.is_locked:
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            notify(f"{path.name}: another process downloads it; waiting")
            seconds = WAIT_MESSAGE_SECONDS
    try:
        yield
    finally:
        lock.release()
