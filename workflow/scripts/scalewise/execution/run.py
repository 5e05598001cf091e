"""One start of a training among its others: where it begins, what it may still take, what it leaves."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.execution.checkpoint_files import CheckpointFolder
from scalewise.execution.messages import CHECKPOINTS, Assignment, Muster
from scalewise.execution.outcome import RunFailedError, execute, note, refuse_start
from scalewise.execution.restarts import MOST_IDLE, SILENT, TRIES, Try, begin_try, earlier_tries, end_try
from scalewise.execution.run_lock import Holder
from scalewise.execution.supervisor import Order, in_minutes
from scalewise.records import read_summary


@dataclass(frozen=True)
class Beginning:
    """The circumstances of one start of a training.

    Args:
        me: The process that starts it.
        fresh: Whether the user has begun to train, rather than snakemake or Slurm again.
        keep_checkpoints: Whether a run that has completed keeps its checkpoints.
    """

    me: Holder
    fresh: bool
    keep_checkpoints: bool


def start_again(order: Order, muster: Muster, assignment: Assignment, beginning: Beginning) -> None:
    """Train from the newest checkpoint, or from the beginning where there is none, to the run's records.

    The assignment says what is the same for every start; the number of starts and the time that they took are
    added here.

    Raises:
        RunFailedError: There is no result; what was trained is kept in a checkpoint, as far as there is one.
            The error says whether the run is given up.
        RunTakenError: Another process trains the run by now.
        RecordError: The record that the ranks left cannot be read.
        OSError: The run's folder cannot be used.
    """
    folder = assignment.folder
    checkpoints = CheckpointFolder(assignment.checkpoints, assignment.definition, assignment.inputs)
    # listed, as a network file system may remember that a file was missing; one that is damaged is there
    begun = folder.exists() and any(path.name == TRIES for path in folder.iterdir())
    if not begun and checkpoints.folder.exists():
        note(order.log, f"not used: {checkpoints.folder} is of a training that has ended")
        checkpoints.clear()
    newest = next(checkpoints.usable([]), None)
    step, spent = (newest.manifest.step, newest.manifest.elapsed_seconds) if newest is not None else (0, 0.0)
    order = replace(order, spent_seconds=spent)
    earlier = earlier_tries(
        folder, assignment.definition, assignment.inputs, order.attempt, step, beginning.fresh
    )
    if len(idle := earlier.idle_tries(step)) >= MOST_IDLE:
        raise refuse_start(order, assignment, "failed", _gave_up(idle))
    if order.seconds_left <= 0:
        raise refuse_start(order, assignment, "timed-out", _spent(order, step))
    # so that the next start cannot take for this one's what an earlier one has left
    order.attempt.forget()
    tries = begin_try(folder, earlier, step, beginning.me)
    assignment = assignment.model_copy(
        update={
            "starts": tries.starts,
            "lost_steps": earlier.lost_steps(step),
            "elapsed_seconds": spent,
        }
    )
    try:
        execute(order, muster, assignment)
    except RunFailedError as error:
        if (ended := error.ended) is None:
            raise
        idle_try = ended.why == "failed" or (ended.stopped is not None and not ended.stopped.saved)
        with suppress(OSError):  # the error says more
            tries = end_try(folder, tries, order.attempt, ended.why, error.reason, idle_try)
        idle = list[Try]()
        with suppress(OSError):
            reached = next(checkpoints.usable([]), None)
            idle = tries.idle_tries(reached.manifest.step if reached is not None else 0)
        if len(idle) >= MOST_IDLE:
            with suppress(OSError):
                note(order.log, _gave_up(idle))
            text = f"{error}\n{_gave_up(idle)}"
            raise RunFailedError(text, error.reason, ended, given_up=True) from error
        raise
    end_training(folder, beginning.keep_checkpoints)


def end_training(folder: Path, keep_checkpoints: bool) -> None:
    """Forget the starts of a training that has left its result, and its checkpoints as the user asks.

    Raises:
        RecordError: The result cannot be read.
    """
    (folder / TRIES).unlink(missing_ok=True)
    if not keep_checkpoints and read_summary(folder).outcome != "diverged":
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _gave_up(idle: list[Try]) -> str:
    last = idle[0]
    came = f"beyond the checkpoint at step {last.from_step}" if last.from_step else "to a checkpoint"
    why = f"ended {last.ended}" if last.ended == SILENT else last.reason
    return f"{len(idle)} tries without progress: none has come {came}. The last one: {why}"


def _spent(order: Order, step: int) -> str:
    return (
        f"all of its {in_minutes(order.limit_seconds)} are used. {order.cure} The checkpoint at step "
        f"{step} is kept: with more time the same command goes on from there."
    )
