"""The user's own data: its sizes, from the header of a real file, and what keeps a file from being used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from scalewise.plan.catalog.datasets import (
    DatasetFacts,
    DatasetFileError,
    dataset_facts,
    dataset_id,
    decode_options,
    is_own_data,
    own_inputs,
    prepared_path,
)
from scalewise.plan.catalog.own_data import MAX_HEADER_BYTES, _count

WriteDataset = Callable[..., Path]
refuses = pytest.mark.refuses
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
    assert error.fix == "Give the path of a .safetensors file, from the folder snakemake runs in."


@pytest.mark.parametrize(
    ("tensors", "what", "fix"),
    [
        pytest.param(
            {"train_images": np.zeros((500, 3, 16, 12), np.float32)},
            "whose train_images are F32 of shape [500, 3, 16, 12]",
            "Store uint8 of shape [samples, channels, height, width].",
            id="float images",
            marks=refuses("data: wrong type"),
        ),
        pytest.param(
            {"test_images": np.zeros((100, 16, 12), np.uint8)},
            "whose test_images are U8 of shape [100, 16, 12]",
            "Store uint8 of shape [samples, channels, height, width].",
            id="no channels",
            marks=refuses("data: wrong shape"),
        ),
        pytest.param(
            {"train_labels": np.zeros(499, np.int64)},
            "which has 500 train_images but train_labels of shape [499]",
            "Store one label an image.",
            id="a label too few",
            marks=refuses("data: wrong shape"),
        ),
        pytest.param(
            {"test_labels": np.zeros((100, 10), np.int64)},
            "which has 100 test_images but test_labels of shape [100, 10]",
            "Store one label an image.",
            id="one-hot labels",
            marks=refuses("data: wrong shape"),
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
    tensors: dict[str, np.ndarray], what: str, fix: str, tmp_path: Path, write_dataset: WriteDataset
) -> None:
    error = refused(write_dataset(tmp_path / "mine.safetensors", **tensors))

    assert error.what.endswith(what)
    assert error.fix == fix


def test_missing_tensors_are_named_with_all_that_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_file({"train_images": np.zeros((4, 1, 8, 8), np.uint8), "train_labels": np.zeros(4, np.uint8)}, path)

    error = refused(path)

    assert error.what.endswith("which has no tensor named test_images, test_labels")
    assert error.fix == "Store test_images, test_labels, train_images, train_labels."


def header(text: str | bytes) -> bytes:
    body = text.encode() if isinstance(text, str) else text
    return len(body).to_bytes(8, "little") + body


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(
            b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
            id="HTML",
            marks=refuses("data: html for an archive"),
        ),
        pytest.param(
            b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}.", id="pickle", marks=refuses("data: pickle")
        ),
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
    assert error.fix == FORMAT_CURE


@pytest.mark.refuses("data: truncated")
def test_a_real_file_cut_within_its_header_is_refused(tmp_path: Path, write_dataset: WriteDataset) -> None:
    path = write_dataset(tmp_path / "mine.safetensors")
    path.write_bytes(path.read_bytes()[:100])

    assert refused(path).fix == FORMAT_CURE


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").mkdir()

    assert "Is a directory" in refused(tmp_path / "mine.safetensors").what


def test_a_known_dataset_needs_no_file() -> None:
    assert dataset_facts("digits") == DatasetFacts(1437, 360, channels=1, height=8, width=8)
    assert dataset_id("digits") == "digits"
    assert not is_own_data("digits")


def test_files_with_one_name_in_two_folders_are_kept_apart_in_plain_folders() -> None:
    paths = ["a/mine.safetensors", "b/mine.safetensors", "a/mine data;$(x).safetensors", "é.safetensors"]
    folders = {dataset_id(path) for path in paths}

    assert len(folders) == len(paths)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,60}", folder) for folder in folders)
    assert dataset_id(paths[0]) == dataset_id(paths[0])


def write_npz(path: Path, **others: np.ndarray) -> Path:
    arrays = {
        "train_images": np.zeros((50, 3, 16, 12), np.uint8),
        "train_labels": np.zeros(50, np.int64),
        "test_images": np.zeros((10, 3, 16, 12), np.uint8),
        "test_labels": np.zeros(10, np.uint8),
    }
    np.savez_compressed(path, **(arrays | others))  # type: ignore[arg-type]
    return path


def test_the_sizes_of_an_npz_are_read_from_its_headers(tmp_path: Path) -> None:
    path = write_npz(
        tmp_path / "mine.npz", train_images=np.asfortranarray(np.zeros((50, 3, 16, 12), np.uint8))
    )

    assert dataset_facts(str(path)) == DatasetFacts(50, 10, channels=3, height=16, width=12)
    assert dataset_facts(str(path), 32) == DatasetFacts(50, 10, channels=3, height=32, width=32)


@pytest.mark.refuses("data: wrong type")
def test_arrays_of_an_npz_of_another_type_are_named(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz", test_images=np.zeros((10, 3, 16, 12), np.float32))
    assert refused(path).what.endswith("whose test_images are <f4 of shape [10, 3, 16, 12]")

    np.savez(tmp_path / "few.npz", train_images=np.zeros(4))
    assert (
        "which has no array named test_images, test_labels, train_labels"
        in refused(tmp_path / "few.npz").what
    )


@pytest.mark.refuses("data: pickle")
def test_an_npz_of_objects_is_refused_as_a_pickle(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz", train_labels=np.array([None] * 50))

    assert "an array of Python objects, which is a pickle" in refused(path).what


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda whole: b"", id="empty"),
        pytest.param(lambda whole: b"<html>404</html>", id="HTML"),
        pytest.param(lambda whole: b"\x80\x04\x95.", id="pickle"),
        pytest.param(lambda whole: whole[:-40], id="cut"),
        pytest.param(lambda whole: whole[:60] + b"\xff" * 40 + whole[100:], id="damaged"),
    ],
)
def test_a_damaged_npz_is_refused_and_not_loaded(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz")
    path.write_bytes(damage(path.read_bytes()))

    error = refused(path)
    assert "which is not an npz file" in error.what
    assert error.fix == "Convert the data with numpy.savez."


def image_folder(path: Path, test: str = "test") -> Path:
    for split, count in (("train", 3), (test, 1)):
        for name in ("cat", "dog"):
            held = path / split / name
            held.mkdir(parents=True)
            for index in range(count):
                (held / f"{index}.JPEG").touch()
            (held / "notes.txt").touch()
            (held / ".thumbnail.jpg").touch()
    (path / "train" / ".cache").mkdir()
    (path / "train" / "README.md").touch()
    return path


@pytest.mark.parametrize("test", ["test", "val"])
def test_the_images_of_a_folder_are_counted(test: str, tmp_path: Path) -> None:
    path = image_folder(tmp_path / "photos", test)

    assert dataset_facts(str(path), 224) == DatasetFacts(6, 2, channels=3, height=224, width=224)


def test_a_new_image_is_seen_at_once(tmp_path: Path) -> None:
    path = image_folder(tmp_path / "photos")
    dataset_facts(str(path), 224)
    (path / "train" / "cat" / "new.png").touch()

    assert dataset_facts(str(path), 224).train_samples == 7


def test_a_folder_that_has_been_prepared_is_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_dataset: WriteDataset
) -> None:
    """A million names are not read at every parse of the workflow, until a class changes."""
    monkeypatch.chdir(tmp_path)
    image_folder(tmp_path / "photos")
    prepared = prepared_path("./photos", 224)
    prepared.parent.mkdir(parents=True)
    write_dataset(prepared)
    _count.cache_clear()
    assert dataset_facts("./photos", 224) == DatasetFacts(500, 100, 3, 224, 224)
    assert _count.cache_info().misses == 0
    assert dataset_facts("./photos", 96).train_samples == 6, "another size is prepared apart"

    (tmp_path / "photos" / "train" / "cat" / "new.png").touch()
    assert dataset_facts("./photos", 224).train_samples == 7


def test_a_damaged_prepared_file_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image_folder(tmp_path / "photos")
    prepared = prepared_path("./photos", 224)
    prepared.parent.mkdir(parents=True)
    prepared.write_bytes(b"half")
    assert dataset_facts("./photos", 224).train_samples == 6


def remove_images(path: Path) -> None:
    for image in (path / "train" / "dog").glob("*.JPEG"):
        image.unlink()


@pytest.mark.parametrize(
    ("damage", "what", "fix"),
    [
        pytest.param(
            lambda path: (path / "train").rename(path / "training"),
            "which has no folder train/",
            "Make train/ and test/ (or val/) in it, each with a folder of images for every class.",
            id="no train",
        ),
        pytest.param(
            lambda path: (path / "test").rename(path / "tests"),
            "which has no folder test/ or val/",
            "Make train/ and test/ (or val/) in it, each with a folder of images for every class.",
            id="no test",
        ),
        pytest.param(
            remove_images,
            "whose train/dog/ has no image",
            "Images end in .jpg",
            id="empty class",
            marks=refuses("data: empty class"),
        ),
        pytest.param(
            lambda path: (path / "test" / "horse").mkdir(),
            "which has a class 'horse' in test/ but not in train/",
            "Give both the same classes.",
            id="class of one split",
        ),
        pytest.param(
            lambda path: (path / "test" / "dog" / "more").mkdir(),
            "which has a folder 'more' within its class 'dog'",
            "Put the images of a class directly into its folder.",
            id="folder in a class",
        ),
    ],
)
def test_a_folder_of_another_form_is_refused(
    damage: Callable[[Path], object], what: str, fix: str, tmp_path: Path
) -> None:
    path = image_folder(tmp_path / "photos")
    damage(path)
    with pytest.raises(DatasetFileError) as error:
        dataset_facts(str(path), 224)
    assert error.value.what == f"is {str(path)!r}, {what}"
    assert error.value.fix.startswith(fix)


def test_a_folder_needs_a_size(tmp_path: Path) -> None:
    error = refused(image_folder(tmp_path / "photos"))

    assert error.what.endswith("a folder of images, and image_size is not set")
    assert "224" in error.fix


def test_what_is_neither_folder_nor_known_file_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "gone").what.endswith("which does not exist")
    (tmp_path / "mine.csv").touch()
    assert refused(tmp_path / "mine.csv").what.endswith("which is a file of an unknown kind")


def test_a_folder_is_stored_once_for_each_size_and_a_file_once(tmp_path: Path) -> None:
    folder = str(image_folder(tmp_path / "photos"))
    assert dataset_id(folder, 96) != dataset_id(folder, 224)
    assert dataset_id("a/mine.npz", 96) == dataset_id("a/mine.npz") != dataset_id("a/mine.safetensors")
    assert dataset_id("mnist", 64) == "mnist"
    assert decode_options(folder, 96) == ["--image-size", "96"]
    assert decode_options("mnist", 64) == decode_options("a/mine.npz", 64) == []


def test_a_change_of_the_users_data_makes_it_anew(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "photos")
    classes = [folder / split / name for split in ("train", "test") for name in ("cat", "dog")]
    assert own_inputs(str(folder)) == [str(path) for path in classes]
    assert own_inputs("a/mine.npz") == ["a/mine.npz"]
    assert own_inputs("mnist") == own_inputs("synthetic-1x2x3") == []


def test_public_datasets_have_their_published_sizes() -> None:
    assert dataset_facts("mnist") == DatasetFacts(60_000, 10_000, 1, 28, 28)
    assert dataset_facts("cifar10", 224) == DatasetFacts(50_000, 10_000, 3, 224, 224)
    assert dataset_facts("cifar100") == dataset_facts("cifar10")
    with pytest.raises(KeyError):
        dataset_facts("cifar")
