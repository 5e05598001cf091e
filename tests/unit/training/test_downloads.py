"""A download gives the right file or an error that says what to do, whatever the network does."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.machine import largest_file
from tests.unit.training import file_server
from tests.unit.training.file_server import Answer, FileServer, cut_after, good, serving, status

from scalewise.builtin.data import fetch as downloads
from scalewise.builtin.data.datasets import DatasetError
from scalewise.builtin.data.fetch import PublishedFile, fetch, redacted

refuses = pytest.mark.refuses

CONTENT = np.random.default_rng(0).bytes(300_000)
SUM = hashlib.sha256(CONTENT).hexdigest()
NAME = "data.tar.gz"


@pytest.fixture(autouse=True)
def near_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers are on this machine, and answer soon or never."""
    monkeypatch.setattr(downloads, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(downloads, "PAUSES", (0, 0.01, 0.01))
    monkeypatch.setattr(downloads, "SLOW_BYTES", 10_000)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "data"


def published(*mirrors: FileServer | str) -> PublishedFile:
    places = tuple(mirror if isinstance(mirror, str) else mirror.address for mirror in mirrors)
    return PublishedFile(NAME, SUM, places)


def get(folder: Path, *mirrors: FileServer | str) -> list[str]:
    """Fetch, prove the result, and give the lines of progress."""
    lines: list[str] = []
    assert fetch(published(*mirrors), folder, notify=lines.append) == folder / NAME
    assert (folder / NAME).read_bytes() == CONTENT
    assert visible(folder) == [NAME]
    assert not (folder / f".{NAME}.part").exists()
    return lines


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_file_is_fetched_once_and_then_used_without_the_network(folder: Path) -> None:
    with serving(CONTENT, good) as server:
        get(folder, server)
        get(folder, server)
        assert server.ranges == [None]
    get(folder, server)


CUT = cut_after(100_000)


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("first", "second", "asked"),
    [
        pytest.param([CUT, CUT, good], [], [[0, 100_000, 200_000], []], id="a cut download"),
        pytest.param([status(503), status(429), good], [], [[0, 0, 0], []], id="a busy mirror"),
        pytest.param([CUT, file_server.whole], [], [[0, 100_000], []], id="a mirror without ranges"),
        pytest.param([CUT, status(503)], [good], [[0, 100_000], [100_000]], id="the next mirror"),
    ],
)
def test_a_cut_download_resumes_where_it_stopped(
    first: list[Answer], second: list[Answer], asked: list[list[int]], folder: Path
) -> None:
    # a mirror that cuts or is busy is asked again, and what it gave is kept for the next one
    with serving(CONTENT, *first) as one, serving(CONTENT, *(second or [good])) as other:
        get(folder, one, *([other] if second else []))
    assert [[int(begin[6:-1]) if begin else 0 for begin in each.ranges] for each in (one, other)] == asked


@pytest.mark.fault(21)
def test_a_line_that_is_cut_often_but_moves_is_not_given_up(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    with serving(CONTENT, cut_after(20_000)) as server:
        get(folder, server)
    assert len(server.ranges) == 15 > len(downloads.PAUSES)
    record_property("figure", f"whole after {len(server.ranges) - 1} cuts, no byte fetched twice")


@pytest.mark.fault(21)
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        pytest.param(status(404), "answered 404 Not Found", id="no such file"),
        pytest.param(status(503), "answered 503 Service Unavailable", id="busy for ever"),
        pytest.param(
            file_server.page,
            "gave a web page in place of the file",
            id="a web page",
            marks=refuses("data: html for an archive"),
        ),
        pytest.param(
            file_server.gives(b"<html>login</html>"),
            "gave other bytes than published",
            id="a page in disguise",
            marks=refuses("data: html for an archive"),
        ),
        pytest.param(
            file_server.gives(CONTENT[:-1] + b"!"),
            "gave other bytes than published",
            id="wrong bytes",
            marks=refuses("data: wrong checksum"),
        ),
        pytest.param(
            file_server.gives(CONTENT[:-1]),
            "gave other bytes than published",
            id="truncated",
            marks=refuses("data: truncated"),
        ),
        pytest.param(file_server.silent, "did not answer for 0 s", id="silent"),
    ],
)
@pytest.mark.slow
def test_a_bad_mirror_is_passed_over_and_named_where_no_other_helps(
    bad: Answer, said: str, folder: Path
) -> None:
    with serving(CONTENT, bad) as server, serving(CONTENT, good) as other:
        with pytest.raises(DatasetError) as refused:
            fetch(published(server), folder)
        assert f"  {server.address}/{NAME}: {said}" in str(refused.value)
        assert visible(folder) == [], "no bad file gets the final name"
        get(folder, server, other)


@pytest.mark.fault(21)
def test_a_mirror_that_dribbles_is_given_up_for_a_faster_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "WINDOW_SECONDS", 0.2)
    with serving(CONTENT, file_server.dribble(0.05)) as slow, serving(CONTENT, good) as fast:
        lines = get(folder, slow, fast)
    assert any("bytes in 0 s" in line for line in lines)
    assert fast.ranges[0] is not None


def test_a_slow_download_says_now_and_then_how_far_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "WINDOW_SECONDS", 0.05)
    monkeypatch.setattr(downloads, "SLOW_BYTES", 1)
    with serving(CONTENT, file_server.dribble(0.03, 20_000)) as server:
        lines = get(folder, server)
    progress = [line for line in lines if re.fullmatch(r"127\.0\.0\.1: 0 of 0 MB, \d+ kB/s", line)]
    assert 0 < len(progress) < 15, "not a line for each piece"


def test_remains_of_a_killed_process_are_continued_and_those_of_another_file_do_no_harm(folder: Path) -> None:
    folder.mkdir(parents=True)
    for remains, begun in ((CONTENT[:50_000], True), (b"x" * 1000, False), (b"x" * 400_000, False)):
        (folder / f".{NAME}.part").write_bytes(remains)
        with serving(CONTENT, good) as server:
            get(folder, server)
        assert (server.ranges == ["bytes=50000-"]) is begun
        (folder / NAME).unlink()


@pytest.mark.refuses("data: wrong checksum")
def test_a_bad_file_placed_by_hand_is_named_and_not_changed(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(b"other")
    with serving(CONTENT, good) as server, pytest.raises(DatasetError) as refused:
        fetch(published(server), folder)

    assert str(folder / NAME) in str(refused.value)
    assert hashlib.sha256(b"other").hexdigest() in str(refused.value)
    assert SUM in str(refused.value)
    assert (folder / NAME).read_bytes() == b"other"
    assert server.ranges == []


@pytest.mark.fault(26)
def test_an_unreachable_network_is_an_error_that_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example:3128")
    with pytest.raises(DatasetError) as refused:
        fetch(published("http://me:hidden@127.0.0.1:9"), folder)

    message = str(refused.value)
    assert message.startswith(
        f"{NAME} cannot be downloaded:\n  http://127.0.0.1:9/{NAME}: could not be reached"
    )
    assert "(Connection refused)" in message
    assert "http_proxy is not set, https_proxy is set, no_proxy is not set" in message
    assert "set `data_mirror:`" in message
    assert str(folder / NAME) in message
    assert SUM in message
    assert "secret" not in message
    assert "hidden" not in message


@pytest.mark.fault(26)
def test_a_proxy_that_never_answers_is_given_up_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the system accepts connections to it, and no process reads from them
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{proxy.getsockname()[1]}")
        with pytest.raises(DatasetError) as refused:
            fetch(published("https://mirror.example"), folder)

    message = str(refused.value)
    assert f"  https://mirror.example/{NAME}: did not answer through the proxy for 0 s" in message
    assert "https_proxy is set" in message
    assert "secret" not in message
    assert visible(folder) == []


@pytest.mark.refuses("security: secrets in the environment")
@pytest.mark.slow
def test_no_password_is_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither by us nor by what we call."""
    with serving(CONTENT, good) as server:
        fetch(published(server.address.replace("//", "//me:hidden@")), folder)
    shown = "".join(capfd.readouterr())
    assert f"{server.address}/{NAME}" in shown
    assert "hidden" not in shown
    assert (folder / NAME).read_bytes() == CONTENT
    assert redacted("https://me:hidden@host:1/a?token=b") == "https://host:1/a"


@pytest.mark.parametrize("form", ["folder", "file:// address"])
def test_a_folder_that_has_the_files_comes_before_the_internet(
    form: str, folder: Path, tmp_path: Path
) -> None:
    near = tmp_path / "near by"
    near.mkdir()
    (near / NAME).write_bytes(CONTENT)
    mirror = str(near) if form == "folder" else near.as_uri()
    with serving(CONTENT, good) as server:
        fetch(published(server), folder, mirror)
        assert (folder / NAME).read_bytes() == CONTENT
        assert server.ranges == []
        # what others of a group may read there they may read here
        assert (folder / NAME).stat().st_mode == (near / NAME).stat().st_mode

        (folder / NAME).unlink()
        (near / NAME).unlink()
        lines: list[str] = []
        fetch(published(server), folder, mirror, lines.append)
    assert f"{NAME}: cannot be read (No such file or directory)" in lines
    assert server.ranges == [None]


@pytest.mark.slow
def test_a_full_disk_is_no_fault_of_the_mirror(folder: Path) -> None:
    said = re.escape(f"{folder / NAME}: cannot be written (File too large)")
    with (
        serving(CONTENT, good) as server,
        largest_file(100_000),
        pytest.raises(DatasetError, match=said),
    ):
        fetch(published(server), folder)
    assert len(server.ranges) == 1
    assert visible(folder) == []
