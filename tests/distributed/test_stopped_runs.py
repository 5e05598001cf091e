"""Runs that get a signal to end write a checkpoint and report it; the same command resumes from there."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from tests.distributed.runs import END_SECONDS, ENDLESS, PERILOUS, Runs, heeds
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record

from scalewise.execution.failure_reason import in_minutes
from scalewise.execution.history import in_training
from scalewise.execution.rank_files import RANK_SETUP
from scalewise.records import RECORD, read_failure, read_history

pytestmark = needs_two_cores


@pytest.mark.fault(13)
def test_a_run_that_gets_a_signal_to_end_keeps_what_it_has_trained_and_takes_its_ranks_along(
    runs: Runs, record_property: Record
) -> None:
    training = runs.start("stopped", 2, ENDLESS)
    training.wait_for("progress.json")
    assert len(training.processes()) >= 2
    began = time.monotonic()
    training.process.send_signal(signal.SIGINT)
    training.stopped_at("interrupted", "ended by SIGINT.")
    record_property("figure", f"SIGINT: no process left after {time.monotonic() - began:.1f} s")


def test_a_signal_before_the_ranks_are_there_ends_the_run_as_interrupted(runs: Runs) -> None:
    training = runs.start("early", 2, ENDLESS | {"launcher": "spawn"})
    training.wait_for(RANK_SETUP)
    (agent, *_) = training.wait_until(
        lambda: [pid for pid, line in training.processes().items() if "start_ranks.py" in line],
        "start_ranks.py does not run",
        0.02,
    )
    training.wait_until(lambda: heeds(agent, signal.SIGUSR1), "start_ranks.py does not handle SIGUSR1", 0.02)
    os.kill(agent, signal.SIGUSR1)
    training.stopped_at("interrupted", "ended by SIGUSR1.")


def test_a_run_at_its_limit_keeps_its_checkpoint_and_resumes_only_with_more_time(runs: Runs) -> None:
    # how long a start takes is the machine's affair: where others slow it down, no time is left to train in
    for limit in (6, 20, 80, 320):
        late = runs.start("late", 2, ENDLESS, limit_seconds=limit)
        late.process.wait(timeout=END_SECONDS)
        failure = read_failure(late.folder)
        if failure is not None and "The checkpoint at step" in failure.reason:
            break
        late.end()
    step = late.stopped_at("timed-out", "Raise runtime_minutes")

    spent = runs.start("late", 2, ENDLESS, limit_seconds=limit)
    code, stderr = spent.end()
    assert code == 1
    assert f"late/d2.r1 timed-out: all of its {in_minutes(limit)} are used. Raise runtime_minutes" in stderr
    assert f"The checkpoint at step {step} is kept" in stderr
    assert not spent.attempt.exists()

    more = runs.start("late", 2, ENDLESS, limit_seconds=100_000)
    assert more.wait_for_line(rf"resumed at step {step} from \S+ \(start \d+\)")
    more.process.kill()
    more.end()


def test_checkpoints_are_kept_if_requested_and_do_not_make_the_next_training_shorter(
    runs: Runs,
) -> None:
    keep = {"checkpoint_seconds": 0.1, "keep_checkpoints": True}
    changed = {"model": "planted_unhurried", "epochs": 10}
    run = runs.complete("kept", 1, changed, **keep)
    kept = list((run.folder / "checkpoints").glob("step-*"))
    assert 1 <= len(kept) <= 2
    assert run.resumption.checkpoints >= 1
    assert not (run.folder / "attempt").exists()
    assert (history := read_history(run.folder)) is not None
    assert [start.outcome for start in history.starts] == ["completed"]

    (run.folder / RECORD).unlink()  # as where the user forces it
    again = runs.complete("kept", 1, changed, **keep)
    assert "is of a training that has ended" in "\n".join(again.log)
    assert (again.resumption.starts, again.resumption.resumed_at_steps) == (1, [])


def test_a_training_that_was_cut_off_ends_once_its_throughput_is_known(runs: Runs) -> None:
    """It counts its starts, loses no step, and leaves nothing of them once it is done."""
    # what its loader's processes have prepared beyond the end is thrown away
    changed: dict[str, Any] = {
        "model": PERILOUS["model"],
        "loader": "workers",
        "steps": {"most": 20_000, "until_interval": 0.2},
    }
    # its first windows would take longer than the test has: it is stopped long before the first look
    first = runs.start("known", 2, changed, pause_seconds=0.3)
    first.wait_for("progress.json")
    first.process.send_signal(signal.SIGTERM)
    step = first.stopped_at("interrupted", "ended by SIGTERM.")
    run = runs.complete("known", 2, changed, pause_seconds=0.05)

    # windows that differ between ranks could not be joined
    measured, own = run.measured, run.measured.own_interval
    done = sum(window.steps for window in measured.windows)
    assert own is not None
    assert own.ended == "interval"
    assert own.half_width_fraction is not None
    assert own.half_width_fraction <= changed["steps"]["until_interval"]
    assert own.windows is not None
    assert own.windows >= 20
    found = measured.resumption
    assert (found.starts, found.resumed_at_steps, found.lost_steps) == (2, [step], 0)
    assert 0 < step < done - 100
    # the first warm-up, what was not steady, the warm-up after the resume, and the edges of epochs
    warm = sum(window.steps for window in measured.windows if window.warmup)
    excluded = sum(measured.excluded_steps.values())
    assert warm == own.warmup_steps + found.unmeasured_steps + excluded
    assert [window.first_step for window in measured.windows] == [
        sum(window.steps for window in measured.windows[:index]) for index in range(len(measured.windows))
    ]
    assert measured.epochs_completed == len(run.epochs) == 0
    assert read_failure(run.folder) is None
    assert not {"attempt", "checkpoints"} & {path.name for path in run.folder.iterdir()}


@pytest.mark.fault(17)
def test_a_run_that_crashes_at_every_start_is_tried_three_times_and_no_more(
    runs: Runs, record_property: Record
) -> None:
    changed = {"model": "planted_crashing"}
    for attempt in (1, 2, 3):
        _, stderr = runs.start("hopeless", 1, changed, attempt=attempt).fail()
        assert "ValueError: crashes at every start" in stderr
        assert ("3 tries without progress" in stderr) == (attempt == 3)

    fourth = runs.start("hopeless", 1, changed, attempt=4)
    failure, stderr = fourth.fail()
    # Snakemake submits no job for it: the third has written that another try would end the same way
    assert "hopeless/d1.r1 is not tried again: rank 0 on" in stderr
    assert "ValueError: crashes at every start" in stderr
    assert failure.permanent
    tries = read_history(fourth.folder)
    assert tries is not None
    assert len(in_training(tries)) == 3
    assert "crashes at every start" in failure.reason
    record_property("figure", f"{len(in_training(tries))} tries, the next refused")
