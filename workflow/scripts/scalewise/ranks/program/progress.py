"""The progress of a program, for its job and the status of the study, and lines of its log."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.execution.rank_files import RankFiles, RankSetup
from scalewise.plan.runs.training_program import steps_per_epoch
from scalewise.ranks.results.probe_record import steps_done

PROGRESS_SECONDS = 5.0
"""Time between two reports of the progress."""


class ProgramProgress:
    """Write how many steps the program has made.

    Args:
        rank_files: The folder of the file of progress.
        probe_folder: The folder of the probe's files.
        setup: The run.
        settings: The program's.
    """

    def __init__(
        self, rank_files: RankFiles, probe_folder: Path, setup: RankSetup, settings: ProgramSettings
    ) -> None:
        self._rank_files, self._probe_folder = rank_files, probe_folder
        run = setup.definition
        self._from_step, self._steps_per_epoch = setup.from_step, steps_per_epoch(run)
        self._epochs = run.settings.epochs if isinstance(run.settings, Settings) else 0
        self._warmup, self._most = settings.warmup_steps, settings.steps
        self._written = 0
        self._due_at = 0.0

    def update(self, now: float) -> None:
        """Write the progress if that is due and a step was made; ignore a file that cannot be used.

        Args:
            now: Monotonic seconds.
        """
        if now < self._due_at:
            return
        self._due_at = now + PROGRESS_SECONDS
        steps = steps_done(self._probe_folder)
        if not steps:
            return
        done = self._from_step + steps
        text = f"step {done}"
        if self._most is not None:
            last = self._warmup + self._most
            done = min(done, last)  # later steps are not measured
            text = f"step {done}/{last}"
        elif self._steps_per_epoch:
            text = f"epoch {done // self._steps_per_epoch}/{self._epochs}"
        if done != self._written:
            with suppress(OSError, ValueError):
                self._rank_files.progress(done, text)
                self._written = done


def say(text: str) -> None:
    """Print a line of train.log, unless the disk is full."""
    with suppress(OSError):
        print(text, flush=True)
