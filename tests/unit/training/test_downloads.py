"""A download gives the right file or an error that says what to do, whatever the network does."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalewise.training import published as downloads
from scalewise.training.data import DatasetError
from scalewise.training.published import PublishedFile, fetch

refuses = pytest.mark.refuses

CONTENT = np.random.default_rng(0).bytes(300_000)
SUM = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
NAME = "data.tar.gz"
OTHER = "other bytes than published"


class Request(BaseHTTPRequestHandler):
    """One request, which is answered as the server says."""

    server: FileServer

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.server.status is None:
            self.server.ended.wait(30)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(self.server.length))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests look at ``paths`` instead."""


class FileServer(ThreadingHTTPServer):
    """Gives each request one answer, and keeps the paths that were requested."""

    daemon_threads = True

    def __init__(self, content: bytes, status: int | None, length: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.content, self.status, self.length = content, status, length or len(content)
        self.paths: list[str] = []
        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is part of the tests."""


@contextmanager
def serving(
    content: bytes = b"", status: int | None = 200, length: int | None = None
) -> Iterator[FileServer]:
    """A server for the length of a with statement.

    Args:
        content: Of the file.
        status: Of the answer; None for a connection that stays open without one.
        length: Where the connection ends before so many bytes.
    """
    server = FileServer(content, status, length)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def near_and_quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The servers are on this machine, and answer soon or never."""
    monkeypatch.setattr(downloads, "SILENT_SECONDS", 0.5)
    # it keeps the proxies of its first download in this process
    monkeypatch.setattr("urllib.request._opener", None)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    yield
    # two downloads of one process leave the limit of the first to end
    socket.setdefaulttimeout(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "data"


def data_at(address: str = "http://127.0.0.1:9") -> PublishedFile:
    """The file at an address, or where nothing listens."""
    return PublishedFile(f"{address}/{NAME}", SUM)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_once_and_then_used_without_the_network(folder: Path) -> None:
    with serving(CONTENT) as server:
        assert fetch(data_at(server.address), folder) == folder / NAME
        assert fetch(data_at(server.address), folder) == folder / NAME
        assert server.paths == [f"/{NAME}"]
    assert fetch(data_at(), folder).read_bytes() == CONTENT
    assert files(folder) == [NAME]


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param({"status": 404}, "404: Not Found", id="no such file"),
        pytest.param({"status": 503}, "503: Service Unavailable", id="a busy server"),
        pytest.param(
            {"content": b"<html>login</html>"},
            OTHER,
            id="a web page",
            marks=refuses("data: html for an archive"),
        ),
        pytest.param(
            {"content": CONTENT[:-1] + b"!"}, OTHER, id="wrong bytes", marks=refuses("data: wrong checksum")
        ),
        pytest.param(
            {"content": CONTENT[:-1], "length": len(CONTENT)},
            OTHER,
            id="cut",
            marks=refuses("data: truncated"),
        ),
        pytest.param({"status": None}, "timed out", id="silent"),
    ],
)
def test_a_download_that_fails_names_address_error_and_fix_and_leaves_nothing(
    bad: dict[str, Any], reason: str, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    with serving(**bad) as server, pytest.raises(DatasetError) as refused:
        fetch(data_at(server.address), folder)

    message = str(refused.value)
    record_property("message", message.replace(str(folder.parents[1]), "/scratch"))
    assert message.startswith(f"{NAME} cannot be downloaded from {server.address}/{NAME} to {folder} (")
    assert reason in message
    assert "set SCALEWISE_DATA_MIRROR" in message
    assert f"by hand: {folder / NAME} (md5 {SUM})." in message
    assert files(folder) == []


@pytest.mark.fault(26)
def test_an_unreachable_network_is_an_error_that_says_what_to_do(folder: Path) -> None:
    with pytest.raises(DatasetError, match=r"127\.0\.0\.1:9/.*Connection refused.*set SCALEWISE_DATA_MIRROR"):
        fetch(data_at(), folder)


@pytest.mark.fault(26)
def test_a_proxy_of_the_shell_is_used_and_given_up_if_it_never_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(CONTENT) as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        fetch(data_at("http://mirror.example"), folder)
        assert proxy.paths == [f"http://mirror.example/{NAME}"]
    (folder / NAME).unlink()
    # the system accepts connections to it, and no process reads from them
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setattr("urllib.request._opener", None)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(DatasetError, match=rf"https://mirror\.example/{NAME} .*timed out"):
            fetch(data_at("https://mirror.example"), folder)
    assert files(folder) == []


@pytest.mark.refuses("data: wrong checksum")
def test_a_bad_file_placed_by_hand_is_named_and_not_changed(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(b"other")
    with serving(CONTENT) as server, pytest.raises(DatasetError) as refused:
        fetch(data_at(server.address), folder)

    assert str(refused.value).startswith(f"{folder / NAME} is damaged or another file: its md5 is ")
    assert hashlib.md5(b"other", usedforsecurity=False).hexdigest() in str(refused.value)
    assert SUM in str(refused.value)
    assert (folder / NAME).read_bytes() == b"other"
    assert server.paths == []


@pytest.mark.parametrize("form", ["address", "folder", "file:// address"])
def test_a_mirror_takes_the_place_of_the_published_address(form: str, folder: Path, tmp_path: Path) -> None:
    near = tmp_path / "near by"
    near.mkdir()
    (near / NAME).write_bytes(CONTENT)
    with serving(CONTENT) as server:
        mirror = {"address": f"{server.address}/a/", "folder": str(near), "file:// address": near.as_uri()}
        fetch(data_at(), folder, mirror[form])
    assert server.paths == ([f"/a/{NAME}"] if form == "address" else [])
    assert (folder / NAME).read_bytes() == CONTENT
    # what others of a group may read there they may read here
    assert (folder / NAME).stat().st_mode == (near / NAME).stat().st_mode


@pytest.mark.fault(22)
def test_two_downloads_of_one_file_at_once_both_have_it(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    with serving(CONTENT) as server, ThreadPoolExecutor(2) as both:
        found = [
            each.result() for each in [both.submit(fetch, data_at(server.address), folder) for _ in range(2)]
        ]
    assert found == [folder / NAME] * 2
    assert (folder / NAME).read_bytes() == CONTENT
    assert files(folder) == [NAME]
    record_property("figure", f"{len(found)} of 2 have it")
