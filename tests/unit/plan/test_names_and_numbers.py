"""Facts by their names, device counts as shapes, samples as steps of ranks, and numbers as plain digits."""

import math
import re
from dataclasses import replace

import pytest

from scalewise.analysis.words import format_ratio
from scalewise.config.catalog import DatasetFacts, dataset_facts, normalises_over_batch
from scalewise.config.shape import shape_for
from scalewise.plan.formatting import counts_text, duration_text, format_3sig, percent


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("digits", DatasetFacts(1437, 360, channels=1, height=8, width=8)),
        ("mnist", DatasetFacts(60_000, 10_000, 1, 28, 28)),
        ("cifar10", DatasetFacts(50_000, 10_000, 3, 32, 32)),
        ("cifar100", DatasetFacts(50_000, 10_000, 3, 32, 32)),
        ("synthetic-3x32x32", DatasetFacts(10_000, 1000, 3, 32, 32)),
        ("synthetic-3x32x48-100classes", DatasetFacts(10_000, 1000, 3, 32, 48)),
        ("synthetic-1x8x8-50samples", DatasetFacts(50, 10, 1, 8, 8)),
        ("synthetic-1x8x8-1000classes-2000samples", DatasetFacts(2000, 1000, 1, 8, 8)),
    ],
)
def test_a_dataset_has_its_published_sizes_and_a_synthetic_one_those_of_its_name(
    name: str, facts: DatasetFacts
) -> None:
    assert dataset_facts(name) == facts
    assert dataset_facts(name, 224) == replace(facts, height=224, width=224)


@pytest.mark.parametrize(
    ("model", "normalises"),
    [
        *(("wrn-28-10", True), ("wrn-10-1", True), ("wrn-9-1", None), ("wrn-28", None), ("wrn-4-1", None)),
        *(("transformer-1M", False), ("transformer-1.1M", False), ("transformer-100G", False)),
        *(("transformer-0.9M", None), ("transformer-101G", None), ("transformer-25", None)),
    ],
)
def test_a_name_of_many_models_holds_a_size_that_such_a_model_has(
    model: str, normalises: bool | None
) -> None:
    if normalises is not None:
        assert normalises_over_batch(model) is normalises
        return
    with pytest.raises(ValueError, match=model):
        normalises_over_batch(model)


@pytest.mark.parametrize(
    ("devices", "per_node", "shape"),
    [
        *((1, 4, "1x1"), (3, 4, "1x3"), (4, 4, "1x4"), (8, 4, "2x4"), (16, 4, "4x4")),
        *(("1x2", 4, "1x2"), ("3x3", 4, "3x3"), (3, 1, "3x1"), ("3x1", 1, "3x1")),
    ],
)
def test_a_node_is_filled_before_a_second_is_taken(devices: int | str, per_node: int, shape: str) -> None:
    assert str(shape_for(devices, devices_per_node=per_node, max_nodes=4)) == shape


def test_a_count_fills_nodes_or_is_refused_with_counts_that_do() -> None:
    suggested = 0
    for node in range(1, 9):
        for devices in range(1, node * 4 + 1):
            if devices <= node or devices % node == 0:
                shape = shape_for(devices, devices_per_node=node, max_nodes=4)
                assert shape.world_size == devices
                assert shape.nodes == 1 or shape.devices_per_node == node
                continue
            with pytest.raises(ValueError, match="Use ") as refused:
                shape_for(devices, devices_per_node=node, max_nodes=4)
            for count in re.findall(r"\d+", str(refused.value).partition("Use")[2]):
                assert shape_for(int(count), devices_per_node=node, max_nodes=4).world_size == int(count)
                suggested += 1
    assert suggested > 50


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        # a measured value has three digits and no exponent
        (format_3sig(1234.5678), "1,235"),
        (format_3sig(123456.0), "123,456"),
        (format_3sig(99.96), "100"),
        (format_3sig(12.3456), "12.3"),
        (format_3sig(4.2), "4.20"),
        (format_3sig(0.0000123), "0.0000123"),
        (format_3sig(-0.5), "-0.500"),
        (format_3sig(0.0), "0"),
        (format_3sig(math.nan), "unknown"),
        # digits before the point are all kept
        (percent(0.0605, 0), "6 %"),
        # a ratio has two places, and from 10 on three digits
        (format_ratio(3.6), "3.60"),
        (format_ratio(12.34), "12.3"),
        (format_ratio(123.4), "123"),
        # of many counts the first and the last are named
        (counts_text(range(4, 69, 4)), "4, 8, 12, 16, 20, 24, 28, 32, 36, ..., 64, 68"),
        (counts_text([1, 2, 4]), "1, 2, 4"),
        # a duration has two units at most
        (duration_text(0.2), "0 s"),
        (duration_text(89), "89 s"),
        (duration_text(600), "10 min"),
        (duration_text(9000), "2 h 30 min"),
        (duration_text(7200), "2 h"),
        (duration_text(200_000), "2 days 8 h"),
    ],
)
def test_a_number_is_shown_in_plain_digits(shown: str, expected: str) -> None:
    assert shown == expected
