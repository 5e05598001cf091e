"""Sizes of datasets, by name alone."""

from __future__ import annotations

import pytest

from scalewise.plan.catalog.datasets import DatasetFacts, dataset_facts


def test_public_datasets_have_their_published_sizes() -> None:
    assert dataset_facts("digits") == DatasetFacts(1437, 360, channels=1, height=8, width=8)
    assert dataset_facts("mnist") == DatasetFacts(60_000, 10_000, 1, 28, 28)
    assert dataset_facts("cifar10", 224) == DatasetFacts(50_000, 10_000, 3, 224, 224)
    assert dataset_facts("cifar100") == dataset_facts("cifar10")
    with pytest.raises(KeyError):
        dataset_facts("cifar")
