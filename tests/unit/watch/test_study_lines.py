"""What is said of a study that runs: a table that fits its terminal, or lines when something happens."""

from __future__ import annotations

import io
import re

import pytest
from tests.unit.watch.planted_status import (
    BLOCKED,
    FAILED,
    NOW,
    QUEUED,
    STARTING,
    WAITING,
    done,
    point,
    running,
    status_of,
)

from scalewise.plan.formatting import clock_text, duration_text
from scalewise.watch.status import RunStatus, StudyStatus
from scalewise.watch.study import QueuedJob
from scalewise.watch.terminal import Lines
from scalewise.watch.texts import table

SMALL = {
    point(1): [done(100, 60), done(104, 60), done(102, 60)],
    point(2): [done(180, 40), running(3, 10, elapsed=20, rate=177.4), WAITING],
    point(4): [FAILED, STARTING, WAITING],
    point(8): [WAITING, WAITING, WAITING],
}


def test_each_point_has_one_line_with_its_runs_its_figures_and_what_it_does() -> None:
    lines = table(status_of(SMALL, min_efficiency=0.7), 120, 40)

    assert [re.split(r"  +", line.strip()) for line in lines[:5]] == [
        ["devices", "runs done", "samples/s", "speedup", "now"],
        ["1", "3 of 3", "102 (97.1 to 107)", "done"],
        ["2", "1 of 3", "180", "1.76x (1.60 to 1.95)", "run 2: epoch 3/10, 177/s"],
        ["4", "0 of 3, 1 failed", "run 2 starting"],
        ["8", "0 of 3", "waiting"],
    ]
    assert lines[5] == (
        "digits, best so far: 2 devices, 1.76x (1.60 to 1.95), efficiency 0.88 (0.7 required), 1 run"
    )
    assert lines[6].startswith("4 of 12 runs done, 1 failed, 0.117 device-hours spent, about ")
    assert len(lines) == 7


def test_disturbed_runs_are_named_and_left_out_of_the_speedup_if_there_are_others() -> None:
    busy = RunStatus("done", "completed", 30.0, disturbed="other processes took 90 % of the CPUs")

    lines = table(status_of({point(1): [done(100), busy, done(104)], point(2): [done(180)]}), 140, 40)

    assert "102 (79.5 to 131" in lines[1]
    assert "1 run was disturbed: digits/d1.r2 (other processes took 90 % of the CPUs)" in lines
    only = table(status_of({point(1): [busy], point(2): [done(180)]}), 140, 40)
    assert only[1].split()[-2:] == ["30.0", "done"]


def test_jobs_in_the_queue_show_slurms_reason_and_its_estimate() -> None:
    queued = [
        RunStatus("queued", slurm=QueuedJob(state="PENDING", starts=NOW + 600, reason="Priority")),
        RunStatus("queued", slurm=QueuedJob(state="PENDING", reason="Resources")),
    ]
    lines = table(status_of({point(2): queued}, budget=8), 120, 40)
    assert (
        f"2 in the queue (Priority, Resources), the first to start about {clock_text(NOW + 600, NOW)}"
        in lines[1]
    )


def test_a_run_that_waits_for_another_training_on_the_machine_says_so() -> None:
    lines = table(status_of({point(2): [done(180), BLOCKED, WAITING], point(4): [BLOCKED] * 2}), 120, 40)
    assert lines[1].endswith("run 2 waits for another training on this machine")
    assert lines[2].endswith("2 runs wait for another training on this machine")


def test_runs_at_work_together_show_how_fast_they_are() -> None:
    runs = {point(4): [running(3, 10, 50, rate=5000.0), running(2, 10, 50, rate=5100.0), QUEUED]}
    lines = table(status_of(runs, budget=64), 120, 40)
    assert "2 runs: epoch 3/10, epoch 2/10, 5,000 to 5,100/s; 1 in the queue" in lines[1]


def test_without_an_efficiency_to_keep_the_fastest_point_is_told_and_called_so() -> None:
    runs = {point(1): [done(100)], point(4): [done(380)], point(8): [done(500)]}
    assert table(status_of(runs), 120, 40)[4].startswith(
        "digits, fastest so far: 8 devices, 5.00x, efficiency"
    )


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


def told(display: Lines, status: StudyStatus) -> list[str]:
    stream = display._stream
    assert isinstance(stream, io.StringIO)
    before = stream.tell()
    display.show(status)
    return [line[9:] for line in stream.getvalue()[before:].splitlines()]


def test_without_a_terminal_a_line_is_told_when_a_point_changes_and_no_other() -> None:
    display = Lines(io.StringIO())

    def now(*runs: RunStatus) -> list[str]:
        return told(display, status_of({point(1): [*runs], point(2): [WAITING]}))

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


def test_an_interrupted_run_is_not_counted_as_failed() -> None:
    interrupted = RunStatus("failed", "interrupted", job_seconds=(30.0,))
    lines = table(status_of({point(1): [done(100, 60), interrupted]}, over=True), 120, 40)
    assert "1 of 2 " in lines[1]
    assert lines[1].endswith("interrupted")
    assert "failed" not in "\n".join(lines)


def test_what_is_told_has_no_control_characters() -> None:
    stream = io.StringIO()
    Lines(stream).show(status_of(SMALL))
    assert stream.getvalue()
    assert re.findall(r"[^\x20-\x7e\n]", stream.getvalue()) == []


def test_a_session_that_was_cut_off_does_not_look_as_if_it_went_on() -> None:
    lines = table(status_of(SMALL, over=True), 120, 40)
    assert [line.split("  ")[-1].strip() for line in lines[1:5]] == [
        "done",
        "1 interrupted, 1 not made",
        "timed-out, 1 interrupted, 1 not made",
        "3 not made",
    ]
    assert lines[-1].endswith("device-hours spent")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (89, "89 s"),
        (600, "10 min"),
        (9000, "2 h 30 min"),
        (7200, "2 h"),
        (200_000, "2 days 8 h"),
    ],
)
def test_durations_are_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
