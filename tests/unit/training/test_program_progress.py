"""The progress of a user's program, as the study reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.program import ProgramSettings
from scalewise.ranks.program.progress import PROGRESS_SECONDS, ProgramProgress


class Program:
    """A program that makes steps, and its progress."""

    def __init__(self, folder: Path, steps: int | None) -> None:
        self.files = RankFiles(folder / "attempt")
        self.probe_folder = self.files.folder / "probe"
        self.probe_folder.mkdir(parents=True)
        values = {"program": "train.py", "steps": steps, "warmup_steps": 10}
        settings = ProgramSettings.model_validate(values)
        self.progress = ProgramProgress(self.files, self.probe_folder, settings, samples_per_step=32)

    def after(self, now: float, steps: int | None) -> Progress | None:
        if steps is not None:
            (self.probe_folder / "123.steps").write_text(str(steps))
        self.progress.update(now)
        return self.files.read_progress()


def test_progress_has_the_steps_and_their_latest_speed(tmp_path: Path) -> None:
    program = Program(tmp_path, steps=90)
    assert program.after(100.0, None) is None
    first = program.after(110.0, 20)
    assert first is not None
    assert (str(first), first.samples_per_second) == ("step 20/100", None)
    found = program.after(120.0, 60)
    assert found is not None
    assert (str(found), found.samples_per_second) == ("step 60/100", 4 * 32)


def test_progress_is_written_every_few_seconds_and_ends_at_the_last_measured_step(tmp_path: Path) -> None:
    program = Program(tmp_path, steps=90)
    first = program.after(100.0, 20)
    assert program.after(100.0 + PROGRESS_SECONDS / 2, 40) == first
    last = program.after(100.0 + PROGRESS_SECONDS, 250)
    assert last is not None
    assert last.fraction == 1


def test_a_program_without_a_number_of_steps_has_no_fraction(tmp_path: Path) -> None:
    found = Program(tmp_path, steps=None).after(100.0, 20)
    assert found is not None
    assert (str(found), found.fraction) == ("step 20", None)


def test_progress_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    program = Program(tmp_path, steps=90)
    (program.probe_folder / "123.steps").write_text("20")
    (program.files.folder / ".progress.json").mkdir()
    program.progress.update(100.0)
    assert program.files.read_progress() is None


def test_a_damaged_file_of_progress_does_not_end_the_program(tmp_path: Path) -> None:
    program = Program(tmp_path, steps=90)
    (program.probe_folder / "123.steps").write_text("20")
    damaged = program.files.folder / "progress.json"
    damaged.write_text("{")
    program.progress.update(100.0)
    assert damaged.read_text() == "{"


@pytest.mark.parametrize("text", ["", "x", "12.5"])
def test_a_damaged_count_is_ignored(tmp_path: Path, text: str) -> None:
    program = Program(tmp_path, steps=90)
    (program.probe_folder / "123.steps").write_text(text)
    program.progress.update(100.0)
    assert program.files.read_progress() is None
