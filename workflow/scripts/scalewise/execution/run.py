"""Start a training from its newest checkpoint, within the time left, and record how it ended."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.execution.checkpoint_files import CheckpointFolder
from scalewise.execution.messages import CHECKPOINTS, RankSetup, TrainSpec
from scalewise.execution.outcome import RunFailedError, note, record_refused_start, run_ranks
from scalewise.execution.restarts import (
    MAX_STARTS_WITHOUT_PROGRESS,
    SILENT,
    Restart,
    forget_history,
    has_history,
    load_history,
    record_end,
    record_start,
)
from scalewise.execution.run_lock import LockOwner
from scalewise.execution.supervisor import RankGroup, in_minutes
from scalewise.records import read_summary


@dataclass(frozen=True)
class StartContext:
    """The circumstances of one start of a training.

    Args:
        owner: The process that starts it.
        requested_by_user: Whether the user has begun to train, rather than snakemake or Slurm again.
        keep_checkpoints: Whether a run that has completed keeps its checkpoints.
    """

    owner: LockOwner
    requested_by_user: bool
    keep_checkpoints: bool


def run_with_restarts(
    rank_group: RankGroup, rank_setup: RankSetup, spec: TrainSpec, context: StartContext
) -> None:
    """Train from the newest checkpoint, or from the beginning where there is none, to the run's records.

    The spec says what is the same for every start; the number of starts and the time that they took are
    added here.

    Raises:
        RunFailedError: There is no result; what was trained is kept in a checkpoint, as far as there is one.
            The error says whether the run is given up.
        LockLostError: Another process trains the run by now.
        RecordError: The record that the ranks left cannot be read.
        OSError: The run's folder cannot be used.
    """
    folder = spec.folder
    checkpoints = CheckpointFolder(spec.checkpoints, spec.definition, spec.inputs)
    if not has_history(folder) and checkpoints.folder.exists():
        note(rank_group.log, f"not used: {checkpoints.folder} is of a training that has ended")
        checkpoints.clear()
    newest = next(checkpoints.valid([]), None)
    step, spent = (newest.manifest.step, newest.manifest.elapsed_seconds) if newest is not None else (0, 0.0)
    rank_group = replace(rank_group, spent_seconds=spent)
    earlier = load_history(
        folder, spec.definition, spec.inputs, rank_group.rank_files, step, context.requested_by_user
    )
    if len(without_progress := earlier.starts_without_progress(step)) >= MAX_STARTS_WITHOUT_PROGRESS:
        raise record_refused_start(rank_group, spec, "failed", _gave_up(without_progress))
    if rank_group.seconds_left <= 0:
        raise record_refused_start(rank_group, spec, "timed-out", _spent(rank_group, step))
    # so that the next start cannot take for this one's what an earlier one has left
    rank_group.rank_files.clear()
    history = record_start(folder, earlier, step, context.owner)
    spec = spec.model_copy(
        update={
            "starts": history.starts,
            "lost_steps": earlier.lost_steps(step),
            "elapsed_seconds": spent,
        }
    )
    try:
        run_ranks(rank_group, rank_setup, spec)
    except RunFailedError as error:
        if (ended := error.ended) is None:
            raise
        no_progress = ended.outcome == "failed" or (ended.stopped is not None and not ended.stopped.saved)
        with suppress(OSError):  # the error says more
            history = record_end(
                folder, history, rank_group.rank_files, ended.outcome, error.reason, no_progress
            )
        without_progress = list[Restart]()
        with suppress(OSError):
            reached = next(checkpoints.valid([]), None)
            without_progress = history.starts_without_progress(
                reached.manifest.step if reached is not None else 0
            )
        if len(without_progress) >= MAX_STARTS_WITHOUT_PROGRESS:
            with suppress(OSError):
                note(rank_group.log, _gave_up(without_progress))
            text = f"{error}\n{_gave_up(without_progress)}"
            raise RunFailedError(text, error.reason, ended, given_up=True) from error
        raise
    end_training(folder, context.keep_checkpoints)


def end_training(folder: Path, keep_checkpoints: bool) -> None:
    """Forget the starts of a training that has left its result, and its checkpoints as the user asks.

    Raises:
        RecordError: The result cannot be read.
    """
    forget_history(folder)
    if not keep_checkpoints and read_summary(folder).outcome != "diverged":
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _gave_up(without_progress: list[Restart]) -> str:
    last = without_progress[0]
    came = f"beyond the checkpoint at step {last.from_step}" if last.from_step else "to a checkpoint"
    why = f"ended {last.ended}" if last.ended == SILENT else last.reason
    return f"{len(without_progress)} tries without progress: none came {came}. The last one: {why}"


def _spent(rank_group: RankGroup, step: int) -> str:
    return (
        f"all of its {in_minutes(rank_group.limit_seconds)} are used. {rank_group.fix} The checkpoint at "
        f"step {step} is kept: with more time the same command resumes there."
    )
