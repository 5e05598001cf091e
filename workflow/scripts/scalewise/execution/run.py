"""Start a training from its newest checkpoint, within the time left, and record how it ended."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scalewise.execution.checkpoint_files import CheckpointFolder
from scalewise.execution.history import (
    MAX_STARTS_WITHOUT_PROGRESS,
    HistoryWriter,
    has_open_training,
    in_training,
    lost_steps,
    starts_without_progress,
)
from scalewise.execution.messages import CHECKPOINTS, RankSetup, TrainSpec
from scalewise.execution.outcome import RunFailedError, note, refuse_start, run_ranks
from scalewise.execution.supervisor import RankGroup, in_minutes
from scalewise.records import Start, read_summary


def run_with_restarts(
    rank_group: RankGroup,
    rank_setup: RankSetup,
    spec: TrainSpec,
    history: HistoryWriter,
    keep_checkpoints: bool,
) -> None:
    """Train from the newest checkpoint, or from the beginning if there is none, to the run's records.

    Args:
        rank_group: The ranks, as if no earlier start had used any time.
        rank_setup: The way in which the ranks start.
        spec: Facts that every start shares; the number of starts and the time that they took are added here.
        history: Has the earlier starts, and receives this one.
        keep_checkpoints: Whether a run that has completed keeps its checkpoints.

    Raises:
        RunFailedError: There is no result; what was trained is kept in a checkpoint, as far as there is one.
            The error says whether the run is given up.
        LockLostError: Another process trains the run by now.
        RecordError: The record that the ranks left cannot be read.
        OSError: The run's folder cannot be used.
    """
    checkpoints = CheckpointFolder(spec.checkpoints, spec.definition, spec.inputs)
    if checkpoints.folder.exists() and not has_open_training(spec.folder):
        note(rank_group.log, f"not used: {checkpoints.folder} is of a training that has ended")
        checkpoints.clear()
    newest = next(checkpoints.valid([]), None)
    step, spent = (newest.manifest.step, newest.manifest.elapsed_seconds) if newest is not None else (0, 0.0)
    rank_group = replace(rank_group, spent_seconds=spent)
    # the user may have fixed the reason of earlier failures
    row = [] if history.start.is_requested_by_user else starts_without_progress(history.history, step)
    if len(row) >= MAX_STARTS_WITHOUT_PROGRESS:
        raise refuse_start(rank_group, history, "failed", _gave_up(row))
    if rank_group.seconds_left <= 0:
        raise refuse_start(rank_group, history, "timed-out", _spent(rank_group, step))
    # so that the next start cannot take for this one's what an earlier one has left
    rank_group.rank_files.clear()
    history.begin(step)
    starts = {"starts": len(in_training(history.history)), "lost_steps": lost_steps(history.history, step)}
    spec = spec.model_copy(update={**starts, "elapsed_seconds": spent})
    try:
        run_ranks(rank_group, rank_setup, spec, history)
    except RunFailedError as error:
        row = []
        with suppress(OSError):  # the error says more
            reached = next(checkpoints.valid([]), None)
            row = starts_without_progress(history.history, reached.manifest.step if reached else 0)
        if error.ended is None or len(row) < MAX_STARTS_WITHOUT_PROGRESS:
            raise
        with suppress(OSError):
            note(rank_group.log, _gave_up(row))
        raise RunFailedError(f"{error}\n{_gave_up(row)}", error.reason, error.ended, given_up=True) from error
    end_training(spec.folder, keep_checkpoints)


def end_training(folder: Path, keep_checkpoints: bool) -> None:
    """Delete the checkpoints of a training that has left its result, unless the user keeps them.

    Raises:
        RecordError: The result cannot be read.
    """
    if not keep_checkpoints and read_summary(folder).outcome != "diverged":
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _gave_up(row: list[Start]) -> str:
    last = row[0]
    came = f"beyond the checkpoint at step {last.from_step}" if last.from_step else "to a checkpoint"
    why = "ended without an error message" if last.outcome == "killed" else last.reason
    return f"{len(row)} tries without progress: none came {came}. The last one: {why}"


def _spent(rank_group: RankGroup, step: int) -> str:
    return (
        f"all of its {in_minutes(rank_group.limit_seconds)} are used. {rank_group.fix} The checkpoint at "
        f"step {step} is kept: with more time the same command resumes there."
    )
