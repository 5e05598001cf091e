"""Device counts become nodes x devices per node, and samples steps of ranks, at every small size."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from scalewise.plan.config.errors import RefusedValueError
from scalewise.plan.config.shape import Shape, shape_for
from scalewise.plan.runs.batches import MIN_SAMPLES_PER_RANK, shard_range, step_sizes


@pytest.mark.parametrize(
    ("devices", "shape"),
    [
        (1, Shape(1, 1)),
        (3, Shape(1, 3)),
        (4, Shape(1, 4)),
        (8, Shape(2, 4)),
        (16, Shape(4, 4)),
        ("1x2", Shape(1, 2)),
        ("3x3", Shape(3, 3)),
    ],
)
def test_a_node_is_filled_before_a_second_is_taken(devices: int | str, shape: Shape) -> None:
    assert shape_for(devices, devices_per_node=4, max_nodes=4) == shape
    assert str(Shape(2, 4)) == "2x4"


def test_one_device_nodes_may_be_counted_either_way() -> None:
    assert {shape_for(devices, devices_per_node=1, max_nodes=4) for devices in (3, "3x1")} == {Shape(3, 1)}


def test_a_count_fills_nodes_or_is_refused_with_counts_that_do() -> None:
    accepted = suggested = 0
    for devices_per_node in range(1, 9):
        for devices in range(1, devices_per_node * 4 + 1):
            if devices <= devices_per_node or devices % devices_per_node == 0:
                shape = shape_for(devices, devices_per_node=devices_per_node, max_nodes=4)
                assert shape.world_size == devices
                assert shape.nodes == 1 or shape.devices_per_node == devices_per_node
                accepted += 1
                continue
            with pytest.raises(RefusedValueError) as refused:
                shape_for(devices, devices_per_node=devices_per_node, max_nodes=4)
            below, above = re.findall(r"Use (\d+) or (\d+)", refused.value.fix)[0]
            for count in (int(below), int(above), *re.findall(r'"(\d+x\d+)"', refused.value.fix)):
                shape = shape_for(count, devices_per_node=devices_per_node, max_nodes=4)
                assert isinstance(count, int) or shape.world_size == devices, refused.value.fix
                suggested += 1
    assert min(accepted, suggested) > 50


def sizes() -> Iterator[tuple[int, int, int]]:
    """Samples, global batch and parts: all that are possible up to 40 samples on 6 ranks."""
    for world_size in range(1, 7):
        for samples in range(world_size, 41):
            for global_batch in range(world_size, samples + 1, world_size):
                yield samples, global_batch, world_size


def test_each_sample_of_an_epoch_belongs_to_one_step_of_one_rank() -> None:
    for samples, global_batch, world_size in sizes():
        used: list[int] = []
        for size in step_sizes(samples, global_batch, world_size):
            offset = len(used)
            for rank in range(world_size):
                used += [offset + position for position in shard_range(size, rank, world_size)]
        assert used == list(range(samples)), (samples, global_batch, world_size)


def test_all_steps_but_the_last_have_the_stated_batch_in_passes_of_one_size() -> None:
    # so that a compiled model meets one shape until the last step of an epoch
    for samples, global_batch, parts in sizes():
        *full, last = step_sizes(samples, global_batch, parts)
        assert set(full) <= {global_batch}
        assert last < global_batch + MIN_SAMPLES_PER_RANK * parts
        for size in full:
            assert {len(shard_range(size, part, parts)) for part in range(parts)} == {global_batch // parts}


def test_ranks_differ_by_one_sample_at_most() -> None:
    for world_size in range(1, 17):
        for samples in range(100):
            counts = [len(shard_range(samples, rank, world_size)) for rank in range(world_size)]
            assert sum(counts) == samples
            assert max(counts) - min(counts) <= 1


def test_no_pass_of_a_step_is_too_small_to_normalize() -> None:
    for samples, global_batch, parts in sizes():
        if global_batch < MIN_SAMPLES_PER_RANK * parts:
            continue
        for world_size in (size for size in range(1, parts + 1) if parts % size == 0):
            passes = parts // world_size
            for size in step_sizes(samples, global_batch, parts):
                ranks = [len(shard_range(size, rank, world_size)) for rank in range(world_size)]
                smallest = min(
                    len(shard_range(rank, each, passes)) for rank in ranks for each in range(passes)
                )
                assert smallest >= MIN_SAMPLES_PER_RANK, (samples, global_batch, world_size, passes)
