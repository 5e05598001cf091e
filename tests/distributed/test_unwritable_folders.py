"""A run whose folder cannot be written ends with a sentence that says so; the other runs keep theirs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.whole_runs import END_SECONDS, ENDLESS, RANK_PYTHON, SETTINGS, starter
from tests.planned_job import plan_one_run, train_command
from tests.small_disk import needs_small_disk, on_small_disk, seen_by
from tests.waiting import ended_output, wait_until

from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.study import load_study
from scalewise.records import read_summary

pytestmark = [needs_small_disk]


class Neighbours:
    """A run that has ended well, and another beside it whose folder is a hindrance."""

    def __init__(self, folder: Path, completed: Path) -> None:
        self.root = folder
        self.good = folder / "good" / "d1.r1"
        shutil.copytree(completed, self.good)
        self.before = self._content()
        self.folder = folder / "hindered" / "d1.r1"
        self.folder.mkdir(parents=True)

    def _content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.good.iterdir()}

    def command(self, **changed: Any) -> list[str]:
        config = {"experiments": {"hindered": SETTINGS | {"devices": [1], "launcher": "spawn"} | changed}}
        run = load_study(config, site_file=self.root / "site.yaml").runs["hindered", "d1.r1"]
        self.plan = plan_one_run(
            self.root / "plan.json",
            run.as_json(),
            self.root / "digits.safetensors",
            SiteLaunch(python=os.environ.get(RANK_PYTHON)),
            timeout_seconds=30,
        )
        return train_command(run.as_json(), self.folder)

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        environ = os.environ | self.plan | {"SCALEWISE_MACHINE_LOCK": str(self.root.parent / "machine.lock")}
        return subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def end(self, process: subprocess.Popen[str]) -> str:
        _, stderr = process.communicate(timeout=END_SECONDS)
        assert process.returncode == 1, stderr
        assert self._content() == self.before
        assert read_summary(self.good).outcome == "completed"
        return stderr


@pytest.fixture
def neighbours(undisturbed_run: Callable[[int], Path], tmp_path: Path) -> Neighbours:
    # makes the site and the dataset
    starter(tmp_path)
    return Neighbours(tmp_path, undisturbed_run(1))


@pytest.mark.fault(29)
def test_a_folder_that_cannot_be_written_is_named_with_the_cure_in_one_sentence(
    neighbours: Neighbours, record_property: Callable[[str, object], None]
) -> None:
    place = shlex.quote(str(neighbours.folder))
    script = f"mount --bind {place} {place} && mount -o remount,ro,bind {place} && exec "
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    stderr = neighbours.end(neighbours.start([*namespace, script + shlex.join(neighbours.command())]))
    (line,) = stderr.splitlines()
    assert line.startswith(f"scalewise: hindered/d1.r1 failed: {neighbours.folder}/")
    assert "Read-only file system" in line
    assert "Make it writable, or use another folder. Then give the same command again" in line
    record_property("figure", "one line, with path and cure; other runs to the byte as before")


@pytest.mark.fault(29, 19)
def test_a_folder_without_room_is_named_with_the_bytes_that_are_left(neighbours: Neighbours) -> None:
    stderr = neighbours.end(neighbours.start(on_small_disk(neighbours.folder, "4k", neighbours.command())))
    (line,) = stderr.splitlines()
    assert line.startswith(f"scalewise: hindered/d1.r1 failed: {neighbours.folder}")
    assert re.search(
        r"No space left on device \([\d,]+ bytes free\)\. Free space there; .*\. Then give the same", line
    )


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.fault(29)
def test_a_folder_that_is_full_at_the_end_of_a_training_is_named_with_the_rank_that_could_not_write(
    neighbours: Neighbours,
) -> None:
    process = neighbours.start(
        on_small_disk(neighbours.folder, "60m", neighbours.command(**ENDLESS | {"epochs": 100}))
    )
    folder = seen_by(process.pid, neighbours.folder)
    progress = folder / "attempt" / "progress.json"
    wait_until(progress.exists, "the run tells no progress", ended=lambda: ended_output(process))
    fill(folder / "filling")
    stderr = neighbours.end(process)
    first = stderr.splitlines()[0]
    assert first.startswith("scalewise: hindered/d1.r1 failed: ")
    assert f"{neighbours.folder} has 0 free bytes left: make room there." in first
    assert "Other runs and complete checkpoints are not affected" in stderr
