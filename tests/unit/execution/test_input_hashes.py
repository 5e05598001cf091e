"""What defines a run beside its settings is known by its content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from scalewise.builtin.data.datasets import write
from scalewise.execution.input_hashes import input_hashes


def prepared(path: Path, pixel: int = 0) -> Path:
    images = torch.zeros(20, 1, 8, 8, dtype=torch.uint8)
    images[7, 0, 3, 3] = pixel
    write({"train_images": images, "train_labels": torch.arange(20) % 10}, path)
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
    write({"layer": torch.zeros(4)}, weights)
    first = input_hashes(data, weights)
    assert first.keys() == {"dataset", "weights"}

    write({"layer": torch.ones(4)}, weights)
    second = input_hashes(data, weights)
    assert {name for name in first if first[name] != second[name]} == {"weights"}


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x05\x00\x00\x00\x00\x00\x00\x00ab"])
def test_a_file_that_is_cut_has_a_fingerprint_of_its_own_and_is_refused_by_the_ranks(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "cut").write_bytes(content)
    assert input_hashes(tmp_path / "cut", None) != input_hashes(prepared(tmp_path / "a"), None)
