"""Device counts become nodes x devices per node, and a count that does not fit is told what would."""

from __future__ import annotations

import re

import pytest

from scalewise.plan.config.errors import RefusedValueError
from scalewise.plan.config.shape import Shape, shape_for


def refused(devices: int | str, devices_per_node: int = 4, max_nodes: int = 4) -> RefusedValueError:
    with pytest.raises(RefusedValueError) as error:
        shape_for(devices, devices_per_node=devices_per_node, max_nodes=max_nodes)
    return error.value


@pytest.mark.parametrize(
    ("devices", "shape"),
    [
        (1, Shape(1, 1)),
        (3, Shape(1, 3)),
        (4, Shape(1, 4)),
        (8, Shape(2, 4)),
        (16, Shape(4, 4)),
        ("1x2", Shape(1, 2)),
        ("2x2", Shape(2, 2)),
        ("3x3", Shape(3, 3)),
    ],
)
def test_a_node_is_filled_before_a_second_is_taken(devices: int | str, shape: Shape) -> None:
    assert shape_for(devices, devices_per_node=4, max_nodes=4) == shape


def test_every_accepted_count_has_that_many_devices_on_full_nodes() -> None:
    accepted = 0
    for devices_per_node in range(1, 9):
        for max_nodes in range(1, 5):
            for devices in range(1, devices_per_node * max_nodes + 1):
                fills = devices <= devices_per_node or devices % devices_per_node == 0
                if not fills:
                    refused(devices, devices_per_node, max_nodes)
                    continue
                shape = shape_for(devices, devices_per_node=devices_per_node, max_nodes=max_nodes)
                accepted += 1
                assert shape.world_size == devices
                assert shape.nodes == 1 or shape.devices_per_node == devices_per_node
    assert accepted > 100


def test_one_device_nodes_may_be_counted_either_way() -> None:
    shapes = {shape_for(devices, devices_per_node=1, max_nodes=4) for devices in (3, "3x1")}

    assert shapes == {Shape(3, 1)}


def test_the_nearest_counts_that_fit_are_named() -> None:
    assert refused(6).fix.startswith("Use 4 or 8")
    assert refused(9, max_nodes=3).fix.startswith("Use 8 or 12")


def test_what_a_cure_suggests_is_accepted() -> None:
    suggested = 0
    for devices_per_node in range(2, 9):
        for devices in range(devices_per_node + 1, devices_per_node * 4):
            if devices % devices_per_node == 0:
                continue
            fix = refused(devices, devices_per_node).fix
            below, above = re.findall(r"Use (\d+) or (\d+)", fix)[0]
            for count in (int(below), int(above), *re.findall(r'"(\d+x\d+)"', fix)):
                shape = shape_for(count, devices_per_node=devices_per_node, max_nodes=4)
                suggested += 1
                assert isinstance(count, int) or shape.world_size == devices, (devices, fix)
    assert suggested > 100


@pytest.mark.parametrize(
    ("devices", "fix"),
    [
        (0, "Use 1 or more."),
        (-1, "Use 1 or more."),
        (17, "Use at most 16."),
        ("4", "Write 4 without quotes."),
        ("2x", 'Write 4 or "2x2".'),
        ("0x2", 'Write 4 or "2x2".'),
        ("2x0", 'Write 4 or "2x2".'),
        ("2x2x2", 'Write 4 or "2x2".'),
        ("2X2", 'Write 4 or "2x2".'),
        ("٢x٢", 'Write 4 or "2x2".'),
        ("2x1", "Use 2; a node is filled before a second one is taken."),
        ("2x5", "Use at most 4 after the x."),
        ("5x2", "Use at most 4 before the x."),
    ],
)
def test_a_count_or_shape_that_cannot_be_laid_out_says_what_can(devices: int | str, fix: str) -> None:
    assert refused(devices).fix == fix


def test_a_shape_is_written_as_it_is_typed() -> None:
    assert str(Shape(2, 4)) == "2x4"
