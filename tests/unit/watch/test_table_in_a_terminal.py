"""The table at the foot of a terminal: drawn in place, never torn, and gone without a trace."""

from __future__ import annotations

import io
import os
from dataclasses import replace

import pytest
from tests.terminal_screen import TerminalScreen
from tests.unit.watch.planted_status import STARTING, WAITING, done, point, running, status_of

from scalewise.watch.status import StudyStatus
from scalewise.watch.terminal import Lines, Table, display_for

FIRST = status_of({point(1): [STARTING, WAITING], point(2): [WAITING, WAITING]})
LATER = status_of({point(1): [done(100), running(3, 4, 9, rate=99.0)], point(2): [WAITING, WAITING]})
MORE = status_of({point(count): [done(100.0 * count)] for count in (1, 2, 4, 8)})


class Window(io.StringIO):
    """A stream that is a terminal of some size, and what a person sees on it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        super().__init__()
        self.screen = TerminalScreen(columns, rows)
        self.writes = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        # as the system does with what goes to a terminal
        self.screen.write(text.replace("\n", "\r\n"))
        self.writes += 1
        return super().write(text)


class Drawn(Table):
    """A table that asks the window for its size."""

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._window = window

    def _terminal_size(self) -> os.terminal_size:
        return os.terminal_size((self._window.screen.columns, self._window.screen.rows))


@pytest.fixture
def window() -> Window:
    return Window()


def table_rows(window: Window) -> list[str]:
    lines = window.screen.lines
    rules = [row for row, line in enumerate(lines) if line.startswith("----")]
    assert len(rules) == 1, lines
    return lines[rules[0] + 1 :]


def test_it_stands_at_the_foot_and_what_steps_print_scrolls_above_it(window: Window) -> None:
    window.write("$ snakemake\n")
    table = Drawn(window)
    table.show(FIRST)
    for number in range(50):
        window.write(f"line {number}\n")
    before = table_rows(window)
    table.show(LATER)

    assert before[0].split() == ["devices", "runs", "done", "now"]
    assert len(table_rows(window)) == len(before) + 1, "the forecast has come, on a second line"
    assert "run 2: epoch 3/4, 99.0/s" in table_rows(window)[1]
    printed = [line for line in window.screen.text.splitlines() if line.startswith("line ")]
    assert printed == [f"line {number}" for number in range(50)]
    assert window.screen.scrolled[0] == "$ snakemake"


def test_it_is_drawn_in_one_write_and_only_where_it_has_changed(window: Window) -> None:
    table = Drawn(window)
    table.show(LATER)
    writes, length = window.writes, len(window.getvalue())
    table.show(LATER)
    assert window.writes == writes

    table.show(status_of({point(1): [done(100), running(4, 4, 9, rate=99.0)], point(2): [WAITING, WAITING]}))
    assert window.writes == writes + 1
    assert "epoch 4/4" in window.getvalue()[length:]
    assert "waiting" not in window.getvalue()[length:]


def test_at_its_end_the_last_state_stands_where_it_was_and_the_whole_terminal_scrolls_again() -> None:
    window = Window(columns=120)
    window.write("before\n")
    table = Drawn(window)
    table.show(FIRST)
    window.write("between\n")
    table.end(LATER)
    window.write("after\n")

    text = [line for line in window.screen.text.splitlines() if line]
    assert text[:2] == ["before", "between"]
    assert text[-1] == "after"
    assert [line.split()[0] for line in text[2:-1]] == ["devices", "1", "2", "1"]
    assert window.screen.scrolls_whole


@pytest.mark.parametrize(("columns", "rows"), [(60, 24), (80, 16), (120, 50), (50, 14)])
def test_it_survives_a_change_of_the_windows_size(window: Window, columns: int, rows: int) -> None:
    table = Drawn(window)
    for number in range(30):
        window.write(f"line {number}\n")
    table.show(FIRST)
    window.screen.resize(columns, rows)
    window.write("line 30\n")
    table.show(LATER)

    assert [row.split()[0] for row in table_rows(window)[:4]] == ["devices", "1", "2", "1"]
    assert all(len(line) < columns for line in table_rows(window))
    assert "line 30" in window.screen.text
    table.end(None)
    assert window.screen.scrolls_whole


def test_it_grows_with_the_points_that_come_up(window: Window) -> None:
    table = Drawn(window)
    table.show(FIRST)
    window.write("between\n")
    table.show(MORE)
    assert [row.split()[0] for row in table_rows(window)[1:5]] == ["1", "2", "4", "8"]
    assert "between" in window.screen.text


@pytest.mark.parametrize(("columns", "rows"), [(80, 8), (30, 24)])
def test_a_window_without_room_shows_lines_until_it_has_grown(columns: int, rows: int) -> None:
    window = Window(columns, rows)
    table = Drawn(window)
    table.show(FIRST)
    assert "run 1 starting" in " ".join(window.getvalue().split())
    assert "----" not in window.getvalue()
    table.show(FIRST)
    assert window.getvalue().count("starting") == 1
    window.screen.resize(80, 24)
    table.show(FIRST)
    assert table_rows(window)


@pytest.mark.parametrize("kind", [Drawn, Lines])
def test_nothing_is_written_after_its_end(window: Window, kind: type[Drawn] | type[Lines]) -> None:
    display = kind(window)
    display.show(FIRST)
    display.end(None)
    written = window.getvalue()
    display.show(LATER)
    display.end(LATER)
    assert window.getvalue() == written


def test_without_a_terminal_a_study_that_is_cut_off_is_summed_up() -> None:
    stream = io.StringIO()
    display = Lines(stream)
    display.show(LATER)
    display.end(replace(LATER, over=True))
    assert stream.getvalue().splitlines()[-1].startswith("1 of 4 runs done, ")


def test_no_color_is_heeded_and_dumb_terminals_and_files_get_lines() -> None:
    def shown(stream: io.StringIO, status: StudyStatus, **environ: str) -> str:
        display_for(stream, environ).show(status)
        return stream.getvalue()

    assert "\x1b[1m" in shown(Window(), LATER, TERM="xterm")
    assert "\x1b[1m" in shown(Window(), LATER, TERM="xterm", NO_COLOR="")
    assert "\x1b[1m" not in shown(Window(), LATER, TERM="xterm", NO_COLOR="1")
    assert "\x1b" not in shown(Window(), LATER, TERM="dumb")
    assert isinstance(display_for(io.StringIO(), {"TERM": "xterm"}), Lines)
