"""The log of a run, and the part of it that a terminal can show."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

from scalewise.records import LOG_TAIL_LINES, RECORD_LOG, utc_now, write_text

SHOWN_BYTES = 1 << 14
"""Most bytes of a failed run's output that reach the terminal."""

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that change what a terminal shows, but for tabs and ends of lines."""


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
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), lines)


def shorten_log(log: Path) -> None:
    """Reduce a failed run's log to its printable end, and keep the whole log in another file.

    Snakemake copies the log of a failed job to the terminal and to its own log, however long it is.
    """
    with suppress(OSError):
        size = log.stat().st_size
        end = _end_of(log)
        shown = printable(end)
        if size <= SHOWN_BYTES and shown == end:
            return
        whole, draft = log.with_name(RECORD_LOG), log.with_name(f".{log.name}.shown")
        write_text(draft, f"The printable end of {size:,} bytes. The whole log: {whole}\n{shown}")
        log.replace(whole)
        draft.replace(log)


def restore_log(log: Path) -> None:
    """Put the whole log of an earlier start, if it was reduced, back in its place: another start adds to it.

    Raises:
        OSError: The run's folder cannot be used.
    """
    whole = log.with_name(RECORD_LOG)
    if log.exists() and whole.exists():
        whole.replace(log)


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - SHOWN_BYTES, 0))
        return file.read(SHOWN_BYTES).decode("utf-8", errors="replace")


def write_log_if_missing(log: Path, text: str) -> None:
    """Write a text as the log, which snakemake shows, if there is no log."""
    if not log.exists():
        with suppress(OSError):
            write_text(log, f"{text}\n")


def append_log(log: Path, text: str) -> None:
    """Add a line to the log, unless the disk is full: on a cluster, snakemake shows only the log of a job."""
    with suppress(OSError):
        note(log, text)


def log_tail(log: Path) -> list[str]:
    """Return the last lines of a log, if there is one: a user may delete the folder of a run at work."""
    return printable(_end_of(log)).splitlines()[-LOG_TAIL_LINES:] if log.exists() else []
