"""The progress of a user's program, as it is told to those who look at the run from outside."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.program import ProgramSettings
from scalewise.ranks.results.rank_record import steps_done

TELL_SECONDS = 5.0
"""Time between two messages."""


@dataclass
class ToldProgress:
    """Tells from time to time how many steps the program has made, and how fast the latest were.

    Args:
        rank_files: The folder for all who look.
        probed: The folder of the probe's files.
        samples_per_step: Samples of a step over all ranks, as planned.
    """

    rank_files: RankFiles
    probed: Path
    settings: ProgramSettings
    samples_per_step: int
    _told: Progress | None = None
    _due: float = 0.0
    _since: tuple[float, int] | None = field(default=None)

    def tell(self, now: float) -> None:
        """Write the progress if it is time to, and there is any; a disk that is full is no reason to end.

        Args:
            now: Monotonic seconds.
        """
        if now < self._due:
            return
        self._due = now + TELL_SECONDS
        done = steps_done(self.probed)
        if not done:
            return
        rate = None
        if self._since is not None and done > self._since[1]:
            rate = (done - self._since[1]) * self.samples_per_step / (now - self._since[0])
        elif self._told is not None:
            rate = self._told.samples_per_second
        if self._since is None or done > self._since[1]:
            self._since = now, done
        most = self.settings.most_steps
        steps = None if most is None else self.settings.warmup_steps + most
        # what is beyond the last measured step counts for nobody
        step = done if steps is None else min(done, steps)
        progress = Progress(epoch=0, epochs=0, step=step, steps=steps, samples_per_second=rate)
        if progress != self._told:
            with suppress(OSError):
                self.rank_files.progress(progress)
                self._told = progress
