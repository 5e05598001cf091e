"""What defines a run beside its settings is known by its content."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from scalewise.execution.input_hashes import input_hashes
from scalewise.training.data import storage


def prepared(path: Path, pixel: int = 0) -> Path:
    images, labels = np.zeros((20, 1, 8, 8), dtype=np.uint8), np.arange(20, dtype=np.int64) % 10
    other = images.copy()
    other[7, 0, 3, 3] = pixel
    arrays: storage.Arrays = {
        "train_images": other,
        "train_labels": labels,
        "test_images": images,
        "test_labels": labels,
    }
    storage.write(arrays, path)
    return path


def test_data_that_was_prepared_again_is_the_same_and_another_pixel_is_not(tmp_path: Path) -> None:
    first = input_hashes(prepared(tmp_path / "a"), None)
    copy = prepared(tmp_path / "b")
    os.utime(copy, (1, 1))
    assert input_hashes(copy, None) == first
    assert input_hashes(prepared(tmp_path / "c", pixel=1), None) != first
    assert first.keys() == {"dataset"}


def test_weights_count_by_every_byte(tmp_path: Path) -> None:
    data, weights = prepared(tmp_path / "a"), tmp_path / "w.safetensors"
    save_file({"layer": np.zeros(4, dtype=np.float32)}, weights)
    first = input_hashes(data, weights)
    assert first.keys() == {"dataset", "weights"}

    save_file({"layer": np.ones(4, dtype=np.float32)}, weights)
    second = input_hashes(data, weights)
    assert {name for name in first if first[name] != second[name]} == {"weights"}


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x05\x00\x00\x00\x00\x00\x00\x00ab"])
def test_a_file_that_is_cut_has_a_fingerprint_of_its_own_and_is_refused_by_the_ranks(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "cut").write_bytes(content)
    assert input_hashes(tmp_path / "cut", None) != input_hashes(prepared(tmp_path / "a"), None)
