"""Runs that get a signal to end keep their last checkpoint; the same command resumes from there."""

from __future__ import annotations

import random
import signal
import time

import pytest
from tests.distributed.runs import END_SECONDS, ENDLESS, Runs
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record
from tests.reliability.thoroughness import times

from scalewise.records import read_failure

pytestmark = needs_two_cores
needs_hangup = pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="nohup has started the tests"
)


@pytest.mark.fault(13)
@pytest.mark.parametrize("name", ["SIGINT", pytest.param("SIGHUP", marks=needs_hangup)])
def test_a_run_that_gets_a_signal_to_end_keeps_what_it_has_trained_and_takes_its_ranks_along(
    name: str, runs: Runs, record_property: Record
) -> None:
    training = runs.start("stopped", 2, ENDLESS)
    training.wait_for_checkpoint()
    training.wait_for_step()
    assert len(training.processes()) >= 2
    began = time.monotonic()
    training.process.send_signal(signal.Signals[name])
    training.stopped("interrupted", f"ended by {name}.")
    record_property("figure", f"{name}: no process left after {time.monotonic() - began:.1f} s")


def test_a_run_at_its_limit_keeps_its_checkpoint_and_resumes_only_with_more_time(runs: Runs) -> None:
    # how long a start takes is the machine's affair: where others slow it down, no time is left to train in
    for limit in (10, 40, 160):
        late = runs.start("late", 2, ENDLESS, limit_seconds=limit)
        late.process.wait(timeout=END_SECONDS)
        failure = read_failure(late.folder)
        if failure is not None and late.saved:
            break
        late.end()
    last = late.stopped("timed-out", "Raise runtime_minutes")

    used = runs.start("late", 2, ENDLESS, limit_seconds=0.05)
    code, stderr = used.end()
    assert code == 1
    assert "late/d2.r1 timed-out: all of its 0 s are used. Raise runtime_minutes" in stderr
    assert used.saved[-1] == last

    more = runs.start("late", 2, ENDLESS, limit_seconds=100_000)
    assert more.wait_for_line(rf"resumed from \S+/{last}, after epoch {int(last.removeprefix('epoch-'))}")
    more.process.kill()
    more.end()


@pytest.mark.fault(18)
def test_kills_at_random_moments_cost_an_epoch_at_most_and_change_nothing_that_is_learned(
    runs: Runs, record_property: Record
) -> None:
    changed = {"model": "planted_drawing", "epochs": 60, "save_model": True}
    chosen, kills, epochs, most = random.Random(1), 0, [0], times(quick=8, thorough=20)
    undisturbed = runs.complete("calm", 2, changed)
    while kills < most and epochs[-1] < 55:
        training = runs.start("killed", 2, changed)
        before = training.saved[-1:]
        training.wait_until(lambda: training.saved[-1:] != before, "no epoch is saved")  # noqa: B023
        time.sleep(chosen.uniform(0, 0.3))
        said = training.folder / "train.log"
        # a rank, or the whole job
        if kills % 2:
            training.process.kill()
        else:
            runs.kill(training.pid(chosen.randrange(2)))
        training.end()
        assert training.left_over() == {}
        kills += 1
        epochs.append(int(training.saved[-1].removeprefix("epoch-")))
        trained = [
            line for line in said.read_text(encoding="utf-8").splitlines() if line.startswith("epoch ")
        ]
        # all that it has evaluated is saved, but for the epoch whose checkpoint was being written
        assert int(trained[-1].split("/")[0].split()[1]) - epochs[-1] <= 1
    run = runs.complete("killed", 2, changed)
    assert run.learned == undisturbed.learned
    assert epochs == sorted(set(epochs))
    assert run.from_step == epochs[-1] * 5
    record_property("figure", f"{kills} kills, weights and epochs identical")


@pytest.mark.fault(17)
def test_a_run_that_crashes_at_every_start_fails_with_its_own_error_each_time(
    runs: Runs, record_property: Record
) -> None:
    """Snakemake makes three tries, as its profile says."""
    spent = 0.0
    for attempt in (1, 2, 3):
        failure, stderr = runs.start("hopeless", 1, {"model": "planted_crashing"}, attempt=attempt).fail()
        assert "ValueError: crashes at every start" in stderr
        assert "crashes at every start" in failure.reason
        assert failure.seconds > spent
        spent = failure.seconds
    record_property("figure", f"{attempt} tries, each with its own error")
