"""A run that was killed at random steps ends with the weights and records of an undisturbed one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cores import needs_two_cores
from tests.distributed.interrupted_runs import (
    SETTINGS,
    STEPS_PER_EPOCH,
    Kill,
    Runs,
    ended,
    kill_again_and_again,
    resumed_at,
    resumption,
)
from tests.reliability.thoroughness import times

from scalewise.records import read_failure, read_summary

pytestmark = [
    needs_two_cores,
    pytest.mark.timeout(times(quick=1800, thorough=3600)),
]

Record = Callable[[str, object], None]
Calm = Callable[[int], Path]

VARIANTS: dict[str, dict[str, Any]] = {
    "workers and accumulation": {"loader": "workers", "accumulation_steps": 2, "epochs": 10},
    "zero1 and adamw": {
        "parallelism": "zero1",
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "schedule": "step",
    },
    "fsdp and onecycle": {
        "parallelism": "fsdp",
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "schedule": "onecycle",
        "learning_rate_warmup_epochs": 0.0,
    },
    "bf16, channels last and fp16 hook": {
        "precision": "bf16",
        "channels_last": True,
        "communication_hook": "fp16",
    },
    # 0.9 is reached after 5 epochs of 6 steps: with less patience it would end before a kill
    "stops when accurate": {"stop_at_accuracy": 0.9, "stop_patience_epochs": 10, "epochs": 60},
    "spawn": {"launcher": "spawn"},
}


@pytest.mark.fault(1)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_kills_at_random_steps_change_neither_weights_nor_records(
    runs: Runs, undisturbed_run: Calm, world_size: int, record_property: Record
) -> None:
    undisturbed = undisturbed_run(world_size)
    kills = times(quick=2, thorough=20)
    resumed = kill_again_and_again(runs, "stormy", world_size, kills, ended(undisturbed))
    found = resumption(undisturbed)
    assert (found.starts, found.resumed_at_steps, found.lost_steps, found.problems) == (1, [], 0, [])
    # kills that came before the first checkpoint would show little
    assert resumed >= kills // 2
    figure = f"world {world_size}: {kills} of {kills} kills, {resumed} resumed, weights and records identical"
    record_property("figure", figure)


@pytest.mark.fault(10, 12)
def test_a_run_that_was_asked_to_end_loses_no_step(
    runs: Runs, undisturbed_run: Calm, record_property: Record
) -> None:
    world_size = 2
    steps = []
    # the second is asked sooner after its start than a checkpoint is due
    for at in (25, 8):
        training, code = runs.kill_on_the_way("asked", world_size, Kill(at, "stop"))
        assert code == 1
        failure = read_failure(training.folder)
        assert failure is not None
        assert failure.outcome == "interrupted"
        (kept,) = re.findall(r"The checkpoint at step (\d+) is kept", failure.reason)
        steps.append(int(kept))
    folder = runs.complete("asked", world_size)
    found = resumption(folder)
    assert found.resumed_at_steps == steps == resumed_at(folder)
    assert found.lost_steps == 0
    assert found.starts == 3
    assert ended(folder) == ended(undisturbed_run(world_size))
    record_property("figure", "stopped by SIGTERM twice: 0 steps lost")


@pytest.mark.skipif(times(0, 1) == 0, reason="part of `make reliability`: each takes half a minute")
@pytest.mark.parametrize("name", VARIANTS)
def test_kills_change_nothing_whatever_the_options(
    tmp_path: Path, name: str, record_property: Record
) -> None:
    runs = Runs(tmp_path, VARIANTS[name])
    try:
        resumed = kill_again_and_again(runs, "stormy", 2, 4, ended(runs.complete("calm", 2)))
    finally:
        runs.close()
    assert resumed >= 2
    record_property("figure", f"{name}: 4 of 4 kills, weights and records identical")


def test_what_was_measured_leaves_out_the_steps_after_a_resume_and_says_so(runs: Runs, stopped: Path) -> None:
    """Windows cover every step once, and those that warm up again are flagged like the first."""
    runs.begun(stopped)
    folder = runs.complete("stopped", 1)
    found = resumption(folder)
    (step,) = found.resumed_at_steps
    assert found.unmeasured_steps == SETTINGS["warmup_steps"]
    assert found.problems == []
    assert found.checkpoints >= 1
    assert found.checkpoint_seconds > 0
    measured = read_summary(folder).measurements
    assert measured is not None
    covered = [
        each
        for window in measured.windows
        for each in range(window.first_step, window.first_step + window.steps)
    ]
    assert covered == list(range(30 * STEPS_PER_EPOCH))
    excluded = {
        each
        for window in measured.windows
        for each in range(window.first_step, window.first_step + window.steps)
        if window.warmup
    }
    warm_ups = {first + each for first in (0, step) for each in range(SETTINGS["warmup_steps"])}
    assert warm_ups <= excluded
    counted = [window for window in measured.windows if not window.warmup]
    rate = sum(window.samples for window in counted) / sum(window.seconds for window in counted)
    assert measured.throughput_samples_per_second == pytest.approx(rate)
