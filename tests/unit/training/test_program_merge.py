"""Figures of a program's run from its ranks' records: planted times are found, nothing else is counted."""

from __future__ import annotations

import pytest
from tests.unit.training.probe_record_of import record

from scalewise.training.measure.throughput import WINDOW_STEPS, throughput
from scalewise.training.program.merge import measured_steps, metric_reading
from scalewise.training.program.probe_records import EVALUATION, NEW_PASS, SAVE


def test_a_step_takes_as_long_as_its_slowest_rank_and_holds_the_samples_of_all() -> None:
    ranks = [record(0, [0.1] * 120), record(1, [0.125] * 120)]

    found = measured_steps(ranks, warmup_steps=11, global_batch_size=16, samples_given=False)

    measured = [window for window in found.windows if not window.warmup]
    assert found.kept == list(range(11, 121))
    assert [(window.first_step, window.steps) for window in measured] == [(11, 50), (61, 50), (111, 10)]
    assert max(window.steps for window in measured) == WINDOW_STEPS
    assert throughput(found.windows) == pytest.approx(16 / 0.125)
    assert [(w.first_step, w.steps) for w in found.windows if w.warmup] == [(1, 10)]
    assert (found.samples.per_step, found.samples.source) == (16, "loader")


def test_a_step_in_which_any_rank_does_something_else_is_left_out_on_all() -> None:
    slow = [0.1] * 40
    slow[19] = slow[24] = slow[29] = 5.0
    ranks = [
        record(0, slow, left_out={20: EVALUATION, 25: SAVE}),
        # it waits in its own step for the other, and begins a pass itself
        record(1, slow, left_out={30: NEW_PASS}),
    ]

    found = measured_steps(ranks, 5, 16, samples_given=False)

    assert set(range(5, 41)) - set(found.kept) == {20, 25, 30}
    assert found.left_out == {"evaluation": 1, "saving": 1, "the begin of a pass over the data": 1}
    assert throughput(found.windows) == pytest.approx(16 / 0.1)


def test_the_smaller_last_batch_of_a_pass_is_no_step_like_the_others() -> None:
    samples = [8] * 41
    samples[20], samples[40] = 3, 3
    quick = [0.1] * 40
    quick[19] = quick[39] = 0.04
    found = measured_steps([record(0, quick, samples=samples, world_size=1)], 5, 8, samples_given=False)

    assert found.left_out == {"another number of samples": 2}
    assert throughput(found.windows) == pytest.approx(80)


def test_a_loader_that_fetches_ahead_loses_no_sample() -> None:
    # two batches before the first step of a pass, none before its last
    samples = ([16, *[8] * 18, 0] * 3)[:60]
    flags = dict.fromkeys((0, 20, 40), NEW_PASS)
    ranks = [record(0, [0.1] * 59, samples=samples, left_out=flags, world_size=1)]
    found = measured_steps(ranks, 5, 8, samples_given=False)

    assert found.samples.per_step == 8
    assert throughput(found.windows) == pytest.approx(80)


def test_batches_of_changing_size_count_by_their_mean() -> None:
    samples = [4, 8, 12] * 10
    ranks = [record(0, [0.1] * 29, samples=samples, world_size=1)]
    found = measured_steps(ranks, 3, 8, samples_given=False)

    assert found.left_out == {}
    assert throughput(found.windows) == pytest.approx(sum(samples[3:]) / 2.7, rel=1e-3)
    assert "vary in size" in found.notes[0]


def test_where_every_step_evaluates_its_time_is_taken_off() -> None:
    steps = range(1, 31)
    ranks = [
        record(
            0,
            [0.3] * 30,
            left_out=dict.fromkeys(steps, EVALUATION),
            off=dict.fromkeys(steps, 0.2),
            world_size=1,
        )
    ]
    found = measured_steps(ranks, 5, 8, samples_given=False)

    assert throughput(found.windows) == pytest.approx(80)
    assert "taken off" in found.notes[0]


def test_steps_that_all_save_measure_nothing() -> None:
    ranks = [record(0, [0.1] * 30, left_out=dict.fromkeys(range(31), SAVE), world_size=1)]

    assert measured_steps(ranks, 5, 8, samples_given=False).kept == []


def test_the_samples_that_the_configuration_gives_count() -> None:
    found = measured_steps([record(0, [0.1] * 30, samples=[35] * 31)], 5, 20, samples_given=True)

    assert (found.samples.per_step, found.samples.source) == (20, "configuration")
    assert throughput(found.windows) == pytest.approx(200)


def test_a_metric_is_dated_by_the_clock_of_the_training() -> None:
    # steps end at 1000.0, 1000.1, ...; the evaluation before step 11 takes 3 s of its 3.1
    seconds = [0.1] * 20
    seconds[10] = 3.1
    rank = record(0, seconds, off={11: 3.0})

    after_ten = metric_reading(rank, 50_000 + 1000.0 + 1.0 + 2.0, 0.5)
    at_the_end = metric_reading(rank, 50_000 + 1000.0 + 5.0 + 3.0, 0.4)

    assert (after_ten.step, at_the_end.step) == (11, 21)
    # the first step took 1 s from its first batch
    assert after_ten.seconds == pytest.approx(1.0 + 1.0)
    assert at_the_end.seconds == pytest.approx(1.0 + 2.0)
