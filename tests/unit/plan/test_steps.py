"""A built-in training that steps end: what it would ignore, or cannot answer, is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import assert_refused, mistaken

from scalewise.plan.terminal.plan_table import plan_table


def study(*lines: str) -> str:
    """A study whose one experiment has these lines, of which the last is the mistake; 6 steps an epoch."""
    return mistaken("study", *lines)


REFUSED = [
    pytest.param(
        study("steps: 200", "target: {accuracy: 0.9}"),
        ("study.target is accuracy 0.9, but steps (200) ends the training before anything is evaluated",),
        id="a target",
    ),
    pytest.param(
        study("steps: 200", "stop_at_accuracy: 0.9"),
        ("study.stop_at_accuracy is 0.9, but steps (200) ends the training before", "Keep one of the two."),
        id="an accuracy to stop at",
    ),
    pytest.param(
        study("steps: 200", "decision: {deadline_minutes: 30}"),
        ("study.decision.deadline_minutes is 30", "steps (200) ends every run before", "min_efficiency"),
        id="a deadline",
    ),
    pytest.param(
        study("steps: 200", "decision: {max_device_hours: 3}"),
        ("study.decision.max_device_hours is 3", "steps (200) ends every run before", "min_efficiency"),
        id="device-hours",
    ),
    pytest.param(
        study("steps: 200", "schedule: cosine"),
        (
            "study.schedule is cosine, which ends after 60 steps (10 epochs of 6 steps on 1 device), but "
            "warmup_steps (10) and steps (200) make 210",
            "Use epochs: 35 or more, or another schedule.",
        ),
        id="a schedule that is over before",
    ),
    pytest.param(
        # 45 steps an epoch on 1 device, 23 on 2
        study("scaling: weak", "batch_size_per_device: 32", "steps: 221", "schedule: onecycle"),
        ("which ends after 230 steps (10 epochs of 23 steps on 2 devices)", "Use epochs: 11 or more"),
        id="a schedule that is over before on the most devices",
    ),
    pytest.param(
        study("steps: 200", "sweep: {epochs: [1, 2]}"),
        (
            "study.sweep.epochs is [1, 2], but steps (200) ends the training, so that with schedule constant",
            "Remove steps, or sweep another key.",
        ),
        id="runs that differ in nothing",
    ),
    pytest.param(study("sweep: {steps: [1, 2]}"), ("study.sweep.steps is not a known key",), id="a sweep"),
    pytest.param(study("steps: 0"), ("study.steps is 0, but must be more than 0",), id="no steps"),
    pytest.param(
        study("compile: true", "epochs: 1", "steps: 9", "warmup_steps: 3"),
        ("(3) would measure the last of the first epoch's 6 steps", "Use warmup_steps: 6 or more."),
        id="a warm-up that is too short",
    ),
    pytest.param(
        study("steps: 9"),
        ("study.steps (9) is below warmup_steps (10)", "Use 10 or more."),
        id="less than warms up",
    ),
    pytest.param(
        study("warmup_steps: 300", "steps: {most: 200, until_interval: 0.01}"),
        ("study.steps.most (200) is below warmup_steps (300)", "Use 300 or more, or fewer warmup_steps."),
        id="at most less than warms up",
    ),
    pytest.param(
        study("steps: {most: 60, until_interval: 0.01}"),
        ("study.steps.most (60) is below the 100 steps that an interval needs", "or `steps: 60`"),
        id="too few for an interval",
    ),
    pytest.param(
        study("steps: {most: 500, until_interval: 1}"),
        ("study.steps.until_interval is 1, but must be at most 0.2",),
        id="an interval in per cent",
    ),
    pytest.param(
        study("steps: {most: 500, until_interval: 0}"),
        ("study.steps.until_interval is 0, but must be more than 0",),
        id="no interval",
    ),
    pytest.param(
        study("steps: {most: 500, until_interval: 0.01, min: 5}"),
        ("study.steps.min is not a known key",),
        id="an unknown key",
    ),
    pytest.param(
        study("steps: {most: 500}"),
        ("study.steps.until_interval is missing", "End the run once half the width"),
        id="no until_interval",
    ),
    pytest.param(study("steps: many"), ("study.steps is 'many', not a whole number",), id="a word"),
    pytest.param(
        study("steps: {most: 200, until_interval: 0.01}", "target: {accuracy: 0.9}"),
        ("study.target is accuracy 0.9, but steps (at most 200) ends the training before",),
        id="a target with a mapping",
    ),
    pytest.param(
        study("steps: {most: 200, until_interval: 0.01}", "schedule: cosine"),
        ("warmup_steps (10) and steps (200) make 210", "Use epochs: 35 or more"),
        id="a schedule that is over before the most steps",
    ),
]


@pytest.mark.parametrize(("text", "says"), REFUSED)
def test_what_steps_leave_without_a_meaning_is_refused(
    text: str, says: tuple[str, ...], refuse: Refuse, study_file: Path
) -> None:
    text = text.replace("  global_batch_size: 240\n", "") if "scaling: weak" in text else text
    assert_refused(text, says, refuse(text), study_file)


TAKEN = [
    pytest.param(["steps: 50", "schedule: cosine"], id="as long as the schedule"),
    pytest.param(["steps: 500", "schedule: step"], id="a schedule without an end"),
    pytest.param(["epochs: 1", "warmup_steps: 100", "steps: 100"], id="a warm-up over all epochs"),
    pytest.param(["schedule: cosine", "steps: 20", "sweep: {epochs: [5, 10]}"], id="epochs for the schedule"),
    pytest.param(["steps: {most: 100, until_interval: 0.2}"], id="until an interval"),
    pytest.param(["steps: 20", "save_model: true", "decision: {min_efficiency: 0.8}"], id="weights to keep"),
]


@pytest.mark.parametrize("lines", TAKEN)
def test_what_goes_with_steps_is_taken(lines: list[str], load: Load) -> None:
    assert load(study(*lines)).runs


def test_the_last_batch_of_an_epoch_is_compiled_anew_only_where_the_steps_come_to_it(
    load: Load, refuse: Refuse
) -> None:
    """The sixth step has the 237 samples that are left."""
    text = study("compile: true", "warmup_steps: 2", "steps: 4")
    (line,) = refuse(text)
    assert "study.warmup_steps (2) would measure the last of the first epoch's 6 steps" in line
    assert line.endswith("Use warmup_steps: 6 or more.")
    assert load(text.replace("steps: 4", "steps: 3")).runs


def test_the_plan_says_that_steps_may_be_fewer(load: Load, tmp_path: Path) -> None:
    assert "10 + up to 500 steps" in plan_table(
        load(study("steps: {most: 500, until_interval: 0.01}")), tmp_path
    )
    assert "10 + 500 steps" in plan_table(load(study("steps: 500")), tmp_path)
