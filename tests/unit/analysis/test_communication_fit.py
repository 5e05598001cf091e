"""The all-reduce at any size on any number of nodes, from a few sizes on a few nodes or measured steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.planted_records import all_reduce

from scalewise.analysis.prediction.all_reduce_model import (
    CENTRAL,
    HIGH,
    LOW,
    AllReduceFit,
    AllReduceModel,
    NotMeasuredError,
    fit_all_reduce,
)
from scalewise.analysis.prediction.measured_exchange import MeasuredExchange, MeasuredStep, measured_exchange
from scalewise.analysis.prediction.step_model import Baseline, Exchange, PredictedStep, predict_step
from scalewise.analysis.statistics import Interval
from scalewise.plan.config.shape import Shape
from scalewise.records import AllReduce, AllReduceMeasurement, Bucket, Pass

KIB, MIB = 1024, 1024**2
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)


def reductions(
    shape: Shape, alpha: float, bandwidth: float, noise: float = 0.0, seed: int = 1, repetitions: int = 9
) -> list[AllReduce]:
    random = np.random.default_rng(seed)
    volume = 2 * (shape.world_size - 1) / shape.world_size
    seconds = {
        size: [
            (alpha + volume * size / bandwidth) * math.exp(noise * random.standard_normal())
            for _ in range(repetitions)
        ]
        for size in SIZES
    }
    return all_reduce(str(shape), seconds).reductions


def record(
    shape: Shape, alpha: float, bandwidth: float, backend: str = "gloo", error: str = ""
) -> AllReduceMeasurement:
    measured = [] if error else reductions(shape, alpha, bandwidth)
    return all_reduce(str(shape), {}, backend=backend, reductions=measured, error=error)


@pytest.mark.parametrize("shape", [Shape(2, 1), Shape(1, 4), Shape(2, 4)])
def test_fit_recovers_latency_and_bus_bandwidth(shape: Shape) -> None:
    fit = fit_all_reduce(shape, reductions(shape, 50e-6, 10e9))
    assert fit.alpha.estimate == pytest.approx(50e-6, rel=1e-6)
    assert fit.bandwidth.estimate == pytest.approx(10e9, rel=1e-6)
    assert fit.is_line


def test_bandwidth_interval_covers_the_truth_as_often_as_it_says() -> None:
    shape = Shape(2, 1)
    inside = 0
    for seed in range(100):
        interval = fit_all_reduce(shape, reductions(shape, 1e-4, 1e9, noise=0.1, seed=seed)).bandwidth
        inside += interval.low <= 1e9 <= interval.high
        assert interval.low < interval.estimate < interval.high
    assert 88 <= inside <= 100


def fitted(seconds: Mapping[int, float]) -> AllReduceFit:
    """The fit to two nodes on which sizes took so long."""
    measured = [AllReduce(bytes=size, seconds=[each] * 3) for size, each in seconds.items()]
    return fit_all_reduce(Shape(2, 1), measured)


def test_a_fit_has_no_negative_latency_and_no_larger_message_that_is_faster() -> None:
    fit = fitted({size: size / 1e9 * (0.9 if size < MIB else 1.0) for size in SIZES})
    assert (fit.alpha.estimate, fit.alpha.low) == (0, 0)
    latency = fitted({4: 1e-3, 8: 1e-3})
    assert latency.alpha.estimate == pytest.approx(1e-3)
    assert latency.bandwidth.estimate > 1e9
    alone = fitted({MIB: 0.01})
    assert alone.seconds(2 * MIB)[CENTRAL] == pytest.approx(0.02), "one size is taken as bandwidth"
    uneven = fitted({KIB: 0.001, MIB: 0.01, 4 * MIB: 0.005})
    for size in (2 * MIB, 64 * MIB):
        assert uneven.seconds(size)[CENTRAL] == pytest.approx(0.01)


def test_noise_and_sizes_off_the_line_widen_the_interval() -> None:
    def width(noise: float) -> float:
        interval = fit_all_reduce(Shape(2, 1), reductions(Shape(2, 1), 1e-4, 1e9, noise=noise)).bandwidth
        return interval.high / interval.low

    assert width(0.2) > width(0.02) > 1
    bent = fitted({size: size / 1e9 * (1.2 if index % 2 else 1.0) for index, size in enumerate(SIZES)})
    # a measured size is what was measured
    assert bent.seconds(MIB)[CENTRAL] == pytest.approx(1.2 * MIB / 1e9)
    assert bent.bandwidth.low < 0.97 * bent.bandwidth.estimate < 0.99 * bent.bandwidth.high


def test_change_of_protocol_is_followed_from_size_to_size() -> None:
    # large messages over a link ten times as fast
    seconds = {size: 1e-4 + size / (1e8 if size < MIB else 1e9) for size in SIZES}
    fit = fitted(seconds)
    assert not fit.is_line
    assert fit.seconds(16 * MIB)[CENTRAL] == pytest.approx(1e-4 + 16 * MIB / 1e9)
    halfway = (seconds[MIB] + seconds[4 * MIB]) / 2
    assert fit.seconds((MIB + 4 * MIB) / 2)[CENTRAL] == pytest.approx(halfway)
    assert fit.seconds(1)[CENTRAL] == seconds[4 * KIB]
    assert fit.seconds(128 * MIB)[CENTRAL] == pytest.approx(1e-4 + 128 * MIB / 1e9, rel=1e-3)
    # latency and bandwidth are those of large messages
    assert fit.bandwidth.estimate == pytest.approx(1e9)
    assert fit.alpha.estimate == pytest.approx(1e-4)


def test_latency_of_large_messages_is_not_multiplied_for_small_ones() -> None:
    # a protocol for large messages that takes 0.1 s to begin
    fit = fitted({size: 1e-4 if size < MIB else 0.1 + size / 1e9 for size in SIZES})
    network = AllReduceModel({Shape(2, 1): fit}, {}, "gloo")
    assert network.all_reduce(Shape(16, 1), 4 * KIB)[CENTRAL] == pytest.approx(15e-4)
    large = network.all_reduce(Shape(16, 1), 16 * MIB)[CENTRAL]
    assert large == pytest.approx(15e-4 + (0.1 + 16 * MIB / 1e9 - 1e-4) * 2 * 15 / 16)


def test_more_nodes_of_one_device_follow_the_ring() -> None:
    network = AllReduceModel.of([record(Shape(2, 1), 1e-3, 1e9)])
    two, eight = (network.all_reduce(Shape(nodes, 1), 1e9) for nodes in (2, 8))
    assert list(two) == pytest.approx([1.0 + 1e-3] * 3), "what was measured has no band"
    assert eight[CENTRAL] == pytest.approx(2 * 7 / 8 * 1.0 + 7e-3)
    assert eight[LOW] == pytest.approx(1.0 + 1e-3)
    assert eight[HIGH] == pytest.approx(3 * (1.0 + 1e-3))
    assert [network.is_extrapolated(Shape(nodes, 1)) for nodes in (2, 8)] == [False, True]


def test_latency_across_grows_as_the_backend_sends() -> None:
    def central(backend: str) -> float:
        network = AllReduceModel.of([record(Shape(2, 1), 1e-3, 1e12, backend)])
        return float(network.all_reduce(Shape(16, 1), 1)[CENTRAL])

    assert central("nccl") == pytest.approx(4e-3, rel=1e-4)
    assert central("gloo") == pytest.approx(15e-3, rel=1e-4)


def test_nodes_of_several_devices_reduce_inside_then_across() -> None:
    inside, both = record(Shape(1, 4), 0.0, 100e9), record(Shape(2, 4), 0.0, 10e9)
    network = AllReduceModel.of([inside, both])
    size = 1e9
    node, pair = 1.5 * size / 100e9, 1.75 * size / 10e9
    seconds = network.all_reduce(Shape(16, 4), size)
    # between no growth and a ring over nodes: one ring over all ranks
    assert seconds[CENTRAL] == pytest.approx(node + (pair - node) * (63 / 64) / (7 / 8))
    assert seconds[LOW] == pytest.approx(pair)
    assert seconds[HIGH] == pytest.approx(node + (pair - node) * 4)


def test_two_nodes_that_are_slower_than_four_widen_the_band_and_move_the_centre_little() -> None:
    # half the bandwidth between two nodes, as where four nodes have twice the links
    records = [record(Shape(2, 1), 0.0, 1e9), record(Shape(4, 1), 0.0, 2e9)]
    size = 1e9
    both = AllReduceModel.of(records).all_reduce(Shape(16, 1), size)
    two = AllReduceModel.of(records[:1]).all_reduce(Shape(16, 1), size)
    truth = 2 * 15 / 16 * size / 2e9
    assert two[CENTRAL] == pytest.approx(2 * truth)
    assert both[CENTRAL] == pytest.approx(truth)
    assert both[LOW] == pytest.approx(1.5 * size / 2e9)
    assert both[HIGH] == pytest.approx(2 * 1.5 * size / 2e9)
    three = AllReduceModel.of(records).all_reduce(Shape(3, 1), size)
    assert 0.75 / 1.125 - 1e-9 <= three[LOW] <= three[CENTRAL] <= three[HIGH]


def test_two_nodes_as_fast_as_one_cost_nothing_across() -> None:
    network = AllReduceModel.of([record(Shape(1, 4), 0.0, 10e9), record(Shape(2, 4), 1e-3, 100e9)])
    pair = network.all_reduce(Shape(2, 4), 1e9)
    assert network.all_reduce(Shape(64, 4), 1e9)[CENTRAL] == pytest.approx(pair[CENTRAL])


def test_missing_measurement_is_named_with_its_reason() -> None:
    failed = record(Shape(2, 4), 0.0, 1e9, error="no route to host")
    network = AllReduceModel.of([record(Shape(1, 4), 0.0, 1e9), failed])
    missing = r"64 devices \(16x4\).*over 2x4 was not measured \(no route to host\)"
    with pytest.raises(NotMeasuredError, match=missing):
        network.all_reduce(Shape(16, 4), 1)
    with pytest.raises(NotMeasuredError, match=r"8 devices \(1x8\).*over 1x8 was not measured$"):
        network.all_reduce(Shape(1, 8), 1)


# --- the exchange that measured steps show ------------------------------------------------------------

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


def shown_by(model: AllReduceModel, *steps: MeasuredStep) -> MeasuredExchange:
    """The exchange that measured steps show."""
    found = measured_exchange(model, steps, [BASE])
    assert found is not None
    return found


def true_step(nodes: int, slowdown: float) -> float:
    """A training whose exchange takes so many times as long as the all-reduce alone."""
    return float(predicted(network(nodes, bandwidth=1e9 / slowdown), nodes).seconds[CENTRAL])


@pytest.mark.parametrize("measured", [(2, 4), (8,)], ids=["where it was timed", "where it was not"])
def test_exchange_that_is_slower_in_training_is_found_and_carried_to_more_nodes(
    measured: tuple[int, ...],
) -> None:
    found = shown_by(network(2, 4), *(step(nodes, true_step(nodes, 3.0)) for nodes in measured))
    assert list(found.anchors) == [Shape(nodes, 1) for nodes in measured]
    for shape in set(found.anchors) & {Shape(2, 1), Shape(4, 1)}:
        assert found.network.scales[shape][CENTRAL] == pytest.approx(3.0, rel=1e-6)
    beyond = predicted(found.network, 16)
    assert beyond.seconds[CENTRAL] == pytest.approx(
        true_step(16, 3.0), rel=1e-6 if measured == (2, 4) else 0.01
    )
    assert beyond.seconds[LOW] < beyond.seconds[CENTRAL] < beyond.seconds[HIGH]


def test_two_nodes_that_are_slower_than_four_move_only_the_band() -> None:
    steps = [step(2, true_step(2, 9.0)), step(4, true_step(4, 3.0))]
    beyond = predicted(shown_by(network(2, 4), *steps).network, 8)
    assert beyond.seconds[CENTRAL] == pytest.approx(true_step(8, 3.0), rel=0.01)
    assert beyond.seconds[HIGH] >= steps[0].seconds.estimate


def test_hidden_exchange_keeps_the_all_reduce_that_was_measured_by_itself() -> None:
    # 200 MiB in 21 ms, behind a backward pass of 200 ms
    fast = network(2, 4, bandwidth=1e10)
    scales = shown_by(fast, step(2, float(predicted(fast, 2).seconds[CENTRAL]))).network.scales
    scale = scales[Shape(2, 1)]
    assert list(scale[:2]) == pytest.approx([1, 1])
    # at most until the last bucket, which never hides, takes a hundredth of the step more
    assert 1.5 < scale[HIGH] < 3
    # four nodes, on which no training ran, are taken to be as much slower than alone
    assert list(scales[Shape(4, 1)]) == list(scale)


def test_small_cost_that_the_model_does_not_know_stays_as_it_is() -> None:
    found = shown_by(network(2, bandwidth=1e12), step(2, 0.32 + 0.002))
    shown = predicted(found.network, 8, found.unexplained_seconds)
    assert shown.seconds[CENTRAL] == pytest.approx(0.322, abs=1e-3)


def test_scatter_of_the_steps_widens_the_scale() -> None:
    def width(spread: float) -> float:
        scale = shown_by(network(2), step(2, true_step(2, 3.0), spread)).network.scales[Shape(2, 1)]
        return float(scale[HIGH] - scale[LOW])

    assert width(0.2 * true_step(2, 3.0)) > 2 * width(0.0) > 0


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
