"""One run: its ranks under supervision, then its records, or why there are none. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from scalewise.records import (
    EPOCHS,
    FAILURE,
    MODEL,
    RANKS,
    SUMMARY,
    UTILIZATION,
    Definition,
    EpochRecord,
    Failure,
    RankRecord,
    RecordError,
    Summary,
    UtilizationRecord,
    read_failure,
    read_summary,
    utc_now,
    write_json,
    write_rows,
)
from scalewise.training.supervision.attempt import Assignment, Complaint, Muster
from scalewise.training.supervision.supervisor import End, Order, reason, watch

LOG_TAIL_LINES = 25
RECORDS = (SUMMARY, EPOCHS, RANKS, UTILIZATION)


class RunFailedError(Exception):
    """The run has no result; the message is for the user."""


def execute(order: Order, muster: Muster, assignment: Assignment) -> None:
    """Run the ranks to their end.

    Leaves the run's records, or ``failure.json`` with the reason.

    Args:
        order: the ranks.
        muster: how they meet.
        assignment: what they do.

    Raises:
        RunFailedError: there is no result.
    """
    for name in (*RECORDS, MODEL, FAILURE):
        (assignment.folder / name).unlink(missing_ok=True)
    order.attempt.begin(muster)
    order.attempt.assign(assignment)
    ended = watch(order)
    cause = order.attempt.cause(order.world_size)
    if (assignment.folder / SUMMARY).exists():
        # written last of all that the training leaves: what failed came after it
        order.attempt.end()
        return
    if cause is not None and cause.out_of_memory and ended.why == "failed":
        _record_out_of_memory(assignment, cause)
        order.attempt.end()
        return
    raise _fail(order, assignment, ended, cause)


def has_result(folder: Path, definition: Definition) -> bool:
    """Whether a folder holds the records of just this run."""
    try:
        return read_summary(folder).definition == definition
    except RecordError:
        return False


def would_end_alike(folder: Path, definition: Definition, limit_seconds: float) -> Failure | None:
    """The failure that makes another try at a run a waste: the last one had as much time, and used it all."""
    try:
        failure = read_failure(folder)
    except RecordError:
        return None
    if failure is None or failure.outcome != "timed-out" or failure.definition != definition:
        return None
    return failure if failure.limit_seconds is not None and failure.limit_seconds >= limit_seconds else None


def _record_out_of_memory(assignment: Assignment, cause: Complaint) -> None:
    """Out of device memory is a result: another attempt would end the same way."""
    write_rows(assignment.folder / EPOCHS, EpochRecord, [])
    write_rows(assignment.folder / RANKS, RankRecord, [])
    write_rows(assignment.folder / UTILIZATION, UtilizationRecord, [])
    summary = Summary(
        definition=assignment.definition,
        outcome="out-of-memory",
        reason=f"rank {cause.rank} on {cause.host}: {cause.headline}",
        measurements=None,
        provenance=None,
    )
    write_json(assignment.folder / SUMMARY, summary)


def _fail(order: Order, assignment: Assignment, ended: End, cause: Complaint | None) -> RunFailedError:
    """Record the failure and say it: reason first, then the traceback or the log's last lines.

    The reason also ends the log, which is what Snakemake shows of a job that failed elsewhere.
    """
    why = reason(order, ended, cause)
    # whoever deleted the folder of a run at work should still read why it ended
    text = order.log.read_text(encoding="utf-8", errors="replace") if order.log.exists() else ""
    tail = text.splitlines()[-LOG_TAIL_LINES:]
    for name in (*RECORDS, MODEL):
        (assignment.folder / name).unlink(missing_ok=True)
    failure = Failure(
        definition=assignment.definition,
        outcome=ended.why,
        reason=why,
        limit_seconds=order.limit_seconds,
        traceback=cause.traceback if cause is not None else "",
        log_tail=tail,
        ended_at=utc_now(),
    )
    write_json(assignment.folder / FAILURE, failure)
    details = cause.traceback.rstrip() if cause is not None else "\n".join(tail)
    with order.log.open("a", encoding="utf-8") as log:
        log.write(f"{utc_now()} {ended.why}: {why}\n")
    return RunFailedError(f"{order.label} {ended.why}: {why}\n{details}\nWhole log: {order.log}")
