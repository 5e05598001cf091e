"""Runs that are asked to end write a checkpoint first, say so, and the same command goes on from there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.cores import needs_two_cores
from tests.distributed.interrupted_runs import SETTINGS as PERILOUS
from tests.distributed.whole_runs import END_SECONDS, ENDLESS, Start, Training, finish, heeds

from scalewise.execution.failure_reason import in_minutes
from scalewise.execution.history import in_training
from scalewise.execution.rank_files import RANK_SETUP
from scalewise.records import RECORD, read_failure, read_history

pytestmark = needs_two_cores

Figure = Callable[[str, object], None]


def stopped_at(training: Training, outcome: str, because: str) -> int:
    """The step at which a training stopped in order, once all that it leaves says the same."""
    code, stderr = training.end()
    assert code == 1, stderr
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == outcome
    kept = re.search(r"The checkpoint at step (\d+) is kept: (with|the) .* resumes there\.", failure.reason)
    assert kept is not None, failure.reason
    assert failure.reason in stderr
    assert because in failure.reason
    step = int(kept[1])
    manifests = sorted((training.folder / "checkpoints").glob("step-*/manifest.json"))
    assert json.loads(manifests[-1].read_text(encoding="utf-8"))["step"] == step > 0
    tries = read_history(training.folder)
    assert tries is not None
    assert (tries.starts[-1].steps, tries.starts[-1].no_progress) == (step, False)
    assert training.left_over() == {}
    # or the next start's tests would take what this one has left for its own
    shutil.rmtree(training.attempt)
    return step


def resumed(training: Training) -> int:
    """The step from which a training says that it goes on."""
    log = training.folder / "train.log"

    def steps() -> list[str]:
        text = log.read_text(encoding="utf-8")
        return re.findall(r"^resumed at step (\d+) from \S+ \(start \d+\)", text, re.MULTILINE)

    return int(training.wait_until(steps, "it does not resume")[-1])


@pytest.mark.fault(13)
@pytest.mark.parametrize(
    ("launcher", "number"),
    [("popen", signal.SIGTERM), ("spawn", signal.SIGINT)],
    ids=["popen", "spawn"],
)
def test_a_run_that_is_asked_to_end_keeps_what_it_has_trained_and_takes_its_ranks_along(
    start: Start, launcher: str, number: signal.Signals, record_property: Figure
) -> None:
    changed = ENDLESS | {"launcher": launcher}
    training = start("stopped", 2, changed)
    training.wait_for("progress.json")
    assert len(training.processes()) >= (3 if launcher == "spawn" else 2)
    began = time.monotonic()
    training.process.send_signal(number)
    stopped_at(training, "interrupted", f"ended by {number.name}.")
    record_property("figure", f"{number.name}: no process left after {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize(
    ("launcher", "receivers"),
    [("popen", ["rank"]), ("spawn", ["train.py", "agent"])],
    ids=["popen", "spawn"],
)
def test_the_signal_ahead_of_a_jobs_end_stops_the_run_whoever_gets_it(
    start: Start, launcher: str, receivers: list[str]
) -> None:
    """A rank, train.py itself, or with spawn the process that has started the ranks."""
    changed: dict[str, Any] = ENDLESS | {"launcher": launcher}
    steps = [0]
    for receiver in receivers:
        training = start("warned", 2, changed)
        training.wait_for("progress.json")
        processes = training.processes()
        pids = {
            "rank": training.pid(1),
            "train.py": training.process.pid,
            "agent": next((pid for pid, line in processes.items() if "start_ranks.py" in line), 0),
        }
        os.kill(pids[receiver], signal.SIGUSR1)
        steps.append(stopped_at(training, "interrupted", "ended by SIGUSR1."))
    assert steps == sorted(set(steps))


def test_a_signal_that_comes_before_the_ranks_are_there_is_no_end(start: Start) -> None:
    training = start("early", 2, ENDLESS | {"launcher": "spawn"})
    training.wait_for(RANK_SETUP)
    (agent, *_) = training.wait_until(
        lambda: [pid for pid, line in training.processes().items() if "start_ranks.py" in line],
        "start_ranks.py does not run",
        0.02,
    )
    training.wait_until(lambda: heeds(agent, signal.SIGUSR1), "start_ranks.py does not handle SIGUSR1", 0.02)
    os.kill(agent, signal.SIGUSR1)
    stopped_at(training, "interrupted", "ended by SIGUSR1.")


def test_a_run_at_its_limit_keeps_what_it_has_trained_and_goes_on_with_more_time_alone(start: Start) -> None:
    # how long a start takes is the machine's affair
    began = time.monotonic()
    measured = start("measured", 2, ENDLESS)
    measured.wait_for("progress.json")
    limit = round(10 + 2 * (time.monotonic() - began))
    measured.process.kill()
    measured.end()
    assert measured.left_over() == {}
    late = start("late", 2, ENDLESS, limit_seconds=limit)
    for _ in range(3):
        late.process.wait(timeout=END_SECONDS)
        failure = read_failure(late.folder)
        if failure is not None and "The checkpoint at step" in failure.reason:
            break
        # others slowed its start down, and no time was left to train in
        late.end()
        limit *= 2
        late = start("late", 2, ENDLESS, limit_seconds=limit)
    step = stopped_at(late, "timed-out", "Raise runtime_minutes")

    spent = start("late", 2, ENDLESS, limit_seconds=limit)
    code, stderr = spent.end()
    assert code == 1
    assert f"late/d2.r1 timed-out: all of its {in_minutes(limit)} are used. Raise runtime_minutes" in stderr
    assert f"The checkpoint at step {step} is kept" in stderr
    assert not spent.attempt.exists()

    more = start("late", 2, ENDLESS, limit_seconds=100_000)
    assert resumed(more) == step
    more.process.kill()
    more.end()


def test_a_run_that_was_stopped_counts_its_starts_and_leaves_nothing_of_them_once_it_is_done(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"model": PERILOUS["model"], "steps": 178, "deterministic": True}
    # a request is looked for once a second: it must not be over by then
    monkeypatch.setenv("PERIL_PAUSE", "0.3")
    first = start("counted", 1, changed)
    first.wait_for("progress.json")
    first.process.send_signal(signal.SIGTERM)
    step = stopped_at(first, "interrupted", "ended by SIGTERM.")

    monkeypatch.setenv("PERIL_PAUSE", "0")
    run = finish(start("counted", 1, changed))

    measured = run.summary.measurements
    assert measured is not None
    assert measured.resumption.starts == 2
    assert measured.resumption.resumed_at_steps == [step]
    assert measured.resumption.lost_steps == 0
    # however often it was cut off, it ends at the step that was asked for
    assert sum(window.steps for window in measured.windows) == 180
    assert measured.epochs_completed == len(run.epochs) == 0
    assert read_failure(run.folder) is None
    assert not {"attempt", "checkpoints"} & {path.name for path in run.folder.iterdir()}


def test_checkpoints_are_kept_where_that_is_asked_for_and_do_not_make_the_next_training_shorter(
    start: Start,
) -> None:
    keep = {"checkpoint_seconds": 0.1, "keep_checkpoints": True}
    changed = {"epochs": 200}
    run = finish(start("kept", 1, changed, **keep))
    kept = list((run.folder / "checkpoints").glob("step-*"))
    assert 1 <= len(kept) <= 2
    assert run.summary.measurements is not None
    assert run.summary.measurements.resumption.checkpoints >= 1
    assert not (run.folder / "attempt").exists()
    assert (history := read_history(run.folder)) is not None
    assert [start.outcome for start in history.starts] == ["completed"]

    (run.folder / RECORD).unlink()  # as where the user forces it
    again = finish(start("kept", 1, changed, **keep))
    assert "is of a training that has ended" in "\n".join(again.log)
    assert again.summary.measurements is not None
    assert again.summary.measurements.resumption.starts == 1
    assert again.summary.measurements.resumption.resumed_at_steps == []


@pytest.mark.fault(17)
def test_a_run_that_crashes_at_every_start_is_tried_three_times_and_no_more(
    start: Start, record_property: Figure
) -> None:
    changed = {"model": "planted_crashing"}
    for attempt in (1, 2, 3):
        code, stderr = start("hopeless", 1, changed, attempt=attempt).end()
        assert code == 1
        assert "ValueError: crashes at every start" in stderr
        assert ("3 tries without progress" in stderr) == (attempt == 3)

    fourth = start("hopeless", 1, changed, attempt=4)
    code, stderr = fourth.end()
    assert code == 1
    assert "failed: 3 tries without progress: none came to a checkpoint. The last one: rank 0 on" in stderr
    assert "ValueError: crashes at every start" in stderr
    tries = read_history(fourth.folder)
    assert tries is not None
    assert len(in_training(tries)) == 3
    failure = read_failure(fourth.folder)
    assert failure is not None
    assert "crashes at every start" in failure.reason
    record_property("figure", f"{len(in_training(tries))} tries, the next refused")
    # whoever asks again means it
    code, stderr = start("hopeless", 1, changed, attempt=1).end()
    assert "3 tries without progress" not in stderr
