"""Figures of a run from its ranks' records: planted times are found, nothing else is counted."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.unit.training.small_training import record

from scalewise.measure.step_flags import EVALUATION, NEW_ITERATION, NEW_SHAPE, NO_GRAD, SAVE
from scalewise.ranks.results.figures import WINDOW_STEPS, throughput, waiting_seconds
from scalewise.ranks.results.measured_steps import MeasuredSteps, NoGrad, measured_steps
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.program_findings import divergence, evaluation_seconds, metric_readings
from scalewise.ranks.results.samples import Planned, trained_samples
from scalewise.ranks.results.start_records import with_warmup


def measured(ranks: list[ProbeRecord], warmup_steps: int, samples: int) -> MeasuredSteps:
    planned = Planned(
        "train.py", len(ranks), samples, 1, False, frozenset(), accelerator="cpu", samples_vary=False
    )
    return measured_steps(with_warmup(ranks, warmup_steps), planned, None)


def test_a_step_takes_as_long_as_its_slowest_rank_and_holds_the_samples_of_all() -> None:
    ranks = [record(0, [0.1] * 120), record(1, [0.125] * 120)]

    found = measured(ranks, 11, 16)

    timed = [window for window in found.windows if not window.warmup]
    assert found.kept == list(range(11, 121))
    assert [(window.first_step, window.steps) for window in timed] == [(11, 50), (61, 50), (111, 10)]
    assert max(window.steps for window in timed) == WINDOW_STEPS
    assert throughput(found.windows) == pytest.approx(16 / 0.125)
    assert [(w.first_step, w.steps) for w in found.windows if w.warmup] == [(1, 10)]
    assert (found.samples.per_step, found.samples.source) == (16, "loader")


def test_a_step_in_which_any_rank_does_something_else_is_left_out_on_all() -> None:
    slow = [0.1] * 40
    slow[19] = slow[24] = slow[29] = 5.0
    ranks = [
        record(0, slow, flags={20: EVALUATION, 25: SAVE}),
        # it waits in its own step for the other, and begins a pass itself
        record(1, slow, flags={30: NEW_ITERATION}),
    ]

    found = measured(ranks, 5, 16)

    assert set(range(5, 41)) - set(found.kept) == {20, 25, 30}
    assert found.excluded == {"evaluation": 1, "saving": 1, "the begin of a data-loader iteration": 1}
    assert throughput(found.windows) == pytest.approx(16 / 0.1)


def test_steps_that_pay_for_a_shape_are_excluded_unless_shapes_change_all_the_time() -> None:
    slow = [0.1] * 40
    slow[19] = slow[29] = 5.0
    found = measured([record(0, slow, flags={20: NEW_SHAPE, 30: NEW_SHAPE}, world_size=1)], 5, 8)
    assert found.excluded == {"a shape seen for the first time": 2}
    assert throughput(found.windows) == pytest.approx(80)

    always = measured([record(0, [0.2] * 40, flags=dict.fromkeys(range(41), NEW_SHAPE), world_size=1)], 5, 8)
    assert always.excluded == {}
    saving = measured([record(0, [0.1] * 30, flags=dict.fromkeys(range(31), SAVE), world_size=1)], 5, 8)
    assert saving.kept == []
    assert throughput(always.windows) == pytest.approx(40)


def test_every_step_is_in_a_window_with_its_samples_and_only_measured_ones_count() -> None:
    samples = [8] * 41
    samples[20], samples[40] = 3, 3
    # the smaller last batches of an epoch are quicker
    quick = [0.1] * 40
    quick[19] = quick[39] = 0.04
    found = measured([record(0, quick, samples=samples, flags={21: NEW_ITERATION}, world_size=1)], 5, 8)
    assert found.excluded["another number of samples"] == 2
    assert throughput(found.windows) == pytest.approx(80)
    assert [(w.first_step, w.steps, w.warmup) for w in found.windows] == [
        (1, 4, True),
        (5, 15, False),
        (20, 2, True),
        (22, 18, False),
        (40, 1, True),
    ]
    assert sum(window.samples for window in found.windows) == sum(samples[1:])


@pytest.mark.parametrize(
    ("of_an_epoch", "trained"),
    [
        pytest.param([16, 8, 8, 8, 0], [8] * 5, id="a batch ahead"),
        pytest.param([16, 0], [8, 8], id="two batches an epoch"),
        pytest.param([24, 16, 16, 8], [16] * 4, id="of an accumulated step"),
        pytest.param([16, 8, 8, 4, 0], [8, 8, 8, 8, 4], id="a smaller batch at the end"),
        pytest.param([8, 8, 8, 4], [8, 8, 8, 4], id="none ahead"),
    ],
)
def test_batches_that_are_fetched_ahead_count_in_the_steps_that_train_on_them(
    of_an_epoch: list[int], trained: list[int]
) -> None:
    begins = {len(of_an_epoch) * epoch: NEW_ITERATION for epoch in range(3)}
    rank = record(0, steps=3 * len(of_an_epoch), samples=of_an_epoch * 3, flags=begins)
    assert sum(trained) == sum(of_an_epoch)
    assert trained_samples(rank) == trained * 3


def test_more_backward_passes_hold_more_samples_where_no_loader_shows_them() -> None:
    passes = [1] * 20 + [3] * 40
    seconds = [each * 0.1 for each in passes[1:]]
    rank = record(0, seconds, samples=[], forward_samples=8.0, backward_passes=passes, world_size=1)

    assert throughput(measured([rank], 5, 8).windows) == pytest.approx(80)


def test_inputs_count_where_the_loader_has_ceased_because_its_batches_are_kept() -> None:
    rank = record(0, steps=100, samples=[16] * 60 + [0] * 40, forward_samples=16.0, world_size=1)
    found = measured([rank], 5, 16)
    assert throughput(found.windows) == pytest.approx(160)
    assert found.cautions == []


def test_inputs_that_change_later_count_from_the_look_on_that_shows_it() -> None:
    looks = [(index, 8 if index < 50 else 16) for index in range(20, 100, 10)]
    rank = record(0, steps=101, samples=[], forward_samples=8.0, forward_looks=looks, world_size=1)
    found = measured([rank], 1, 8)
    # 49 steps of 8 samples, 51 of 16
    assert throughput(found.windows) == pytest.approx((49 * 8 + 51 * 16) / 10)
    assert "8 in the first step, 16 in the last" in found.cautions[0]


def test_a_run_of_two_phases_says_that_its_rate_is_of_neither() -> None:
    grown = record(0, [0.1] * 30 + [0.4] * 30, world_size=1)
    (caution,) = measured([grown], 5, 8).cautions
    assert caution.startswith("A sample took 4 times as long")
    assert measured([record(0, [0.1, 0.13] * 30, world_size=1)], 5, 8).cautions == []


def rounds(number: int, period: int = 4, bits: int = NO_GRAD) -> ProbeRecord:
    """One step of each round holds 0.3 s of forward passes without gradients, the others take 0.1 s."""
    steps = number * period
    times = range(period, steps, period)
    seconds = [0.4 if index in times else 0.1 for index in range(1, steps)]
    return record(
        0, seconds, flags=dict.fromkeys(times, bits), without_training=dict.fromkeys(times, 0.3), world_size=1
    )


def test_forward_passes_without_gradients_every_few_steps_take_time_of_the_training() -> None:
    found = measured([rounds(15)], 6, 8)

    assert found.no_grad == "training"
    assert throughput(found.windows) == pytest.approx(4 * 8 / 0.7)
    assert found.throughput_with_no_grad is None
    # windows of whole rounds: none is faster than another
    rates = {round(w.samples / w.seconds, 6) for w in found.windows if not w.warmup and w.steps % 4 == 0}
    assert len(rates) == 1
    assert found.excluded == {"a part of a round of forward passes without gradients": 6}
    assert evaluation_seconds(rounds(15), found.no_grad) == 0
    assert "belong to the training" in found.notes[0]


@pytest.mark.parametrize(
    ("rank", "no_grad"),
    [
        pytest.param(rounds(3, period=40), None, id="seldom"),
        pytest.param(rounds(15, bits=NO_GRAD | NEW_ITERATION), None, id="once an epoch"),
        pytest.param(rounds(15, bits=NO_GRAD | SAVE), "evaluation", id="with a checkpoint"),
    ],
)
def test_other_forward_passes_without_gradients_are_left_out_and_both_rates_given_where_it_is_unknown(
    rank: ProbeRecord, no_grad: NoGrad | None
) -> None:
    found = measured([rank], 2, 8)

    assert found.no_grad == no_grad
    assert throughput(found.windows) == pytest.approx(80)
    with_them = found.throughput_with_no_grad
    assert (with_them is None) == (no_grad == "evaluation")
    assert with_them is None or 40 < with_them < 78


@pytest.mark.parametrize(
    ("bits", "rate", "note"),
    [
        pytest.param(NO_GRAD, 16, "80% of the time", id="forward passes belong to the training"),
        pytest.param(EVALUATION, 80, "taken off", id="an evaluation does not"),
    ],
)
def test_what_every_step_holds_is_part_of_the_training_or_taken_off(
    bits: int, rate: float, note: str
) -> None:
    steps = range(1, 31)
    flags, without = dict.fromkeys(steps, bits), dict.fromkeys(steps, 0.4)
    found = measured([record(0, [0.5] * 30, flags=flags, without_training=without, world_size=1)], 5, 8)

    assert throughput(found.windows) == pytest.approx(rate)
    assert note in found.notes[0]


def test_a_metric_is_dated_by_the_clock_of_the_training() -> None:
    # steps end at 1000.0, 1000.1, ...; the evaluation before step 11 takes 3 s of its 3.1
    seconds = [0.1] * 20
    seconds[10] = 3.1
    rank = record(0, seconds, without_training={11: 3.0})

    before, after_ten, at_the_end = metric_readings(rank, [(999.5, 0.6), (1003.0, 0.5), (1008.0, 0.4)])

    assert (before.step, before.seconds) == (0, 0.0)
    assert (after_ten.step, at_the_end.step) == (11, 21)
    # the first step took 1 s from its first batch
    assert after_ten.seconds == pytest.approx(1.0 + 1.0)
    assert at_the_end.seconds == pytest.approx(1.0 + 2.0)


@pytest.mark.parametrize(
    ("losses", "weights_finite", "said"),
    [
        pytest.param([1.4, 1.3, 1.2], True, "", id="all is finite"),
        pytest.param([], None, "", id="nothing is known"),
        pytest.param([1.4, 1.3, 1.2], False, "the weights of rank 1 are no longer finite", id="weights"),
        pytest.param([1.4, None, None, None], True, "the loss is no longer finite", id="updates are refused"),
        pytest.param([1.4, 1.3, None], True, "", id="a loss whose update was skipped"),
        pytest.param([1.4, 1.3, None], None, "the loss is no longer finite", id="weights in parts"),
        pytest.param([None, None, None, 1.4], None, "", id="the first scales are too large"),
    ],
)
def test_a_training_has_diverged_where_weights_or_losses_are_lost(
    losses: list[float | None], weights_finite: bool | None, said: str
) -> None:
    # the keys of a record have no order of numbers: "100" before "20"
    found = dict(sorted((str(10 * index), loss) for index, loss in enumerate(losses)))
    ranks = [
        record(0, losses=found, weights_finite=None if weights_finite is None else True),
        record(1, weights_finite=weights_finite),
    ]

    assert divergence(ranks).startswith(said)
    assert bool(divergence(ranks)) == bool(said)


EXCHANGE = 0.02


@pytest.mark.parametrize(
    ("compute", "waited"),
    [
        pytest.param([[0.1, 0.2, 0.1, 0.2], [0.2, 0.1, 0.2, 0.1]], [0.05, 0.05], id="late by turns"),
        pytest.param([[0.1, 0.1], [0.3, 0.3], [0.1, 0.2]], [0.2, 0.0, 0.15], id="a slow one"),
        pytest.param(
            0.1 * np.exp(0.25 * np.random.default_rng(1).normal(size=(8, 400))), None, id="at random"
        ),
    ],
)
def test_ranks_wait_for_the_last_of_each_step_and_the_exchange_is_the_rest(
    compute: Sequence[Sequence[float]], waited: list[float] | None
) -> None:
    computed = np.asarray(compute)
    took = computed.max(axis=0) - computed + EXCHANGE
    found = waiting_seconds(took.tolist())
    assert waited is None or found == pytest.approx(waited)
    assert took.mean(axis=1) - np.array(found, float) == pytest.approx([EXCHANGE] * len(took))
