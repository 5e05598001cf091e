"""The output of a run's ranks, ``train.log``, and the part of it that a terminal can show."""

from __future__ import annotations

import re
from pathlib import Path

from scalewise.records import LOG_TAIL_LINES

OUTPUT = "train.log"
"""The file with all that the ranks print, in the folder of the run."""

SHOWN_BYTES = 1 << 14
"""Most bytes of a failed run's output that reach the terminal."""

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that change what a terminal shows, but for tabs and ends of lines."""

_OF_SCALEWISE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\S* ")
"""The time before a command that Scalewise adds to the output."""

LONGEST_LINE = 200
"""Most characters of the last line of output in a reason."""


def printable(text: str) -> str:
    """Return the end of a program's output as a terminal can show it: bounded, control characters escaped."""
    lines = text[-SHOWN_BYTES:].replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), lines)


def log_tail(log: Path) -> list[str]:
    """Return the last lines of a log; none if it is missing."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - SHOWN_BYTES, 0))
            text = file.read(SHOWN_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    return printable(text).splitlines()[-LOG_TAIL_LINES:]


def last_line(log: Path) -> str:
    """Return the last line that the ranks printed; empty without one."""
    lines = [line.strip() for line in log_tail(log) if not _OF_SCALEWISE.match(line)]
    return next((line[:LONGEST_LINE] for line in reversed(lines) if line), "")
