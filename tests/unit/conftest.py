"""What tests of several rooms begin with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.paths import SCRIPTS

from scalewise.execution.rank_files import RankFiles

Process = subprocess.Popen[str]
StartPython = Callable[..., Process]


def said(process: Process) -> str:
    """Return the next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def start_python() -> Iterator[StartPython]:
    """Starts a Python program that sees the package, with pipes for stdin and stdout; ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(
        program: str, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | {"PYTHONPATH": str(SCRIPTS)} | dict(environ or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of PATH: an empty folder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def rank_files(tmp_path: Path) -> RankFiles:
    """The files of an attempt, in a folder that is there."""
    rank_files = RankFiles(tmp_path / "attempt")
    rank_files.folder.mkdir()
    return rank_files
