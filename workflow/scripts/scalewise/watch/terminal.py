"""Display of a study: a table at the foot of a terminal, or lines one after the other."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TextIO

from scalewise.watch.lines import change_lines, study_lines, table
from scalewise.watch.points import WatchedPoint
from scalewise.watch.standing import Standing

LEAST_ROWS, LEAST_COLUMNS = 10, 40
"""A smaller terminal has no room for a table beside what steps say."""
KEPT_ROWS = 6
"""Lines of a terminal that stay free for what steps say."""
MAX_FINAL_ROWS = 60
LAST_TURN_SECONDS = 1.0
"""Most that the end waits for a write that is under way."""

BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class Display(Protocol):
    """Shows a study."""

    def show(self, standing: Standing) -> None:
        """Show how it stands."""

    def end(self, standing: Standing | None) -> None:
        """Leave the last state standing, and the terminal as it was found."""

    def say(self, text: str) -> None:
        """Print a line that is no part of it."""


def display_for(stream: TextIO, environ: Mapping[str, str]) -> Display:
    """The display that a stream can carry: a table in a terminal that obeys, else lines."""
    if stream.isatty() and environ.get("TERM", "dumb") != "dumb":
        return Table(stream, color=not environ.get("NO_COLOR"))
    return Lines(stream)


class _Writing:
    """The right to write to a stream: kept by one thread at a time, and by none after the end."""

    def __init__(self) -> None:
        self._lock, self._ended = threading.Lock(), False

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Yield whether writing is still allowed."""
        with self._lock:
            yield not self._ended

    @contextmanager
    def last_turn(self) -> Iterator[bool]:
        """The same for what is written last; a write that hangs is not waited for."""
        mine = self._lock.acquire(timeout=LAST_TURN_SECONDS)
        try:
            allowed, self._ended = not self._ended, True
            yield allowed
        finally:
            if mine:
                self._lock.release()


class Lines:
    """A line when there is news of a point: for files, mail, CI and terminals that only print."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told: dict[WatchedPoint, tuple[object, ...]] = {}
        self._ended: int | None = None
        self._of_study: list[str] = []
        self._writing = _Writing()

    def show(self, standing: Standing) -> None:
        """Tell what is new; of the study as a whole, only when runs have ended."""
        with self._writing.turn() as allowed:
            if allowed:
                self._tell(standing)

    def _tell(self, standing: Standing) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(standing.now))
        news = change_lines(standing, self._told)
        ended = standing.count("done", "failed")
        if self._ended is not None and ended != self._ended:
            of_study = study_lines(standing)
            news += [line for line in of_study if line not in self._of_study]
            self._of_study = of_study
        self._ended = ended
        if news:
            self._stream.write("".join(f"{clock} {line}\n" for line in news))
            self._stream.flush()

    def end(self, standing: Standing | None) -> None:
        """Tell what is new since the last look, and how far the study has come if that is not all of it."""
        with self._writing.last_turn() as allowed:
            if not allowed or standing is None:
                return
            self._tell(standing)
            if standing.count("done") < len(standing.runs):
                lines = [line for line in study_lines(standing) if line not in self._of_study]
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._stream, flush=True)


class Table:
    """A table at the foot of a terminal, drawn in place; all that is printed meanwhile scrolls above it.

    The terminal itself keeps the two apart: it scrolls the lines above the table alone. What a training or
    Snakemake prints, from whatever process, can so not tear the table, and loses nothing by it.

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

    def show(self, standing: Standing) -> None:
        """Draw the table, where it has changed; a terminal that is too small for it gets lines."""
        with self._writing.turn() as allowed:
            if allowed:
                self._show(standing)

    def _show(self, standing: Standing) -> None:
        size = self._terminal_size()
        if size.lines < LEAST_ROWS or size.columns < LEAST_COLUMNS:
            self._give_back()
            self._lines.show(standing)
            return
        lines = table(standing, size.columns - 1, size.lines - KEPT_ROWS)
        self._draw(lines, size)

    def end(self, standing: Standing | None) -> None:
        """Print the last state where the table was, and let the whole terminal scroll again."""
        with self._writing.last_turn() as allowed:
            if not allowed:
                return
            size = self._terminal_size()
            self._give_back()
            if standing is not None:
                width = max(size.columns - 1, LEAST_COLUMNS)
                lines = table(standing, width, MAX_FINAL_ROWS)
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
        # a rule above keeps apart what steps say
        lines = ["-" * min(size.columns - 1, max(map(len, lines))), *lines]
        text = ""
        if size != self._size or len(lines) != self._rows:
            # a table that grows or a window that changes: from the cursor on, where the old one is, all anew
            text += self._whole_screen() + "\x1b[J" if self._rows else ""
            # down without a return: what a step has begun to print goes on where it stopped
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
        # one write, so that nobody else's comes between leaving the cursor's place and returning to it
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
