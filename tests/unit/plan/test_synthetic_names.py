"""The name of a synthetic dataset says all of its sizes, and absurd ones are refused."""

from __future__ import annotations

import pytest

from scalewise.plan.catalog.datasets import DatasetFacts, dataset_facts
from scalewise.plan.config.errors import RefusedValueError


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("synthetic-3x32x32", DatasetFacts(10_000, 1000, 3, 32, 32)),
        ("synthetic-3x32x48-100classes", DatasetFacts(10_000, 1000, 3, 32, 48)),
        ("synthetic-1x8x8-50samples", DatasetFacts(50, 10, 1, 8, 8)),
        ("synthetic-1x8x8-1000classes-2000samples", DatasetFacts(2000, 1000, 1, 8, 8)),
    ],
)
def test_a_synthetic_dataset_says_its_sizes_itself(name: str, facts: DatasetFacts) -> None:
    assert dataset_facts(name) == facts


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("synthetic-3x32", "does not contain a shape"),
        ("synthetic-3x32x32-50000samples-10classes", "does not contain a shape"),
        ("synthetic-3x32x32-1e4samples", "does not contain a shape"),
        ("synthetic-3x0x32", "whose images have no pixels"),
        ("synthetic-3x32x32-1classes", "with 1 classes for 10000 samples"),
        ("synthetic-3x32x32-100classes-50samples", "with 100 classes for 50 samples"),
        ("synthetic-3x224x224-1281167samples", "which would take 212 GB"),
        ("synthetic-" + "9" * 5000, "does not contain a shape"),
    ],
)
def test_a_synthetic_dataset_that_cannot_be_is_refused_with_its_value(name: str, what: str) -> None:
    with pytest.raises(RefusedValueError) as error:
        dataset_facts(name)
    assert what in error.value.text
