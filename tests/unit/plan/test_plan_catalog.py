"""The user's own data: its sizes, from the header of a real file, and what keeps a file from being used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from scalewise.plan.catalog import (
    MAX_HEADER_BYTES,
    DatasetFacts,
    DatasetFileError,
    dataset_facts,
    dataset_id,
    is_file_dataset,
)

WriteDataset = Callable[..., Path]
FORMAT_CURE = "Convert the data with safetensors.numpy.save_file."


def refused(path: Path) -> DatasetFileError:
    with pytest.raises(DatasetFileError) as error:
        dataset_facts(str(path))
    assert repr(str(path)) in error.value.what
    return error.value


def test_the_sizes_of_a_file_are_read_from_its_header(tmp_path: Path, write_dataset: WriteDataset) -> None:
    path = write_dataset(tmp_path / "mine.safetensors")

    assert dataset_facts(str(path)) == DatasetFacts(500, 100, channels=3, height=16, width=12)


def test_metadata_in_the_file_is_no_tensor(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    images, labels = np.zeros((4, 1, 8, 8), np.uint8), np.zeros(4, np.uint8)
    tensors = {
        f"{split}_{kind}": array
        for split in ("train", "test")
        for kind, array in (("images", images), ("labels", labels))
    }
    save_file(tensors, path, metadata={"source": "https://example.org"})

    assert dataset_facts(str(path)) == DatasetFacts(4, 4, channels=1, height=8, width=8)


def test_a_missing_file_is_looked_for_where_snakemake_runs(tmp_path: Path) -> None:
    error = refused(tmp_path / "none.safetensors")

    assert error.what.endswith("which cannot be read (No such file or directory)")
    assert error.cure == "Give the path of a .safetensors file, from the folder snakemake runs in."


@pytest.mark.parametrize(
    ("tensors", "what", "cure"),
    [
        pytest.param(
            {"train_images": np.zeros((500, 3, 16, 12), np.float32)},
            "whose train_images are F32 of shape [500, 3, 16, 12]",
            "Store uint8 of shape [samples, channels, height, width].",
            id="float images",
        ),
        pytest.param(
            {"test_images": np.zeros((100, 16, 12), np.uint8)},
            "whose test_images are U8 of shape [100, 16, 12]",
            "Store uint8 of shape [samples, channels, height, width].",
            id="no channels",
        ),
        pytest.param(
            {"train_labels": np.zeros(499, np.int64)},
            "which has 500 train_images but train_labels of shape [499]",
            "Store one label an image.",
            id="a label too few",
        ),
        pytest.param(
            {"test_labels": np.zeros((100, 10), np.int64)},
            "which has 100 test_images but test_labels of shape [100, 10]",
            "Store one label an image.",
            id="one-hot labels",
        ),
        pytest.param(
            {"test_images": np.zeros((100, 1, 16, 12), np.uint8)},
            "whose test_images are [1, 16, 12] but whose train_images are [3, 16, 12]",
            "Give both splits one image shape.",
            id="splits that differ",
        ),
    ],
)
def test_tensors_of_another_type_or_shape_are_named(
    tensors: dict[str, np.ndarray], what: str, cure: str, tmp_path: Path, write_dataset: WriteDataset
) -> None:
    error = refused(write_dataset(tmp_path / "mine.safetensors", **tensors))

    assert error.what.endswith(what)
    assert error.cure == cure


def test_missing_tensors_are_named_with_all_that_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_file({"train_images": np.zeros((4, 1, 8, 8), np.uint8), "train_labels": np.zeros(4, np.uint8)}, path)

    error = refused(path)

    assert error.what.endswith("which has no tensor named test_images, test_labels")
    assert error.cure == "Store test_images, test_labels, train_images, train_labels."


def header(text: str | bytes) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return len(body).to_bytes(8, "little") + body


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<!DOCTYPE html><html><body>404 Not Found</body></html>", id="HTML"),
        pytest.param(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}.", id="pickle"),
        pytest.param((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), id="endless header"),
        pytest.param(header('{"train_images": {')[:20], id="cut header"),
        pytest.param(header(b"\xff\xfe\x00"), id="header that is no text"),
        pytest.param(header("[]"), id="list"),
        pytest.param(header('{"train_images": 4}'), id="entry that is a number"),
        pytest.param(header('{"train_images": {"dtype": "U8"}}'), id="entry without shape"),
        pytest.param(header(json.dumps({"x": {"dtype": "U8", "shape": ["a"]}})), id="shape of text"),
        pytest.param(header("[" * 100_000), id="endless nesting"),
    ],
)
def test_a_damaged_file_is_refused_and_not_loaded(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    path.write_bytes(content)

    error = refused(path)

    assert "which is not a safetensors file" in error.what
    assert error.cure == FORMAT_CURE


def test_a_real_file_cut_within_its_header_is_refused(tmp_path: Path, write_dataset: WriteDataset) -> None:
    path = write_dataset(tmp_path / "mine.safetensors")
    path.write_bytes(path.read_bytes()[:100])

    assert refused(path).cure == FORMAT_CURE


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").mkdir()

    assert "Is a directory" in refused(tmp_path / "mine.safetensors").what


def test_a_known_dataset_needs_no_file() -> None:
    assert dataset_facts("digits") == DatasetFacts(1437, 360, channels=1, height=8, width=8)
    assert dataset_id("digits") == "digits"
    assert not is_file_dataset("digits")


def test_files_with_one_name_in_two_folders_are_kept_apart_in_plain_folders() -> None:
    paths = ["a/mine.safetensors", "b/mine.safetensors", "a/mine data;$(x).safetensors", "é.safetensors"]
    folders = {dataset_id(path) for path in paths}

    assert len(folders) == len(paths)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,60}", folder) for folder in folders)
    assert dataset_id(paths[0]) == dataset_id(paths[0])
