"""What measured steps on a few nodes say of the exchange, and so of steps on more."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from scalewise.analysis.prediction.all_reduce_model import CENTRAL, HIGH, LOW, AllReduceModel, fit_all_reduce
from scalewise.analysis.prediction.measured_exchange import MeasuredStep, measured_exchange
from scalewise.analysis.prediction.step_model import Baseline, Exchange, PredictedStep, predict_step
from scalewise.analysis.statistics.intervals import Interval
from scalewise.plan.config.shape import Shape
from scalewise.records import AllReduce, Bucket, Pass

MIB = 1024**2
BATCH = 32
BASE = Baseline(
    passes=[Pass(batch_size=BATCH, forward_seconds=0.1, backward_seconds=0.2)],
    buckets=[Bucket(bytes=25 * MIB, ready_fraction=(1 + index) / 8) for index in range(8)],
    pass_scale=1.0,
    other_seconds=0.02,
    loader_seconds_per_sample=0.0,
    accumulation_steps=1,
    train_samples=64 * 16 * BATCH,
)


def network(*nodes: int, bandwidth: float = 1e9) -> AllReduceModel:
    """A ring over nodes of one device, measured alone."""
    fits = {}
    for number in nodes:
        volume = 2 * (1 - 1 / number)
        sizes = [AllReduce(bytes=size, seconds=[volume * size / bandwidth] * 5) for size in (4096, 64 * MIB)]
        fits[Shape(number, 1)] = fit_all_reduce(Shape(number, 1), sizes)
    return AllReduceModel(fits, {}, "nccl")


def predicted(model: AllReduceModel, nodes: int, unexplained: float = 0.0) -> PredictedStep:
    exchange = Exchange(partial(model.all_reduce, Shape(nodes, 1)), unexplained)
    return predict_step(BASE, nodes, nodes * BATCH, exchange)


def step(nodes: int, seconds: float, spread: float = 0.0) -> MeasuredStep:
    interval = Interval(seconds, seconds - spread, seconds + spread, 5)
    return MeasuredStep(Shape(nodes, 1), nodes * BATCH, interval)


def true_step(nodes: int, slowdown: float) -> float:
    """A training whose exchange takes so many times as long as the all-reduce alone."""
    return float(predicted(network(nodes, bandwidth=1e9 / slowdown), nodes).seconds[CENTRAL])


def test_exchange_that_is_slower_in_training_is_found_and_carried_to_more_nodes() -> None:
    steps = [step(nodes, true_step(nodes, 3.0)) for nodes in (2, 4)]
    found = measured_exchange(network(2, 4), steps, [BASE])
    assert found is not None
    assert list(found.anchors) == [Shape(2, 1), Shape(4, 1)]
    for shape in found.anchors:
        assert found.network.scales[shape][CENTRAL] == pytest.approx(3.0, rel=1e-6)
    beyond = predicted(found.network, 16)
    assert beyond.seconds[CENTRAL] == pytest.approx(true_step(16, 3.0), rel=1e-6)
    assert beyond.seconds[LOW] < beyond.seconds[CENTRAL] < beyond.seconds[HIGH]


def test_two_nodes_that_are_slower_than_four_move_only_the_band() -> None:
    steps = [step(2, true_step(2, 9.0)), step(4, true_step(4, 3.0))]
    found = measured_exchange(network(2, 4), steps, [BASE])
    assert found is not None
    beyond = predicted(found.network, 8)
    truth = true_step(8, 3.0)
    assert beyond.seconds[CENTRAL] == pytest.approx(truth, rel=0.01)
    assert beyond.seconds[HIGH] >= steps[0].seconds.estimate


def test_hidden_exchange_keeps_the_all_reduce_that_was_measured_alone() -> None:
    # 200 MiB in 21 ms, behind a backward pass of 200 ms
    fast = network(2, 4, bandwidth=1e10)
    alone = float(predicted(fast, 2).seconds[CENTRAL])
    found = measured_exchange(fast, [step(2, alone)], [BASE])
    assert found is not None
    scale = found.network.scales[Shape(2, 1)]
    assert list(scale[:2]) == pytest.approx([1, 1])
    # at most until the last bucket, which never hides, takes a hundredth of the step more
    assert 1.5 < scale[HIGH] < 3
    # four nodes, on which no training ran, are taken to be as much slower than alone
    assert list(found.network.scales[Shape(4, 1)]) == list(scale)


def test_small_cost_that_the_model_does_not_know_stays_as_it_is() -> None:
    fast = network(2, bandwidth=1e12)
    found = measured_exchange(fast, [step(2, 0.32 + 0.002)], [BASE])
    assert found is not None
    shown = predicted(found.network, 8, found.unexplained_seconds)
    assert shown.seconds[CENTRAL] == pytest.approx(0.322, abs=1e-3)


def test_scatter_of_the_steps_widens_the_scale() -> None:
    seconds = true_step(2, 3.0)
    narrow, wide = (
        measured_exchange(network(2), [step(2, seconds, spread)], [BASE]) for spread in (0.0, 0.2 * seconds)
    )
    assert narrow is not None
    assert wide is not None
    widths = [
        found.network.scales[Shape(2, 1)][HIGH] - found.network.scales[Shape(2, 1)][LOW]
        for found in (narrow, wide)
    ]
    assert widths[1] > 2 * widths[0] > 0


def test_steps_on_nodes_whose_all_reduce_was_not_measured_count_too() -> None:
    found = measured_exchange(network(2, 4), [step(8, true_step(8, 3.0))], [BASE])
    assert found is not None
    beyond = predicted(found.network, 16)
    assert beyond.seconds[CENTRAL] == pytest.approx(true_step(16, 3.0), rel=0.01)


def test_accumulated_passes_dilute_an_exchange_that_stays() -> None:
    many, few = (replace(BASE, accumulation_steps=passes) for passes in (16, 4))
    more = 15 * 0.3
    seconds = true_step(2, 3.0) + more
    measured = MeasuredStep(Shape(2, 1), 2 * 16 * BATCH, Interval(seconds, seconds, seconds, 1))
    found = measured_exchange(network(2), [measured], [many])
    assert found is not None
    shown = predict_step(few, 8, 8 * 4 * BATCH, Exchange(partial(found.network.all_reduce, Shape(8, 1))))
    assert shown.seconds[CENTRAL] == pytest.approx(true_step(8, 3.0) + 3 * 0.3)


def test_nothing_follows_without_steps_or_without_any_all_reduce() -> None:
    assert measured_exchange(network(2), [], [BASE]) is None
    assert measured_exchange(AllReduceModel({}, {}, "nccl"), [step(2, 1.0)], [BASE]) is None
    assert np.isfinite(predicted(network(2), 4).seconds).all()
