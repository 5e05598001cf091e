"""The log of a run, and the part of it that a terminal can show."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

from scalewise.records import LOG_TAIL_LINES, utc_now, write_text

WHOLE_LOG = "train.whole.log"
"""The whole log of a run that failed, if ``train.log`` has only its end."""

SHOWN_BYTES = 1 << 14
"""Most bytes of a failed run's output that reach the terminal."""

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that change what a terminal shows, but for tabs and ends of lines."""

_OF_SCALEWISE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\S* ")
"""The time before a line that Scalewise adds to the output."""

LONGEST_LINE = 200
"""Most characters of the last line of output in a reason."""


def say(text: str) -> None:
    """Print a line of the job's own log."""
    print(text, file=sys.stderr, flush=True)


def append_log(log: Path, text: str) -> None:
    """Add a line to the run's log, with the time, unless the disk is full."""
    with suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(f"{utc_now()} {text}\n")


def printable(text: str) -> str:
    """Return the end of a program's output as a terminal can show it: bounded, control characters escaped."""
    lines = text[-SHOWN_BYTES:].replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), lines)


def log_tail(log: Path) -> list[str]:
    """Return the last lines of a log; none if it is missing."""
    return printable(_end_of(log)).splitlines()[-LOG_TAIL_LINES:]


def last_line(log: Path) -> str:
    """Return the last line that the ranks printed; empty without one."""
    lines = [line.strip() for line in log_tail(log) if not _OF_SCALEWISE.match(line)]
    return next((line[:LONGEST_LINE] for line in reversed(lines) if line), "")


def shorten_log(log: Path) -> None:
    """Reduce a failed run's log to its printable end, and keep the whole log next to it.

    Snakemake copies the log of a failed job to the terminal and to its own log, however long it is.
    """
    with suppress(OSError):
        size, end = log.stat().st_size, _end_of(log)
        shown = printable(end)
        if size <= SHOWN_BYTES and shown == end:
            return
        whole, draft = log.with_name(WHOLE_LOG), log.with_name(f".{log.name}.shown")
        write_text(draft, f"The printable end of {size:,} bytes. The whole log: {whole}\n{shown}")
        log.replace(whole)
        draft.replace(log)


def restore_log(log: Path) -> None:
    """Put the whole log of an earlier start, if it was reduced, back in its place: another start adds to it.

    Raises:
        OSError: The run's folder cannot be used.
    """
    whole = log.with_name(WHOLE_LOG)
    if log.exists() and whole.exists():
        whole.replace(log)


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - SHOWN_BYTES, 0))
            return file.read(SHOWN_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""
