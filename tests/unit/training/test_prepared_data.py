"""A prepared file: only what can be trained on, compared with its checksum, whose pages ranks share."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests.data_files import Trap
from tests.small_disk import largest_file
from torch import nn

from scalewise.builtin.data.datasets import DatasetError, load, write
from scalewise.builtin.data.fetch import FILES
from scalewise.builtin.data.preparation import check, prepare
from scalewise.plan.catalog.datasets import DATASETS, DatasetFacts, dataset_facts

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
    arrays = {name: tensor.numpy() for name, tensor in load_file(digits).items()}
    assert set(arrays["test_labels"].tolist()) == set(arrays["train_labels"].tolist()) == set(range(10))
    # scikit-learn's 1,797 images are all different
    both = np.concatenate([arrays["train_images"], arrays["test_images"]]).reshape(1797, -1)
    assert len(np.unique(both, axis=0)) == 1797


def test_preparing_twice_gives_the_same_file(digits: Path, tmp_path: Path) -> None:
    prepare("digits", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == digits.read_bytes()


def wrong(kind: str, damaged: Arrays, message: str) -> ParameterSet:
    """A case of data that are refused as the catalogue says; without a kind it does not list them."""
    marks = pytest.mark.refuses(f"data: {kind}") if kind else ()
    return pytest.param(sound() | damaged, message, id=message, marks=marks)


def of(name: str) -> NDArray[Any]:
    return sound()[name]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        wrong("wrong type", {"train_images": of("train_images").astype(float)}, "train_images are float"),
        wrong("wrong type", {"test_images": of("test_images").astype(np.int8)}, "test_images are int8"),
        wrong("wrong type", {"test_labels": of("test_labels").astype(float)}, "test_labels are float64"),
        wrong("wrong shape", {"train_images": of("train_images")[:, 0]}, r"shape \[40, 6, 5\]"),
        wrong("wrong shape", {"train_labels": of("train_labels")[:-1]}, r"shape \[39\], not 40 integers"),
        wrong("", {"test_images": of("test_images")[:0]}, "at least one sample"),
        wrong("", {"test_labels": of("test_labels").reshape(-1, 1)}, "not 20 integers"),
        wrong(
            "", {"test_images": of("test_images")[:, :, :, :4]}, r"\[3, 6, 5\] each, test_images \[3, 6, 4\]"
        ),
        wrong("labels out of range", with_label("train_labels", -1), "train_labels go down to -1"),
        wrong("labels out of range", with_label("test_labels", -3), "test_labels go down to -3"),
        wrong("labels out of range", with_label("test_labels", 5), "go up to 5, but training has 5 classes"),
        # no list as long as the largest label is made to find that out
        wrong("labels out of range", with_label("train_labels", 2**62), f"train_labels go up to {2**62}"),
        wrong("labels out of range", with_label("test_labels", 2**62), f"test_labels go up to {2**62}"),
        wrong("empty class", with_label("train_labels", 6), "go up to 6.* class 5 has none"),
        wrong("empty class", {"train_labels": np.zeros(40, np.int64)}, "go up to 0.* class 1 has none"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused_by_name_and_value(
    damaged: Arrays, message: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(DatasetError, match=message) as refused:
        check(damaged, "mine")
    record_property("message", refused.value)
    assert str(refused.value).startswith("mine: ")


SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"


def tensors(samples: int = 64, pixels: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> torch.Tensor:
        return torch.randint(256, (count, 3, pixels, pixels), generator=generator, dtype=torch.uint8)

    return {
        "train_images": images(samples),
        "train_labels": torch.arange(samples) % 5,
        "test_images": images(7),
        "test_labels": torch.arange(7) % 5,
    }


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    path = tmp_path / "dataset.safetensors"
    write(tensors(), path)
    return path


def data_begins(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_any_reader_of_safetensors_reads_the_file(prepared: Path) -> None:
    stored = load_file(prepared)
    assert stored.keys() == tensors().keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors().items())
    assert data_begins(prepared) % 8 == 0, "numbers of 8 bytes begin where such may"


def test_a_file_without_a_checksum_is_not_trained_on(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "plain.safetensors")
    with pytest.raises(DatasetError, match=r"plain\.safetensors is damaged \(it differs"):
        load(tmp_path / "plain.safetensors")


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"file .*gone\.safetensors is missing\. Give the same command"):
        load(tmp_path / "gone.safetensors")


@pytest.mark.refuses("data: pickle", "security: pickle for data")
def test_a_pickle_in_place_of_data_is_refused_and_not_executed(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / "dataset.safetensors"
    path.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(DatasetError, match="is damaged"):
        load(path)
    assert list(tmp_path.iterdir()) == [path]
    pickle.loads(path.read_bytes())
    assert sprung.exists(), "the trap would have worked"


def test_images_are_mapped_and_not_copied(prepared: Path) -> None:
    """Pages of the file itself, which every process of a node has in common."""
    data = load(prepared)
    assert int(data.train_images.sum()) > 0  # has them read
    address = data.train_images.data_ptr()
    mapping = mapping_of(address)
    assert str(prepared) in mapping[0]
    sizes = {key: int(kb) for line in mapping for key, kb in re.findall(r"^(\w+): +(\d+) kB", line)}
    assert sizes["Rss"] * 1024 >= data.train_images.numel()
    assert sizes["Anonymous"] == 0, "none is this process's own"


def test_a_rank_that_writes_changes_neither_the_file_nor_other_ranks(prepared: Path) -> None:
    first, second = load(prepared), load(prepared)
    before = prepared.read_bytes()
    first.train_images.zero_()
    assert int(second.train_images.sum()) > 0
    assert prepared.read_bytes() == before


def mapping_of(address: int) -> list[str]:
    """The lines of /proc/self/smaps on the mapping that holds an address."""
    path = Path("/proc/self/smaps")
    if not path.exists():
        pytest.skip("needs /proc/self/smaps, which Linux has")
    lines: list[str] = []
    for line in path.read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            if lines:
                break
            if int(span[1], 16) <= address < int(span[2], 16):
                lines = [line]
        elif lines:
            lines.append(line)
    return lines


@pytest.mark.slow
def test_no_rank_needs_what_downloads_and_decodes() -> None:
    """A container of a site need not have it, and no rank pays for its import."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, scalewise.builtin.data.datasets; print(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "torch" in loaded
    assert {"requests", "filelock", "PIL", "sklearn"} & set(loaded) == set()


@pytest.mark.parametrize("hindrance", ["a file in the way", "a limit on file sizes"])
def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(hindrance: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / "dataset.safetensors"
    limit = 10_000
    if hindrance == "a file in the way":
        path.parent.write_text("a file where the folder should be")
        limit = 10_000_000
    with (
        largest_file(limit),
        pytest.raises(DatasetError, match=r"dataset\.safetensors: cannot be written .*Make room"),
    ):
        write(tensors(), path)
    assert not path.parent.is_dir() or list(path.parent.iterdir()) == []


def test_synthetic_images_are_what_their_name_says_and_always_the_same(tmp_path: Path) -> None:
    name = "synthetic-2x5x7-3classes-400samples"
    facts = prepare(name, tmp_path / "a.safetensors")
    prepare(name, tmp_path / "b.safetensors")

    assert facts == DatasetFacts(400, 40, 2, 5, 7) == dataset_facts(name)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    data = load(tmp_path / "a.safetensors")
    assert data.classes == 3
    assert len(data.train_images.unique(dim=0)) == 400


def test_a_model_learns_from_synthetic_images(tmp_path: Path) -> None:
    prepare("synthetic-1x6x6-4classes-400samples", tmp_path / "a.safetensors")
    data = load(tmp_path / "a.safetensors")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(data.train_images / 255), data.train_labels).backward()
        optimizer.step()
    found = network(data.test_images / 255).argmax(1)
    assert (found == data.test_labels).float().mean() > 0.9
