"""Transfer of a file over HTTP: it goes on where it was cut, and waits a while, never for ever."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import requests
import urllib3.exceptions

CHUNK_BYTES = 1 << 16
RETRYABLE_STATUS = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of waiting for a mirror.

    Args:
        connect_seconds: Longest wait for a connection.
        read_seconds: Longest wait for the next bytes.
        pauses: Seconds before each new try; a try that brought slow_bytes or more is not counted.
        slow_seconds: Length of a window of time; each ends with a line of progress.
        slow_bytes: Fewest bytes of such a window; a slower mirror is left.
    """

    connect_seconds: float = 15
    read_seconds: float = 60
    pauses: tuple[float, ...] = (1, 4, 15)
    slow_seconds: float = 30
    slow_bytes: int = 30_000


class TransferError(ValueError):
    """A mirror that does not give the file; the message is its answer."""


class _InterruptedError(Exception):
    """A transfer worth another try; ``unreachable`` where nobody answered."""

    def __init__(self, what: str, unreachable: bool = False) -> None:
        super().__init__(what)
        self.unreachable = unreachable


def redacted(url: str) -> str:
    """The address without user, password and query, which may be secrets."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def transfer(url: str, part: Path, notify: Callable[[str], None], retry: RetryPolicy) -> None:
    """Bring ``part`` to the whole of what the address gives; what arrived stays there in any case.

    Raises:
        TransferError: The mirror does not have it, or was tried often enough.
        OSError: ``part`` cannot be written.
    """
    failures = 0
    arrived = False
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _attempt(url, part, notify, retry)
            return
        except _InterruptedError as error:
            failures += 1
            if part.exists() and part.stat().st_size - before >= retry.slow_bytes:
                arrived, failures = True, 1
            # who has never answered is not waited for as long as who has stopped
            tries = 2 if error.unreachable and not arrived else len(retry.pauses) + 1
            if failures >= tries:
                raise TransferError(f"{error}; tried {failures} times") from error
            pause = retry.pauses[failures - 1]
            notify(f"{urlsplit(url).hostname}: {error}; again in {pause:.0f} s")
            time.sleep(pause)


def _attempt(url: str, part: Path, notify: Callable[[str], None], retry: RetryPolicy) -> None:
    kept = part.stat().st_size if part.exists() else 0
    # bytes as they are stored: some servers would unpack a .gz on its way
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={kept}-"} if kept else {})
    try:
        with requests.get(
            url, headers=headers, stream=True, timeout=(retry.connect_seconds, retry.read_seconds)
        ) as response:
            offset, total = _accept(response, kept, part)
            if offset:
                notify(f"{urlsplit(url).hostname}: goes on at {offset / 1e6:.1f} MB")
            _write(response, part, offset, total, notify, retry)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        unreachable = isinstance(error, requests.ConnectionError) or _is_of_proxy(error)
        raise _InterruptedError(_reason(error, retry), unreachable) from error


def _accept(response: requests.Response, kept: int, part: Path) -> tuple[int, int | None]:
    """The offset at which an answer's bytes belong, and the size of the whole file where it says so.

    Raises:
        TransferError: The answer is not the file.
        _InterruptedError: The answer may be the file if asked again.
    """
    status = f"{response.status_code} {response.reason}".strip()
    if response.status_code == 416:  # the part is longer than the file: it is of another
        part.unlink(missing_ok=True)
        raise _InterruptedError(f"answered {status} to {kept:,} bytes and on")
    if response.status_code in RETRYABLE_STATUS:
        raise _InterruptedError(f"answered {status}")
    if response.status_code not in (200, 206):
        raise TransferError(f"answered {status}")
    if response.headers.get("Content-Type", "").startswith(("text/html", "application/xhtml")):
        raise TransferError("gave a web page in place of the file")
    length = response.headers.get("Content-Length", "")
    size = int(length) if re.fullmatch(r"\d{1,18}", length) else None
    if response.status_code == 200:
        return 0, size
    begins = re.match(r"bytes (\d{1,18})-", response.headers.get("Content-Range", ""))
    if begins is None or int(begins[1]) != kept:
        part.unlink(missing_ok=True)
        raise _InterruptedError(f"gave another range than {kept:,} bytes and on")
    return kept, None if size is None else kept + size


def _write(
    response: requests.Response,
    part: Path,
    offset: int,
    total: int | None,
    notify: Callable[[str], None],
    retry: RetryPolicy,
) -> None:
    host = urlsplit(response.url).hostname
    done = window = offset
    began = time.monotonic()
    with part.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        for chunk in _chunks(response):
            file.write(chunk)
            done += len(chunk)
            seconds = time.monotonic() - began
            if seconds >= retry.slow_seconds:
                if done - window < retry.slow_bytes:
                    raise _InterruptedError(f"gave {done - window:,} bytes in {seconds:.0f} s")
                of_total = "" if total is None else f" of {total / 1e6:.0f}"
                rate = (done - window) / seconds
                notify(f"{host}: {done / 1e6:.0f}{of_total} MB, {rate / 1e3:,.0f} kB/s")
                window, began = done, time.monotonic()
    if total is not None and done != total:
        raise _InterruptedError(f"ended after {done:,} of {total:,} bytes")


def _chunks(response: requests.Response) -> Iterator[bytes]:
    """Yield bytes as they arrive: waiting for a full piece would lose them where the line is cut."""
    while chunk := response.raw.read1(CHUNK_BYTES, decode_content=False):
        yield chunk


def _reason(error: BaseException, retry: RetryPolicy) -> str:
    """Name the fault in a few words of ours: an exception's text may hold an address with a password."""
    if isinstance(error, requests.ConnectTimeout):
        return f"did not answer within {retry.connect_seconds:.0f} s"
    if _is_of_proxy(error):
        return f"could not be reached: the proxy did not answer within {retry.connect_seconds:.0f} s"
    if isinstance(error, requests.ReadTimeout | urllib3.exceptions.ReadTimeoutError):
        return f"was silent for {retry.read_seconds:.0f} s"
    if isinstance(error, requests.exceptions.ProxyError):
        return "could not be reached through the proxy"
    if isinstance(error, requests.exceptions.SSLError):
        return "has a certificate that is not accepted"
    if isinstance(error, urllib3.exceptions.IncompleteRead | urllib3.exceptions.ProtocolError):
        return "cut the connection"
    cause: BaseException | None = error
    while cause is not None:
        # the system's own words: unknown name, refused, unreachable
        if isinstance(cause, OSError) and cause.strerror and not isinstance(cause, requests.RequestException):
            return f"could not be reached ({cause.strerror})"
        cause = cause.__cause__ or cause.__context__
    return "could not be reached" if isinstance(error, requests.ConnectionError) else type(error).__name__


def _is_of_proxy(error: BaseException) -> bool:
    """Return whether a proxy accepted the connection, and was silent when asked for the way to a mirror."""
    if not isinstance(error, requests.ReadTimeout) or error.request is None or not error.args:
        return False
    timeout = error.args[0]
    # urllib3 names the address of the proxy, and of anything else on https the path
    of_tunnel = isinstance(timeout, urllib3.exceptions.ReadTimeoutError) and "://" in (timeout.url or "")
    return of_tunnel and str(error.request.url).startswith("https:")
