"""The screen of a terminal, as far as this project draws on one: enough to see what a person sees."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b(?:\[(?P<numbers>[0-9;]*)(?P<end>[A-Za-z])|(?P<one>[78D]))")


class TerminalScreen:
    """Takes what a program writes to a terminal of this size; unknown sequences fail the test."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [" " * columns for _ in range(rows)]
        self.scrolled: list[str] = []
        """Lines that have left the screen at its top."""
        self._row = self._column = 0
        self._kept = (0, 0)
        self._region = (0, rows - 1)

    @property
    def lines(self) -> list[str]:
        """The lines that are seen."""
        return [line.rstrip() for line in self.cells]

    @property
    def text(self) -> str:
        """All that was ever printed and not erased, the first line first."""
        return "\n".join([*self.scrolled, *self.lines]).rstrip()

    @property
    def scrolls_whole(self) -> bool:
        """Whether all lines scroll, as in a terminal that was given back."""
        return self._region == (0, self.rows - 1)

    def write(self, text: str) -> None:
        """Show more."""
        place = 0
        while place < len(text):
            if text[place] == "\x1b":
                found = _SEQUENCE.match(text, place)
                assert found is not None, f"unknown sequence {text[place : place + 12]!r}"
                self._obey(found)
                place = found.end()
                continue
            self._put(text[place])
            place += 1

    def _put(self, char: str) -> None:
        if char == "\n":
            self._feed()
        elif char == "\r":
            self._column = 0
        else:
            if self._column == self.columns:
                self._column = 0
                self._feed()
            line = self.cells[self._row]
            self.cells[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1

    def _feed(self) -> None:
        top, bottom = self._region
        if self._row == bottom:
            gone = self.cells.pop(top)
            if top == 0:
                self.scrolled.append(gone.rstrip())
            self.cells.insert(bottom, " " * self.columns)
        elif self._row < self.rows - 1:
            self._row += 1

    def _obey(self, found: re.Match[str]) -> None:
        if found["one"] == "7":
            self._kept = (self._row, self._column)
            return
        if found["one"] == "8":
            self._row, self._column = self._kept
            return
        if found["one"] == "D":
            self._feed()
            return
        numbers = [int(number) if number else 0 for number in found["numbers"].split(";")]
        match found["end"]:
            case "m":
                pass
            case "A":
                self._row = max(self._row - max(numbers[0], 1), 0)
            case "H":
                row, column = (*numbers, 1, 1)[:2] if numbers[0] else (1, 1)
                self._row, self._column = min(row, self.rows) - 1, min(column, self.columns) - 1
            case "K":
                self.cells[self._row] = self.cells[self._row][: self._column].ljust(self.columns)
            case "J":
                assert numbers[0] == 0
                self.cells[self._row] = self.cells[self._row][: self._column].ljust(self.columns)
                for row in range(self._row + 1, self.rows):
                    self.cells[row] = " " * self.columns
            case "r":
                top, bottom = (*numbers, self.rows)[:2] if numbers[0] else (1, self.rows)
                self._region = (top - 1, bottom - 1)
                self._row = self._column = 0
            case other:
                raise AssertionError(f"unknown sequence with {other}")

    def resize(self, columns: int, rows: int) -> None:
        """Make it another size, as a person does at the window's edge; the lines at the top scroll away."""
        while len(self.cells) > rows:
            if self._row < len(self.cells) - 1:
                self.cells.pop()
            else:
                self.scrolled.append(self.cells.pop(0).rstrip())
                self._row -= 1
        self.cells += [" " * columns] * (rows - len(self.cells))
        self.cells = [line[:columns].ljust(columns) for line in self.cells]
        self.columns, self.rows = columns, rows
        self._row, self._column = min(self._row, rows - 1), min(self._column, columns - 1)
        self._region = (0, rows - 1)
