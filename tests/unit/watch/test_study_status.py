"""How a study stands, asked by another process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.conftest import SCRIPTS
from tests.unit.watch.standings import point

from scalewise.watch.points import Criterion, Rounds, WatchedStudy
from scalewise.watch.record import WatchRecord, write_watch_record

STUDY = WatchedStudy(points=(point(1), point(2)), criteria={"digits": Criterion()})


def record(**changes: object) -> WatchRecord:
    """A session of this process."""
    now = time.time()
    known = WatchRecord(
        study=STUDY,
        rounds=Rounds(asked={"digits": {"d1": 2, "d2": 1}}),
        first_asked={"digits": {"d1": 2, "d2": 1}},
        host=socket.gethostname(),
        pid=os.getpid(),
        began=now,
        told_at=now,
        session=(("digits", "d1.r1"), ("digits", "d1.r2"), ("digits", "d2.r1")),
    )
    return known.model_copy(update=changes)


def status(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "status.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_it_says_how_a_study_stands_and_changes_nothing(tmp_path: Path) -> None:
    write_watch_record(tmp_path, record())
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    told = status(tmp_path)

    assert told.returncode == 0, told.stderr
    head, heading, *points, last = told.stdout.splitlines()
    assert head.startswith("Running since ")
    assert heading.split() == ["devices", "runs", "done", "now"]
    assert [line.split() for line in points] == [
        ["1", "0", "of", "2", "waiting"],
        ["2", "0", "of", "1", "waiting"],
    ]
    assert last.startswith("0 of 3 runs done")
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ended": True}, "ended"),
        ({"pid": 2**22 + 1}, "which has gone"),
        ({"host": "login9", "told_at": time.time() - 3600}, "which has told nothing for 60 min"),
        ({"host": "login9"}, "Running since"),
    ],
)
def test_it_says_whether_the_study_goes_on(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    write_watch_record(tmp_path, record(**changes))
    assert said in status(tmp_path).stdout.splitlines()[0]


def test_another_folder_can_be_named_and_one_without_a_study_says_what_to_do(tmp_path: Path) -> None:
    write_watch_record(tmp_path / "mine", record(ended=True))
    assert "0 of 3 runs done" in status(tmp_path, "mine").stdout
    assert "0 of 3 runs done" in status(tmp_path, "--follow", "mine").stdout

    none = status(tmp_path)
    assert none.returncode == 1
    assert f"No study has been started in {tmp_path}" in none.stderr
