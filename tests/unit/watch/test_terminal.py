"""What is said of a study that runs: a table that fits its terminal, or lines when something happens."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.golden import compare
from tests.unit.watch.planted_status import (
    BLOCKED,
    FAILED,
    NOW,
    QUEUED,
    STARTING,
    WAITING,
    Drawn,
    Window,
    done,
    point,
    running,
    status_of,
)

from scalewise.watch.status import RunStatus, StudyStatus
from scalewise.watch.study import QueuedJob, Rounds
from scalewise.watch.terminal import Lines, display_for
from scalewise.watch.texts import table

SMALL = {
    point(1): [done(100, 60), done(104, 60), done(102, 60)],
    point(2): [done(180, 40), running(3, 10, elapsed=20, rate=177.4), WAITING],
    point(4): [FAILED, STARTING, WAITING],
    point(8): [WAITING, WAITING, WAITING],
}


BUSY = RunStatus("done", "completed", 30.0, disturbed="other processes took 90 % of the CPUs")
INTERRUPTED = RunStatus("failed", "interrupted", job_seconds=(30.0,))


def queued(starts: float | None = None, reason: str = "") -> RunStatus:
    return RunStatus("queued", slurm=QueuedJob(state="PENDING", starts=starts, reason=reason))


STUDIES = {
    "points in every state": status_of(SMALL, min_efficiency=0.7),
    "the same, cut off": status_of(SMALL, over=True),
    "a run interrupted at the end": status_of({point(1): [done(100, 60), INTERRUPTED]}, over=True),
    "a disturbed run next to others": status_of(
        {point(1): [done(100), BUSY, done(104)], point(2): [done(180)]}
    ),
    "disturbed runs only": status_of({point(1): [BUSY], point(2): [done(180)]}),
    "jobs in the queue": status_of(
        {
            point(2): [queued(NOW + 600, "Priority"), queued(reason="Resources"), queued(NOW - 60)],
            point(4): [done(380), queued(NOW + 600)],
        },
        budget=8,
    ),
    "runs that wait for another training": status_of(
        {point(2): [done(180), BLOCKED, WAITING], point(4): [BLOCKED] * 2}
    ),
    "several runs at work": status_of(
        {point(4): [running(3, 10, 50, rate=5000.0), running(2, 10, 50, rate=5100.0), QUEUED]}, budget=64
    ),
    "rounds that may request more": replace(
        status_of({point(1): [done(100, 60), WAITING]}), rounds=Rounds(requested={}, may_grow=True)
    ),
    "no required efficiency": status_of(
        {point(1): [done(100)], point(4): [done(380)], point(8): [done(500)]}
    ),
    "two series of more than one device": status_of(
        {
            point(devices, series=series): [done(rate * devices)]
            for series, rate in (("a", 100.0), ("b", 90.0))
            for devices in (2, 4)
        }
    ),
}
WORDS = Path(__file__).with_name("status_tables.txt")


def test_tables_of_studies_are_as_they_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    tables = {name: "\n".join(table(status, 140, 40)) for name, status in STUDIES.items()}
    monkeypatch.undo()
    time.tzset()

    assert re.findall(r"[^\x20-\x7e\n]", "".join(tables.values())) == []
    compare(WORDS, "\n".join(f"# {name}\n{text}\n" for name, text in tables.items()), __file__, capsys)


def large(series: int, counts: int) -> StudyStatus:
    runs = {
        point(
            2**count, experiment=f"experiment-{number % 3}", series=f"precision-bf16.bucket-view-{number}"
        ): [
            [done(1234.5 * 2**count), done(1244.5 * 2**count), WAITING],
            [done(1234.5 * 2**count), running(40, 123, elapsed=50, rate=120_345.0), WAITING],
            [WAITING, WAITING, WAITING],
        ][(number + count) % 3]
        for number in range(series)
        for count in range(counts)
    }
    return status_of(runs)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 250])
@pytest.mark.parametrize("height", [4, 10, 24, 200])
def test_the_table_fits_every_terminal(width: int, height: int) -> None:
    lines = table(large(12, 8), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert " of 288 runs done" in " ".join(lines)
    # what is cut off is seen to be
    assert width > 40 or lines[1].endswith("...")


def test_where_not_all_points_have_room_those_at_work_are_shown_and_the_others_counted() -> None:
    status = large(12, 8)
    lines = table(status, 200, 24)

    (left_out,) = (line for line in lines if line.startswith("... and "))
    shown = [line for line in lines if "epoch 40/123" in line]
    at_work = [each for each in status.points if each.in_state("running")]
    found = re.match(r"\.\.\. and (\d+) more: (?:(\d+) at work, )?", left_out)
    assert found is not None
    assert len(shown) + int(found[2] or 0) == len(at_work)
    assert int(found[1]) + len(shown) == len(status.points)
    assert len(shown) > 10


def test_without_a_terminal_a_line_is_printed_when_a_point_changes_and_no_other() -> None:
    stream = io.StringIO()
    display = Lines(stream)

    def now(*runs: RunStatus) -> list[str]:
        before = stream.tell()
        display.show(status_of({point(1): [*runs], point(2): [WAITING]}))
        return [line[9:] for line in stream.getvalue()[before:].splitlines()]

    assert now(WAITING, WAITING) == []
    assert now(STARTING, WAITING) == ["digits, 1 device: 0 of 2 runs done; run 1 starting"]
    assert now(running(1, 9, 20, rate=100.0), WAITING) == []
    assert now(running(2, 9, 23, rate=101.0), WAITING) == []
    first, *of_study = now(done(100, 60), STARTING)
    assert first == "digits, 1 device: 1 of 2 runs done, 100 samples/s; run 2 starting"
    assert [line[:19] for line in of_study] == ["1 of 3 runs done, 0"]
    assert now(done(100, 60), FAILED)[0] == (
        "digits, 1 device: 1 of 2 runs done, 1 failed, 100 samples/s; timed-out"
    )
    assert now(done(100, 60), FAILED) == []


FIRST = status_of({point(1): [STARTING, WAITING], point(2): [WAITING, WAITING]})
LATER = status_of({point(1): [done(100), running(3, 4, 9, rate=99.0)], point(2): [WAITING, WAITING]})


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
