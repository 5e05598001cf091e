"""The all-reduce at any size and on any number of nodes, from a few sizes on a few nodes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from scalewise.analysis.prediction.all_reduce_model import (
    CENTRAL,
    HIGH,
    LOW,
    AllReduceModel,
    NotMeasuredError,
    fit_all_reduce,
)
from scalewise.plan.config.shape import Shape
from scalewise.records import AllReduce, AllReduceMeasurement

KIB, MIB = 1024, 1024**2
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)


def reductions(
    shape: Shape, alpha: float, bandwidth: float, noise: float = 0.0, seed: int = 1, repetitions: int = 9
) -> list[AllReduce]:
    random = np.random.default_rng(seed)
    volume = 2 * (shape.world_size - 1) / shape.world_size
    return [
        AllReduce(
            bytes=size,
            seconds=[
                (alpha + volume * size / bandwidth) * math.exp(noise * random.standard_normal())
                for _ in range(repetitions)
            ],
        )
        for size in SIZES
    ]


def record(
    shape: Shape, alpha: float, bandwidth: float, backend: str = "gloo", error: str = ""
) -> AllReduceMeasurement:
    return AllReduceMeasurement(
        shape=str(shape),
        backend=backend,
        launcher="srun",
        hosts=["a"],
        devices=["CPU process"],
        versions={},
        measured_at="now",
        reductions=[] if error else reductions(shape, alpha, bandwidth),
        error=error,
    )


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


def test_latency_is_never_below_zero() -> None:
    measured = [AllReduce(bytes=size, seconds=[size / 1e9 * (0.9 if size < MIB else 1.0)]) for size in SIZES]
    fit = fit_all_reduce(Shape(2, 1), measured)
    assert fit.alpha.estimate == 0
    assert fit.alpha.low == 0


def test_latency_alone_is_a_fit_too() -> None:
    fit = fit_all_reduce(Shape(2, 1), [AllReduce(bytes=size, seconds=[1e-3]) for size in (4, 8)])
    assert fit.alpha.estimate == pytest.approx(1e-3)
    assert fit.bandwidth.estimate > 1e9


def test_one_size_alone_is_taken_as_bandwidth() -> None:
    fit = fit_all_reduce(Shape(2, 1), [AllReduce(bytes=MIB, seconds=[0.01, 0.01])])
    assert fit.seconds(2 * MIB)[CENTRAL] == pytest.approx(0.02)


def test_change_of_protocol_is_followed_from_size_to_size() -> None:
    # large messages over a link ten times as fast
    measured = [
        AllReduce(bytes=size, seconds=[1e-4 + size / (1e8 if size < MIB else 1e9)] * 3) for size in SIZES
    ]
    fit = fit_all_reduce(Shape(2, 1), measured)
    assert not fit.is_line
    assert fit.seconds(16 * MIB)[CENTRAL] == pytest.approx(1e-4 + 16 * MIB / 1e9)
    halfway = (measured[3].seconds[0] + measured[4].seconds[0]) / 2
    assert fit.seconds((MIB + 4 * MIB) / 2)[CENTRAL] == pytest.approx(halfway)
    assert fit.seconds(1)[CENTRAL] == measured[0].seconds[0]
    assert fit.seconds(128 * MIB)[CENTRAL] == pytest.approx(1e-4 + 128 * MIB / 1e9, rel=1e-3)
    # latency and bandwidth are those of large messages
    assert fit.bandwidth.estimate == pytest.approx(1e9)
    assert fit.alpha.estimate == pytest.approx(1e-4)


def test_larger_message_is_never_the_faster_one() -> None:
    seconds = {KIB: 0.001, MIB: 0.01, 4 * MIB: 0.005}
    fit = fit_all_reduce(Shape(2, 1), [AllReduce(bytes=size, seconds=[s] * 3) for size, s in seconds.items()])
    assert fit.seconds(2 * MIB)[CENTRAL] == pytest.approx(0.01)
    assert fit.seconds(64 * MIB)[CENTRAL] == pytest.approx(0.01)


def test_latency_of_large_messages_is_not_multiplied_for_small_ones() -> None:
    # a protocol for large messages that takes 0.1 s to begin
    measured = [
        AllReduce(bytes=size, seconds=[1e-4 if size < MIB else 0.1 + size / 1e9] * 3) for size in SIZES
    ]
    shape = Shape(2, 1)
    network = AllReduceModel({shape: fit_all_reduce(shape, measured)}, {}, "gloo")
    assert network.all_reduce(Shape(16, 1), 4 * KIB)[CENTRAL] == pytest.approx(15e-4)
    large = network.all_reduce(Shape(16, 1), 16 * MIB)[CENTRAL]
    assert large == pytest.approx(15e-4 + (0.1 + 16 * MIB / 1e9 - 1e-4) * 2 * 15 / 16)


def test_wider_noise_gives_a_wider_interval() -> None:
    def width(noise: float) -> float:
        interval = fit_all_reduce(Shape(2, 1), reductions(Shape(2, 1), 1e-4, 1e9, noise=noise)).bandwidth
        return interval.high / interval.low

    assert width(0.2) > width(0.02) > 1


def test_line_that_misses_sizes_has_an_interval_without_any_noise() -> None:
    bent = [
        AllReduce(bytes=size, seconds=[size / 1e9 * (1.2 if index % 2 else 1.0)] * 3)
        for index, size in enumerate(SIZES)
    ]
    fit = fit_all_reduce(Shape(2, 1), bent)
    # a measured size is what was measured
    assert fit.seconds(MIB)[CENTRAL] == pytest.approx(1.2 * MIB / 1e9)
    interval = fit.bandwidth
    assert interval.low < 0.97 * interval.estimate < 0.99 * interval.high


def test_measured_shape_needs_no_hierarchy() -> None:
    network = AllReduceModel.of([record(Shape(2, 1), 0.0, 1e9)])
    seconds = network.all_reduce(Shape(2, 1), 1e9)
    assert seconds[CENTRAL] == pytest.approx(1.0)
    assert (seconds[LOW] == seconds[HIGH]).all()
    assert not network.is_extrapolated(Shape(2, 1))


def test_more_nodes_of_one_device_follow_the_ring() -> None:
    network = AllReduceModel.of([record(Shape(2, 1), 1e-3, 1e9)])
    seconds = network.all_reduce(Shape(8, 1), 1e9)
    assert seconds[CENTRAL] == pytest.approx(2 * 7 / 8 * 1.0 + 7e-3)
    assert seconds[LOW] == pytest.approx(1.0 + 1e-3)
    assert seconds[HIGH] == pytest.approx(3 * (1.0 + 1e-3))
    assert network.is_extrapolated(Shape(8, 1))


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


def test_three_nodes_lie_between_two_and_four() -> None:
    records = [record(Shape(2, 1), 0.0, 1e9), record(Shape(4, 1), 0.0, 2e9)]
    seconds = AllReduceModel.of(records).all_reduce(Shape(3, 1), 1e9)
    assert (seconds >= 0.75 / 1.125 - 1e-9).all()
    assert seconds[LOW] <= seconds[CENTRAL] <= seconds[HIGH]


def test_growth_starts_from_the_scale_that_a_training_has_shown() -> None:
    plain = AllReduceModel.of([record(Shape(2, 1), 0.0, 1e9)])
    scaled = replace(plain, scales={Shape(2, 1): np.array([1.5, 2.0, 3.0])})
    for shape in (Shape(2, 1), Shape(8, 1)):
        ratio = scaled.all_reduce(shape, 1e9) / plain.all_reduce(shape, 1e9)
        assert list(ratio) == pytest.approx([1.5, 2.0, 3.0])


def test_two_nodes_as_fast_as_one_cost_nothing_across() -> None:
    network = AllReduceModel.of([record(Shape(1, 4), 0.0, 10e9), record(Shape(2, 4), 1e-3, 100e9)])
    pair = network.all_reduce(Shape(2, 4), 1e9)
    assert network.all_reduce(Shape(64, 4), 1e9)[CENTRAL] == pytest.approx(pair[CENTRAL])


def test_missing_measurement_is_named_with_its_reason() -> None:
    network = AllReduceModel.of(
        [record(Shape(1, 4), 0.0, 1e9), record(Shape(2, 4), 0.0, 1e9, error="no route to host")]
    )
    with pytest.raises(
        NotMeasuredError, match=r"64 devices \(16x4\).*over 2x4 was not measured \(no route to host\)"
    ):
        network.all_reduce(Shape(16, 4), 1)
    with pytest.raises(NotMeasuredError, match=r"8 devices \(1x8\).*over 1x8 was not measured$"):
        network.all_reduce(Shape(1, 8), 1)
