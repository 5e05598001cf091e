"""Habits of public training scripts, each measured as the program itself measures it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.distributed.runs import Runs

from scalewise.records import Measurements

PROGRAM = Path(__file__).parent / "habits_program.py"
BATCH, WARM_UP, STEPS = 8, 10, 60
SETTINGS: dict[str, Any] = {
    "program": str(PROGRAM),
    "scaling": "weak",
    "batch_size_per_device": BATCH,
    "devices": [1],
    "warmup_steps": WARM_UP,
    "steps": STEPS,
    "repeats": 1,
}
TOLERANCE = 0.15
"""On a machine that does much else. What these habits can do to a rate is a half and more."""


def measured(
    runs: Runs, habit: str, first: int = WARM_UP, **changed: Any
) -> tuple[Measurements, pd.DataFrame]:
    """Return the measurements of a habit, and its own: seconds of the steps from the first on."""
    run = runs.start(habit, 1, {"arguments": [habit, "{folder}"], **changed}, settings=SETTINGS).finish()
    marks = pd.read_csv(run.folder / "program" / "marks.csv", names=["ended", "beside"])
    return run.measured, marks.assign(seconds=marks["ended"].diff()).iloc[first : first + STEPS]


def rate(steps: pd.DataFrame) -> float:
    """Return samples/s, without the step in which the probe looks at the model, once."""
    usual = steps[steps["seconds"] < 8 * steps["seconds"].median()]
    return float(BATCH / usual["seconds"].mean())


@pytest.mark.parametrize("habit", ["thread", "gradients"])
def test_a_habit_changes_nothing_in_the_rate_of_steps(runs: Runs, habit: str) -> None:
    found, own = measured(runs, habit)
    assert found.throughput_samples_per_second == pytest.approx(rate(own), rel=TOLERANCE)
    assert habit != "thread" or not found.loader_wait_fraction, "fetched ahead"


@pytest.mark.parametrize("habit", ["folds", "head"])
def test_what_else_a_training_does_is_no_part_of_its_steps(runs: Runs, habit: str) -> None:
    found, own = measured(runs, habit)
    assert found.excluded_steps
    assert found.throughput_samples_per_second == pytest.approx(rate(own[own["beside"] == 0]), rel=TOLERANCE)


def test_of_a_training_in_phases_the_optimizer_that_is_named_is_measured(runs: Runs) -> None:
    found, own = measured(runs, "phases")
    assert found.program is not None
    assert "optimizer: LBFGS" in " ".join(found.program.notes)
    assert found.throughput_samples_per_second == pytest.approx(rate(own[:20]), rel=TOLERANCE)

    changed = {"optimizer": "LBFGS", "samples_per_step": "planned"}
    found, own = measured(runs, "phases", 30 + WARM_UP, **changed)
    assert found.throughput_samples_per_second == pytest.approx(rate(own), rel=TOLERANCE)
