"""One run: its ranks under supervision, then its records, or why there are none. Needs no torch."""

from __future__ import annotations

import errno
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from scalewise.execution.finished_results import publish
from scalewise.execution.history import HistoryWriter
from scalewise.execution.messages import RankError, RankSetup, TrainSpec
from scalewise.execution.supervisor import ExitStatus, RankGroup, failure_reason, supervise
from scalewise.execution.watchdog import Why
from scalewise.records import (
    EPOCHS,
    LOG_TAIL_LINES,
    MODEL,
    RANKS,
    RECORD,
    RECORD_LOG,
    RUN_RECORDS,
    SUMMARY,
    UTILIZATION,
    EpochRecord,
    History,
    RankRecord,
    Start,
    Summary,
    UtilizationRecord,
    read_record,
    utc_now,
    write_json,
    write_rows,
    write_text,
)

SHOWN_BYTES = 1 << 14
"""Most bytes of a failed run's output that reach the terminal."""

REASON_CHARACTERS = 4000
"""Most characters of a reason, which begins with what matters."""

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that change what a terminal shows, but for tabs and ends of lines."""

_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors for which the free space matters."""

FULL_BYTES = 1 << 20
"""A folder with less room than this has none: what ranks wrote there last may be missing."""


class RunFailedError(Exception):
    """The run has no result; the message is for the user.

    Args:
        message: All that there is to say.
        reason: The same in one sentence.
        ended: The end of the ranks; None where none were started.
        given_up: Whether starting the run again would end alike.
    """

    def __init__(
        self, message: str, reason: str = "", ended: ExitStatus | None = None, given_up: bool = False
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.ended = ended
        self.given_up = given_up


def run_ranks(rank_group: RankGroup, rank_setup: RankSetup, spec: TrainSpec, history: HistoryWriter) -> None:
    """Run the ranks to their end, which the history then has.

    Raises:
        RunFailedError: There is no result.
        LockLostError: Another process trains the run by now; the run's folder is left as it is.
        RecordError: The record that the ranks left cannot be read.
    """
    for name in (SUMMARY, RECORD_LOG, *RUN_RECORDS, MODEL):
        (spec.folder / name).unlink(missing_ok=True)
    whole_log(rank_group.log).unlink(missing_ok=True)
    rank_files = rank_group.rank_files
    rank_files.begin(rank_setup)
    rank_files.write_spec(spec)
    ended = supervise(rank_group)
    cause = rank_files.root_cause(rank_group.world_size)
    if not (spec.folder / RECORD).exists():
        if cause is None or not cause.out_of_memory or ended.outcome != "failed":
            raise _fail(rank_group, spec, ended, cause, history)
        _record_out_of_memory(spec, cause)
    # the record was written last of all that the training leaves: what failed came after it
    record = read_record(spec.folder / RECORD, Summary)
    with suppress(OSError):
        history.end(rank_files, outcome=record.outcome, reason=record.reason)
    rank_files.end()
    publish(spec.folder, rank_group.log)


def refuse_start(rank_group: RankGroup, history: HistoryWriter, outcome: Why, why: str) -> RunFailedError:
    """Record that a run is not started again, like one that has failed; returns the error to raise."""
    history.refuse(outcome=outcome, reason=why, log_tail=_tail(rank_group.log))
    note(rank_group.log, f"{outcome}: {why}")
    return RunFailedError(f"{rank_group.label} {outcome}: {why}\nWhole log: {rank_group.log}", why)


def say(text: str) -> None:
    """Print a line of the job's own log."""
    print(text, file=sys.stderr, flush=True)


def note(log: Path, text: str) -> None:
    """Add a line to the run's log, with the time."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{utc_now()} {text}\n")


def printable(text: str) -> str:
    """Return the end of a program's output as a terminal can show it: bounded, control characters escaped."""
    lines = text[-SHOWN_BYTES:].replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), lines)


def whole_log(log: Path) -> Path:
    """The file that keeps the whole log of a failed run, next to the part that is shown."""
    return log.with_name(f"{log.stem}.whole{log.suffix}")


def shorten_log(log: Path) -> None:
    """Leave the printable end of a failed run's log, and keep the whole log next to it.

    Snakemake copies the log of a failed job to the terminal and to its own log, however long it is.
    """
    with suppress(OSError):
        size = log.stat().st_size
        end = _end_of(log)
        shown = printable(end)
        if size <= SHOWN_BYTES and shown == end:
            return
        whole, draft = whole_log(log), log.with_name(f".{log.name}.shown")
        write_text(draft, f"The printable end of {size:,} bytes. The whole log: {whole}\n{shown}")
        log.replace(whole)
        draft.replace(log)


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - SHOWN_BYTES, 0))
        return file.read(SHOWN_BYTES).decode("utf-8", errors="replace")


def write_log_if_missing(log: Path, text: str) -> None:
    """Leave a text as the log, for snakemake to show, where nothing else was written."""
    if not log.exists():
        with suppress(OSError):
            write_text(log, f"{text}\n")


def append_log(log: Path, text: str) -> None:
    """Add a line to the log, if the disk takes it: on a cluster, snakemake shows nothing else of a job."""
    with suppress(OSError):
        note(log, text)


def explain_os_error(label: str, folder: Path, error: OSError) -> str:
    """Say what the system refused, with the path or else the folder, the free space and the fix."""
    if error.errno == errno.ENOENT and not folder.exists():
        return f"{label} failed: {folder} was removed while it ran. Give the same command to run it again."
    path = Path(str(error.filename or folder))
    reason = error.strerror or str(error)
    fixes = {
        errno.ENOSPC: "Make room there",
        errno.EDQUOT: "Your quota is used up: make room there",
        errno.EFBIG: "The limit of a file's size (ulimit -f) is too low for it: raise it",
        **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make it writable, or use another folder"),
    }
    fix = fixes.get(error.errno or 0, "Fix this")
    room = f" ({free_bytes(path):,} bytes are free there)" if error.errno in _OF_SPACE else ""
    return (
        f"{label} failed: {path}: {reason}{room}. {fix}, and give the same command again. Other runs and "
        "complete checkpoints are not affected."
    )


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write at a path; 0 if unknown."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0


def would_fail_again(history: History, limit_seconds: float) -> Start | None:
    """Return the failure that makes another try a waste: it would end alike, or used as much time."""
    failure = history.failure
    if failure is None or history.first == len(history.starts):
        return None
    used_all = failure.outcome == "timed-out" and failure.limit_seconds >= limit_seconds
    return failure if failure.permanent or used_all else None


def _record_out_of_memory(spec: TrainSpec, cause: RankError) -> None:
    """Write the records of a run without device memory, a result: another start would end the same way."""
    write_rows(spec.folder / EPOCHS, EpochRecord, [])
    write_rows(spec.folder / RANKS, RankRecord, [])
    write_rows(spec.folder / UTILIZATION, UtilizationRecord, [])
    summary = Summary(
        definition=spec.definition,
        outcome="out-of-memory",
        reason=printable(f"rank {cause.rank} on {cause.host}: {cause.first_line}"[:REASON_CHARACTERS]),
        measurements=None,
        provenance=None,
    )
    write_json(spec.folder / RECORD, summary)


def _fail(
    rank_group: RankGroup,
    spec: TrainSpec,
    ended: ExitStatus,
    cause: RankError | None,
    history: HistoryWriter,
) -> RunFailedError:
    """Record the failure and say it: reason first, then the last lines of its output.

    The reason also ends the log, which is what Snakemake shows of a job that failed elsewhere.
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
        "permanent": failed and cause is not None and cause.permanent,
        "traceback": printable(cause.traceback) if cause is not None else "",
        "log_tail": _tail(rank_group.log),
    }
    details = ""
    if stopped is None or not stopped.saved:  # else nothing to look for: it ended as requested
        details = "\n".join(history.start.model_copy(update=failure).output)
    try:
        history.end(rank_group.rank_files, **failure)
        note(rank_group.log, f"{ended.outcome}: {why}")
    except OSError as error:  # only this message has the reason, then
        details += f"\n{explain_os_error(rank_group.label, spec.folder, error)}"
    message = f"{rank_group.label} {ended.outcome}: {why}\n{details}".rstrip()
    return RunFailedError(f"{message}\nWhole log: {rank_group.log}", why, ended)


def _tail(log: Path) -> list[str]:
    """The last lines of a log, if there is one: a user may delete the folder of a run at work."""
    return printable(_end_of(log)).splitlines()[-LOG_TAIL_LINES:] if log.exists() else []
