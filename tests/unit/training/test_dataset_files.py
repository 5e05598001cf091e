"""Only data that can be trained on gets under its final name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from scalewise.builtin.data.datasets import DatasetError, load
from scalewise.builtin.data.fetch import FILES
from scalewise.builtin.data.preparation import check, prepare
from scalewise.plan.catalog.datasets import DATASETS

refuses = pytest.mark.refuses

Arrays = dict[str, NDArray[Any]]


def sound() -> Arrays:
    """40 images to train on and 20 to test on, of 5 classes."""
    generator = np.random.default_rng(0)

    def images(count: int) -> NDArray[np.uint8]:
        return generator.integers(0, 256, (count, 3, 6, 5), dtype=np.uint8)

    return {
        "train_images": images(40),
        "train_labels": np.arange(40, dtype=np.int64) % 5,
        "test_images": images(20),
        "test_labels": np.arange(20, dtype=np.int64) % 5,
    }


def with_label(name: str, label: int) -> Arrays:
    arrays = sound()
    arrays[name][0] = label
    return arrays


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "new" / "folders" / "dataset.safetensors"
    facts = prepare("digits", path)
    assert facts == DATASETS["digits"]
    return path


def test_every_dataset_of_the_catalogue_is_published_or_shipped() -> None:
    assert FILES.keys() - {"resnet18"} == DATASETS.keys() - {"digits"}


def test_the_digits_are_what_the_catalogue_promises(digits: Path) -> None:
    data = load(digits)
    facts = DATASETS["digits"]
    shape = (facts.channels, facts.height, facts.width)
    assert data.train_images.shape == (facts.train_samples, *shape)
    assert data.test_images.shape == (facts.test_samples, *shape)
    assert data.train_images.dtype == data.test_images.dtype == torch.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.classes == 10
    assert int(data.train_images.max()) == 16


def test_every_digit_is_in_both_splits_and_no_image_is_in_two(digits: Path) -> None:
    arrays = load_file(digits)
    assert set(arrays["test_labels"].tolist()) == set(arrays["train_labels"].tolist()) == set(range(10))
    # scikit-learn's 1,797 images are all different
    both = np.concatenate([arrays["train_images"], arrays["test_images"]]).reshape(1797, -1)
    assert len(np.unique(both, axis=0)) == 1797


def test_preparing_twice_gives_the_same_file(digits: Path, tmp_path: Path) -> None:
    prepare("digits", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == digits.read_bytes()


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        pytest.param(
            sound() | {"train_images": sound()["train_images"].astype(np.float32)},
            "train_images are float32",
            marks=refuses("data: wrong type"),
        ),
        pytest.param(
            sound() | {"test_images": sound()["test_images"].astype(np.int8)},
            "test_images are int8",
            marks=refuses("data: wrong type"),
        ),
        pytest.param(
            sound() | {"train_images": sound()["train_images"][:, 0]},
            r"shape \[40, 6, 5\]",
            marks=refuses("data: wrong shape"),
        ),
        (sound() | {"test_images": sound()["test_images"][:0]}, "at least one sample"),
        pytest.param(
            sound() | {"train_labels": sound()["train_labels"][:-1]},
            r"shape \[39\], not 40 integers",
            marks=refuses("data: wrong shape"),
        ),
        (sound() | {"test_labels": sound()["test_labels"].reshape(-1, 1)}, "not 20 integers"),
        pytest.param(
            sound() | {"test_labels": sound()["test_labels"].astype(np.float64)},
            "test_labels are float64",
            marks=refuses("data: wrong type"),
        ),
        pytest.param(
            with_label("train_labels", -1),
            "train_labels go down to -1",
            marks=refuses("data: labels out of range"),
        ),
        pytest.param(
            with_label("test_labels", -3),
            "test_labels go down to -3",
            marks=refuses("data: labels out of range"),
        ),
        pytest.param(
            with_label("train_labels", 6),
            "train_labels go up to 6.* class 5 has none",
            marks=refuses("data: empty class"),
        ),
        pytest.param(
            sound() | {"train_labels": np.zeros(40, np.int64)},
            "train_labels go up to 0.* class 1 has none",
            marks=refuses("data: empty class"),
        ),
        pytest.param(
            with_label("test_labels", 5),
            "test_labels go up to 5, but training has 5 classes, 0 to 4",
            marks=refuses("data: labels out of range"),
        ),
        (
            sound() | {"test_images": sound()["test_images"][:, :, :, :4]},
            r"train_images are \[3, 6, 5\] each, test_images \[3, 6, 4\]",
        ),
    ],
    ids=[
        "images are not bytes",
        "images are signed",
        "images have no channels",
        "no image to test on",
        "a label is missing",
        "labels are a column",
        "labels are fractions",
        "negative training label",
        "negative test label",
        "a class has no image",
        "one class alone",
        "test label out of range",
        "two image shapes",
    ],
)
def test_data_that_cannot_be_trained_on_is_refused_by_name_and_value(
    damaged: Arrays, message: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(DatasetError, match=message) as refused:
        check(damaged, "mine")
    record_property("message", refused.value)
    assert str(refused.value).startswith("mine: ")


@pytest.mark.refuses("data: labels out of range")
def test_a_label_far_out_of_range_is_refused_like_any_other() -> None:
    """No list as long as the largest label is made to find that out."""
    with pytest.raises(DatasetError, match=f"train_labels go up to {2**62}"):
        check(with_label("train_labels", 2**62), "mine")
    with pytest.raises(DatasetError, match=f"test_labels go up to {2**62}"):
        check(with_label("test_labels", 2**62), "mine")
