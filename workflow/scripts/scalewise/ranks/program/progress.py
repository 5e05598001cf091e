"""The progress of a user's program, for the study's display and the history of the run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.program import ProgramSettings
from scalewise.ranks.results.probe_record import steps_done

PROGRESS_SECONDS = 5.0
"""Time between two reports of the progress."""


class ProgramProgress:
    """Write how many steps the program has made, and how fast the latest were.

    Args:
        rank_files: The folder of the file of progress.
        probe_folder: The folder of the probe's files.
        samples_per_step: Samples of a step over all ranks, as planned.
    """

    def __init__(
        self, rank_files: RankFiles, probe_folder: Path, settings: ProgramSettings, samples_per_step: int
    ) -> None:
        self._rank_files, self._probe_folder = rank_files, probe_folder
        self._warmup, self._most = settings.warmup_steps, settings.most_steps
        self._samples_per_step = samples_per_step
        self._written: Progress | None = None
        self._due_at, self._counted_at, self._steps = 0.0, 0.0, 0
        self._samples_per_second: float | None = None

    def update(self, now: float) -> None:
        """Write the progress if that is due and a step was made; ignore a file that cannot be used.

        Args:
            now: Monotonic seconds.
        """
        if now < self._due_at:
            return
        self._due_at = now + PROGRESS_SECONDS
        steps = steps_done(self._probe_folder)
        if steps > self._steps:
            if self._steps:
                samples = (steps - self._steps) * self._samples_per_step
                self._samples_per_second = samples / (now - self._counted_at)
            self._counted_at, self._steps = now, steps
        if not steps:
            return
        last = None if self._most is None else self._warmup + self._most
        progress = Progress(
            epoch=0,
            epochs=0,
            step=steps if last is None else min(steps, last),  # later steps are not measured
            steps=last,
            samples_per_second=self._samples_per_second,
        )
        if progress != self._written:
            with suppress(OSError, ValueError):
                self._rank_files.progress(progress)
                self._written = progress
