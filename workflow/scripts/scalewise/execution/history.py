"""Write the history of a run: each start states when it begins and how it has ended.

A start that is killed states no end. The next one fills in how far it came.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.execution.rank_files import RankFiles
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import HISTORY, History, RecordError, Start, later, read_history, write_json

MAX_STARTS_WITHOUT_PROGRESS = 3
"""Starts in a row without progress after which Scalewise gives the run up."""


def load_history(
    folder: Path, definition: RunDefinition, inputs: Mapping[str, str], rank_files: RankFiles
) -> History:
    """Return the earlier starts, each with its end; none if they cannot be read.

    Starts over another shape are dropped: their time has another cost.

    Args:
        folder: Holds the run's records.
        definition: The run; starts of another belong to another training.
        inputs: Hashes of the input files that define the run, by name.
        rank_files: The folder of the last start, which has its progress if it was killed.
    """
    try:
        earlier = read_history(folder)
    except RecordError:
        earlier = None
    if earlier is None or earlier.definition.shape != definition.shape:
        return History(definition=definition, inputs=dict(inputs), starts=[])
    starts, first = list(earlier.starts), earlier.first
    if starts and starts[-1].outcome is None:
        killed = {"outcome": "killed", "no_progress": True, "steps": steps_done(rank_files)}
        starts[-1] = starts[-1].model_copy(update=killed)
    is_other = earlier.definition != definition or earlier.inputs != dict(inputs)
    if is_other or (starts and starts[-1].has_result):
        first = len(starts)
    return History(definition=definition, inputs=dict(inputs), first=first, starts=starts)


def in_training(history: History) -> list[Start]:
    """Return the starts of the present training, without those that were refused."""
    return [start for start in history.starts[history.first :] if start.from_step is not None]


def lost_steps(history: History, next_step: int) -> int:
    """Return the number of steps that are done again if the next start begins at a step."""
    lost = 0
    for start in reversed(in_training(history)):
        lost += max((start.steps or 0) - next_step, 0)
        next_step = start.from_step or 0
    return lost


def starts_without_progress(history: History, next_step: int) -> list[Start]:
    """Return the last starts in a row that failed and began at the step of the next one, the newest first.

    A start that a signal ended neither counts nor breaks the row. A start by the user resets the count.
    """
    failures: list[Start] = []
    for start in reversed(in_training(history)):
        if start.from_step != next_step:
            break
        if start.no_progress:
            failures.append(start)
        if start.is_requested_by_user:
            break
    return failures


def seconds_of_earlier_tries(history: History, attempt: int) -> float:
    """Return the seconds of Snakemake's tries at the run before this one, in the same session.

    Args:
        history: Starts before this try.
        attempt: Snakemake's count of its tries, from 1.
    """
    seconds = 0.0
    for start, taken in zip(reversed(history.starts), reversed(history.seconds), strict=True):
        seconds += taken if start.attempt < attempt else 0.0
        if start.is_requested_by_user:
            break
    return seconds


def steps_done(rank_files: RankFiles) -> int | None:
    """Return the last step that the ranks of an attempt reported."""
    try:
        stopped, progress = rank_files.read_stopped(), rank_files.read_progress()
    except (OSError, ValueError):
        return None  # cut off while it was written, by a machine that crashed
    if stopped is not None:
        return stopped.step
    return progress.step if progress is not None else None


class HistoryWriter:
    """Writes one start into the history of a run.

    Args:
        folder: Holds the run's records.
        earlier: Starts before this one.
        start: The start that this process makes.
    """

    def __init__(self, folder: Path, earlier: History, start: Start) -> None:
        self._folder, self._began = folder, time.monotonic()
        self.history, self.start = earlier, start

    def begin(self, from_step: int) -> None:
        """Write that the start begins at a step; one by the user at step 0 begins another training.

        Raises:
            OSError: The file cannot be written.
        """
        first = self.history.first
        if from_step == 0 and self.start.is_requested_by_user:
            first = len(self.history.starts)
        self.history = self.history.model_copy(update={"first": first})
        self._append(self.start.model_copy(update={"from_step": from_step}))

    def refuse(self, **end: Any) -> None:
        """Write that the ranks are not started again; the fields are those of ``Start``.

        Raises:
            OSError: The file cannot be written.
        """
        self._append(self.start.model_copy(update={"from_step": None, "ended_at": self._now(), **end}))

    def end(self, rank_files: RankFiles, **end: Any) -> None:
        """Write how the start has ended; the fields are those of ``Start``.

        Raises:
            OSError: The file cannot be written.
        """
        *earlier, start = self.history.starts
        known = {"ended_at": self._now(), "steps": steps_done(rank_files)}
        self.history = self.history.model_copy(update={"starts": earlier})
        self._append(start.model_copy(update=known | end))

    def give_up(self) -> None:
        """Write that another try would end as the last start did.

        Raises:
            OSError: The file cannot be written.
        """
        *earlier, start = self.history.starts
        self.history = self.history.model_copy(update={"starts": earlier})
        self._append(start.model_copy(update={"permanent": True}))

    def _append(self, start: Start) -> None:
        self.history = self.history.model_copy(update={"starts": [*self.history.starts, start]})
        write_json(self._folder / HISTORY, self.history)

    def _now(self) -> str:
        return later(self.start.started_at, time.monotonic() - self._began)


def would_fail_again(history: History, limit_seconds: float, by_user: bool = False) -> Start | None:
    """Return the failure that another try would repeat; None if it may succeed.

    Args:
        history: Earlier starts.
        limit_seconds: Most time of the try.
        by_user: Whether a command of the user makes it, who may have fixed the cause since: only a run that
            needs more time than it gets is then known to fail.
    """
    failure = history.failure
    if failure is None or history.first == len(history.starts):
        return None
    if failure.outcome == "timed-out":
        has_more_time = limit_seconds > failure.limit_seconds
        return None if has_more_time or (by_user and not failure.permanent) else failure
    return failure if failure.permanent and not by_user else None
