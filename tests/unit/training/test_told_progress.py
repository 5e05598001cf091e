"""The progress of a user's program, as others read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.program import ProgramSettings
from scalewise.ranks.program.told_progress import TELL_SECONDS, ToldProgress


class Program:
    """A program that makes steps, and what is told of it."""

    def __init__(self, folder: Path, steps: int | None) -> None:
        self.files = RankFiles(folder / "attempt")
        self.probed = self.files.folder / "probe"
        self.probed.mkdir(parents=True)
        values = {"program": "train.py", "steps": steps, "warmup_steps": 10}
        settings = ProgramSettings.model_validate(values)
        self.told = ToldProgress(self.files, self.probed, settings, samples_per_step=32)

    def after(self, now: float, steps: int | None) -> Progress | None:
        if steps is not None:
            (self.probed / "123.steps").write_text(str(steps))
        self.told.tell(now)
        return self.files.read_progress()


def test_steps_and_the_pace_of_the_latest_are_told(tmp_path: Path) -> None:
    program = Program(tmp_path, steps=90)
    assert program.after(100.0, None) is None
    first = program.after(110.0, 20)
    assert first is not None
    assert (str(first), first.samples_per_second) == ("step 20/100", None)
    found = program.after(120.0, 60)
    assert found is not None
    assert (str(found), found.samples_per_second) == ("step 60/100", 4 * 32)


def test_it_is_told_now_and_then_and_never_more_steps_than_there_are(tmp_path: Path) -> None:
    program = Program(tmp_path, steps=90)
    first = program.after(100.0, 20)
    assert program.after(100.0 + TELL_SECONDS / 2, 40) == first
    last = program.after(100.0 + TELL_SECONDS, 250)
    assert last is not None
    assert last.fraction == 1


def test_a_program_to_its_own_end_tells_its_steps_alone(tmp_path: Path) -> None:
    found = Program(tmp_path, steps=None).after(100.0, 20)
    assert found is not None
    assert (str(found), found.fraction) == ("step 20", None)


def test_a_folder_that_takes_no_file_ends_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path, steps=90)
    (program.probed / "123.steps").write_text("20")
    (program.files.folder / ".progress.json").mkdir()
    program.told.tell(100.0)
    assert program.files.read_progress() is None


@pytest.mark.parametrize("text", ["", "x", "12.5"])
def test_a_count_that_is_not_whole_is_left_out(tmp_path: Path, text: str) -> None:
    program = Program(tmp_path, steps=90)
    (program.probed / "123.steps").write_text(text)
    program.told.tell(100.0)
    assert program.files.read_progress() is None
