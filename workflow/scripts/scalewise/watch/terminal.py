"""Display a study: as a table at the foot of a terminal, or as lines one after the other."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TextIO

from scalewise.watch.status import StudyStatus
from scalewise.watch.study import WatchedPoint
from scalewise.watch.texts import change_lines, study_lines, table

LEAST_ROWS, LEAST_COLUMNS = 10, 40
"""A smaller terminal has no room for a table and the output of steps."""
KEPT_ROWS = 6
"""Lines of a terminal that stay free for the output of steps."""
MAX_FINAL_ROWS = 60
LAST_TURN_SECONDS = 1.0
"""Most that the end waits for a write that is under way."""

BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class Display(Protocol):
    """Shows a study."""

    def show(self, status: StudyStatus) -> None:
        """Show its status."""

    def end(self, status: StudyStatus | None) -> None:
        """Leave the last status on the screen, and the terminal as it was before."""

    def say(self, text: str) -> None:
        """Print a line in addition to the status."""


def display_for(stream: TextIO, environ: Mapping[str, str]) -> Display:
    """Return a table for a terminal that can be drawn on, else lines."""
    if stream.isatty() and environ.get("TERM", "dumb") != "dumb":
        return Table(stream, color=not environ.get("NO_COLOR"))
    return Lines(stream)


class _Writing:
    """A lock on a stream: one thread writes at a time, and none after the end."""

    def __init__(self) -> None:
        self._lock, self._ended = threading.Lock(), False

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Yield whether the stream may still be written to."""
        with self._lock:
            yield not self._ended

    @contextmanager
    def last_turn(self) -> Iterator[bool]:
        """Yield whether the last text may be written; a write that hangs is not waited for."""
        is_locked = self._lock.acquire(timeout=LAST_TURN_SECONDS)
        try:
            allowed, self._ended = not self._ended, True
            yield allowed
        finally:
            if is_locked:
                self._lock.release()


class Lines:
    """Prints a line when the status of a point changes: for files, mail, CI and terminals that only print."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._reported: dict[WatchedPoint, tuple[object, ...]] = {}
        self._ended: int | None = None
        self._of_study: list[str] = []
        self._writing = _Writing()

    def show(self, status: StudyStatus) -> None:
        """Write what is new; of the study as a whole, only when runs have ended."""
        with self._writing.turn() as allowed:
            if allowed:
                self._write_news(status)

    def _write_news(self, status: StudyStatus) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(status.now))
        news = change_lines(status, self._reported)
        ended = status.count("done", "failed")
        if self._ended is not None and ended != self._ended:
            of_study = study_lines(status)
            news += [line for line in of_study if line not in self._of_study]
            self._of_study = of_study
        self._ended = ended
        if news:
            self._stream.write("".join(f"{clock} {line}\n" for line in news))
            self._stream.flush()

    def end(self, status: StudyStatus | None) -> None:
        """Write what is new, and the state of the whole study if it is not complete."""
        with self._writing.last_turn() as allowed:
            if not allowed or status is None:
                return
            self._write_news(status)
            if status.count("done") < len(status.runs):
                lines = [line for line in study_lines(status) if line not in self._of_study]
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)


class Table:
    """A table at the foot of a terminal, drawn in place; all that is printed meanwhile scrolls above it.

    The terminal itself keeps the two apart: it scrolls only the lines above the table. The output of
    trainings and of Snakemake, from any process, can therefore not tear the table, and is not lost.

    Args:
        stream: The terminal.
        color: Whether the heading is bold.
    """

    def __init__(self, stream: TextIO, color: bool = True) -> None:
        self._stream, self._color = stream, color
        self._size = os.terminal_size((0, 0))
        self._rows = 0
        self._drawn: list[str] = []
        self._writing = _Writing()
        self._lines = Lines(stream)

    def show(self, status: StudyStatus) -> None:
        """Draw what has changed of the table; a terminal that is too small for it gets lines."""
        with self._writing.turn() as allowed:
            if allowed:
                self._show(status)

    def _show(self, status: StudyStatus) -> None:
        size = self._terminal_size()
        if size.lines < LEAST_ROWS or size.columns < LEAST_COLUMNS:
            self._give_back()
            self._lines.show(status)
            return
        lines = table(status, size.columns - 1, size.lines - KEPT_ROWS)
        self._draw(lines, size)

    def end(self, status: StudyStatus | None) -> None:
        """Print the last state where the table was, and let the whole terminal scroll again."""
        with self._writing.last_turn() as allowed:
            if not allowed:
                return
            size = self._terminal_size()
            self._give_back()
            if status is not None:
                width = max(size.columns - 1, LEAST_COLUMNS)
                lines = table(status, width, MAX_FINAL_ROWS)
                self._write("".join(f"{line}\n" for line in self._dressed(lines)))

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)

    def _terminal_size(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(self._stream.fileno())
        except OSError:
            return shutil.get_terminal_size()

    def _draw(self, lines: list[str], size: os.terminal_size) -> None:
        # a rule above sets it apart from the output of steps
        lines = ["-" * min(size.columns - 1, max(map(len, lines))), *lines]
        text = ""
        if size != self._size or len(lines) != self._rows:
            # a table that grows or a window that changes: from the cursor on, where the old one is, all again
            text += self._whole_screen() + "\x1b[J" if self._rows else ""
            # down without a return: the output of a step continues where it stopped
            text += "\x1bD" * len(lines) + f"\x1b[{len(lines)}A"
            text += f"\x1b7\x1b[1;{size.lines - len(lines)}r\x1b8"
            self._size, self._rows, self._drawn = size, len(lines), []
        if lines == self._drawn:
            return
        changed = "".join(
            f"\x1b[{size.lines - len(lines) + row + 1};1H{line}\x1b[K"
            for row, line in enumerate(self._dressed(lines, ruled=True))
            if row >= len(self._drawn) or lines[row] != self._drawn[row]
        )
        # one write, so that no other process writes between leaving the cursor's place and returning to it
        self._write(f"{text}\x1b7{changed}\x1b8")
        self._drawn = lines

    def _dressed(self, lines: list[str], ruled: bool = False) -> list[str]:
        if not self._color:
            return lines
        heading = 1 if ruled else 0
        dress = {heading: BOLD} | ({0: DIM} if ruled else {})
        return [f"{dress[row]}{line}{PLAIN}" if row in dress else line for row, line in enumerate(lines)]

    def _give_back(self) -> None:
        if self._rows:
            self._write(f"{self._whole_screen()}\x1b[J")
        self._rows, self._drawn, self._size = 0, [], os.terminal_size((0, 0))

    @staticmethod
    def _whole_screen() -> str:
        """Let all lines scroll; that moves the cursor, which returns to its place."""
        return "\x1b7\x1b[r\x1b8"

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
