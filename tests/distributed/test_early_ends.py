"""Runs that end once their own throughput is known: all ranks at one step, also after a resume."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cores import needs_two_cores
from tests.distributed.interrupted_runs import SETTINGS as PERILOUS
from tests.distributed.whole_runs import Start, finish

from scalewise.records import Measurements, OwnInterval, RunRecord

pytestmark = [needs_two_cores, pytest.mark.starts_ranks]

UNTIL: dict[str, Any] = {"steps": {"most": 20_000, "until_interval": 0.2}}
PROGRAM = Path(__file__).parent / "own_program.py"
OWN: dict[str, Any] = UNTIL | {
    "program": str(PROGRAM),
    "arguments": ["--batch-size", "{batch_size_per_device}", "--out", "{folder}"],
    "scaling": "weak",
    "batch_size_per_device": 32,
    "devices": [1, 2],
    "warmup_steps": 5,
    "repeats": 1,
}


def known(summary: RunRecord) -> tuple[Measurements, OwnInterval]:
    measured = summary.measurements
    assert measured is not None
    assert measured.own_interval is not None
    return measured, measured.own_interval


def test_a_training_that_was_cut_off_ends_once_its_throughput_is_known(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what its loader's processes have prepared beyond the end is thrown away
    changed = UNTIL | {"model": PERILOUS["model"], "warmup_steps": 2, "loader": "workers"}
    # its first windows would take longer than the test has: it is stopped long before the first look
    monkeypatch.setenv("PERIL_PAUSE", "0.3")
    first = start("known", 2, changed)
    first.wait_for("progress.json")
    first.process.send_signal(signal.SIGTERM)
    first.end()
    assert first.left_over() == {}
    monkeypatch.setenv("PERIL_PAUSE", "0.02")
    run = finish(start("known", 2, changed))

    # windows that differ between ranks could not be joined
    measured, own = known(run.summary)
    done = sum(window.steps for window in measured.windows)
    assert own.ended == "interval"
    assert own.half_width_fraction is not None
    assert own.half_width_fraction <= UNTIL["steps"]["until_interval"]
    assert own.windows is not None
    assert own.windows >= 20
    (resumed_at,) = measured.resumption.resumed_at_steps
    assert 0 < resumed_at < done - 100
    # the first warm-up, what was not steady, the warm-up after the resume, and the edges of epochs
    warm = sum(window.steps for window in measured.windows if window.warmup)
    excluded = sum(measured.excluded_steps.values())
    assert warm == own.warmup_steps + measured.resumption.unmeasured_steps + excluded
    assert [window.first_step for window in measured.windows] == [
        sum(window.steps for window in measured.windows[:index]) for index in range(len(measured.windows))
    ]


def test_a_program_ends_once_its_throughput_is_known_after_the_same_step_on_all_ranks(
    start: Start,
) -> None:
    run = finish(start("program", 2, {"launcher": "torchrun"}, settings=OWN))

    measured, own = known(run.summary)
    assert measured.program is not None
    assert own.ended == "interval"
    assert own.windows is not None
    assert own.windows >= 20
    assert measured.program.ended == "steps"
    assert not any("own end" in note or "probe" in note for note in measured.program.notes)
    (steps,) = set(run.ranks["train_samples"] // 32)
    assert 105 < steps < 20_005
    kept = [window for window in measured.windows if not window.warmup]
    assert min(window.first_step for window in kept) >= own.warmup_steps
