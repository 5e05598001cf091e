"""Facts of models and datasets by their names."""

from __future__ import annotations

import pytest

from scalewise.plan.catalog.datasets import DatasetFacts, dataset_facts
from scalewise.plan.catalog.models import (
    ModelFacts,
    known_models,
    model_facts,
    takes_pretrained,
    transformer_parameters,
    wide_resnet_shape,
)


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


def test_images_may_be_enlarged() -> None:
    assert dataset_facts("cifar10", 224) == DatasetFacts(50_000, 10_000, 3, 224, 224)


def test_pretrained_weights_are_known_of_resnet18_only() -> None:
    assert [name for name in known_models() if takes_pretrained(name)] == ["resnet18"]


@pytest.mark.parametrize(("model", "shape"), [("wrn-28-10", (28, 10)), ("wrn-10-1", (10, 1))])
def test_a_wide_network_is_named_by_depth_and_widening(model: str, shape: tuple[int, int]) -> None:
    assert wide_resnet_shape(model) == shape


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("1M", 10**6), ("1.1M", 1_100_000), ("2G", 2 * 10**9), ("0.5G", 5 * 10**8), ("100G", 10**11)],
)
def test_a_transformer_is_named_by_its_parameters(size: str, parameters: int) -> None:
    assert transformer_parameters(f"transformer-{size}") == parameters
    assert model_facts(f"transformer-{size}") == ModelFacts(batch_norm=False, min_pixels=1)
