"""Start a training from its newest checkpoint, within the time left, and record how it ended."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from scalewise.config.settings import Settings
from scalewise.execution.failure_reason import failure_reason, in_minutes, would_end_alike
from scalewise.execution.finished_results import publish
from scalewise.execution.history import (
    MAX_STARTS_WITHOUT_PROGRESS,
    HistoryWriter,
    in_training,
    lost_steps,
    starts_without_progress,
)
from scalewise.execution.messages import RankError, RankSetup, TrainSpec
from scalewise.execution.os_errors import explain_os_error, free_bytes
from scalewise.execution.run_log import log_tail, note, printable, restore_log
from scalewise.execution.saved_training import leave_enough_to_measure, saved_training
from scalewise.execution.supervisor import ExitStatus, RankGroup, supervise
from scalewise.execution.watchdog import Why
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import (
    EPOCHS,
    MODEL,
    RANKS,
    RECORD,
    RECORD_LOG,
    RUN_RECORDS,
    SUMMARY,
    UTILIZATION,
    EpochRecord,
    RankRecord,
    RunRecord,
    Start,
    UtilizationRecord,
    read_record,
    write_json,
    write_rows,
)

REASON_CHARACTERS = 4000
"""Most characters of a reason, which begins with what matters."""

FULL_BYTES = 1 << 20
"""Free bytes below which a disk counts as full: the last files of the ranks may be missing."""


class RunFailedError(Exception):
    """The run has no result; the message is for the user.

    Args:
        message: The reason with details.
        reason: The same in one sentence.
        ended: The end of the ranks; None if none were started.
        given_up: Whether another start would end the same way.
    """

    def __init__(
        self, message: str, reason: str = "", ended: ExitStatus | None = None, given_up: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.ended = ended
        self.given_up = given_up


def resume_or_begin(
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
        spec: Facts that every start shares; the number of this start and the earlier time are added here.
        history: Has the earlier starts, and receives this one.
        keep_checkpoints: Whether a run that has completed keeps its checkpoints.

    Raises:
        RunFailedError: There is no result; a checkpoint may hold what was trained. The error states whether
            the run is given up.
        LockLostError: Another process trains the run by now.
        RecordError: The record that the ranks left cannot be read.
        OSError: The run's folder cannot be used.
    """
    restore_log(rank_group.log)
    leave_enough_to_measure(spec.output, spec.definition)
    saved = saved_training(spec.output, spec.definition)
    step = saved.step
    rank_group = replace(rank_group, spent_seconds=saved.seconds)
    # the user may have fixed the reason of earlier failures
    failures = [] if history.start.is_requested_by_user else starts_without_progress(history.history, step)
    if len(failures) >= MAX_STARTS_WITHOUT_PROGRESS:
        raise refuse_start(rank_group, history, "failed", _given_up_text(failures))
    if rank_group.seconds_left <= 0:
        raise refuse_start(rank_group, history, "timed-out", _time_used_text(rank_group, step))
    # the next start must not read files of an earlier start as those of this one
    rank_group.rank_files.clear()
    history.begin(step)
    spec = spec.model_copy(
        update={
            "start_number": len(in_training(history.history)),
            "lost_steps": lost_steps(history.history, step),
            "from_step": step,
        }
    )
    try:
        run_ranks(rank_group, rank_setup, spec, history)
    except RunFailedError as error:
        failures = []
        with suppress(OSError):  # the first error is more useful
            step = saved_training(spec.output, spec.definition).step
            failures = starts_without_progress(history.history, step)
        if error.ended is None or len(failures) < MAX_STARTS_WITHOUT_PROGRESS:
            raise
        text = _given_up_text(failures)
        with suppress(OSError):
            note(rank_group.log, text)
            history.give_up()
        raise RunFailedError(f"{error}\n{text}", error.reason, error.ended, given_up=True) from error
    end_training(spec.output, spec.definition, keep_checkpoints)


def end_training(output: Path, run: RunDefinition, keep_checkpoints: bool) -> None:
    """Delete what train.py has left of a training that has a result, unless the user keeps its checkpoints.

    Args:
        output: The folder for what the program writes.
        run: The run; the files of a user's program are the user's.
        keep_checkpoints: Whether the user keeps them.
    """
    if isinstance(run.settings, Settings) and not keep_checkpoints:
        shutil.rmtree(output, ignore_errors=True)


def _given_up_text(failures: list[Start]) -> str:
    last = failures[0]
    came = f"beyond the checkpoint at step {last.from_step}" if last.from_step else "to a checkpoint"
    why = "ended without an error message" if last.outcome == "killed" else last.reason
    return f"{len(failures)} tries without progress: none came {came}. The last one: {why}"


def _time_used_text(rank_group: RankGroup, step: int) -> str:
    return (
        f"all of its {in_minutes(rank_group.limit_seconds)} are used. {rank_group.fix} The checkpoint at "
        f"step {step} is kept: with more time the same command resumes there."
    )


def run_ranks(rank_group: RankGroup, rank_setup: RankSetup, spec: TrainSpec, history: HistoryWriter) -> None:
    """Run the ranks to their end, and write it into the history.

    Raises:
        RunFailedError: There is no result.
        LockLostError: Another process trains the run by now; the run's folder is left as it is.
        RecordError: The record that the ranks left cannot be read.
    """
    for name in (SUMMARY, RECORD_LOG, *RUN_RECORDS, MODEL):
        (spec.folder / name).unlink(missing_ok=True)
    rank_files = rank_group.rank_files
    rank_files.begin(rank_setup.model_copy(update={"training": spec}))
    ended = supervise(rank_group)
    cause = rank_files.root_cause(rank_group.world_size)
    if not (spec.folder / RECORD).exists():
        if cause is None or not cause.out_of_memory or ended.outcome != "failed":
            raise _fail(rank_group, spec, ended, cause, history)
        _record_out_of_memory(spec, cause)
    # the training writes its record last: what failed came after it
    record = read_record(spec.folder / RECORD, RunRecord)
    with suppress(OSError):
        history.end(rank_files, outcome=record.outcome, reason=record.reason)
    rank_files.end()
    publish(spec.folder, rank_group.log)


def refuse_start(rank_group: RankGroup, history: HistoryWriter, outcome: Why, why: str) -> RunFailedError:
    """Record that a run is not started again, like one that has failed; returns the error to raise."""
    history.refuse(outcome=outcome, reason=why, permanent=True, log_tail=log_tail(rank_group.log))
    note(rank_group.log, f"{outcome}: {why}")
    return RunFailedError(f"{rank_group.label} {outcome}: {why}\nWhole log: {rank_group.log}", why)


def _record_out_of_memory(spec: TrainSpec, cause: RankError) -> None:
    """Write the records of a run that had too little device memory: another start would end the same way."""
    write_rows(spec.folder / EPOCHS, EpochRecord, [])
    write_rows(spec.folder / RANKS, RankRecord, [])
    write_rows(spec.folder / UTILIZATION, UtilizationRecord, [])
    record = RunRecord(
        definition=spec.definition,
        outcome="out-of-memory",
        reason=printable(f"rank {cause.rank} on {cause.host}: {cause.first_line}"[:REASON_CHARACTERS]),
        measurements=None,
        provenance=None,
    )
    write_json(spec.folder / RECORD, record)


def _fail(
    rank_group: RankGroup,
    spec: TrainSpec,
    ended: ExitStatus,
    cause: RankError | None,
    history: HistoryWriter,
) -> RunFailedError:
    """Record the failure and return it as an error: the reason, then the last lines of output.

    The reason also ends the log, which is what Snakemake shows of a job that failed on another machine.
    """
    why = printable(failure_reason(rank_group, ended, cause)[:REASON_CHARACTERS])
    if (free := free_bytes(spec.folder)) < FULL_BYTES:
        why += f" {spec.folder} has {free:,} free bytes left: make room there."
    for name in (*RUN_RECORDS, MODEL):
        (spec.folder / name).unlink(missing_ok=True)
    failed, stopped = ended.outcome == "failed", ended.stopped
    failure = {
        "outcome": ended.outcome,
        "reason": why,
        "no_progress": failed or (stopped is not None and not stopped.saved),
        "permanent": would_end_alike(rank_group, ended, cause),
        "traceback": printable(cause.traceback) if cause is not None else "",
        "log_tail": log_tail(rank_group.log),
    }
    details = ""
    if stopped is None or not stopped.saved:  # else it ended as requested, and the output has no cause
        details = "\n".join(history.start.model_copy(update=failure).output)
    try:
        history.end(rank_group.rank_files, **failure)
        note(rank_group.log, f"{ended.outcome}: {why}")
    except OSError as error:  # the reason is then only in this message
        details += f"\n{explain_os_error(rank_group.label, spec.folder, error)}"
    message = f"{rank_group.label} {ended.outcome}: {why}\n{details}".rstrip()
    return RunFailedError(f"{message}\nWhole log: {rank_group.log}", why, ended)
