"""Data are prepared once, in any published format, and read back whole or, if damaged, not at all.

What protects what: a published file the checksum that torchvision has of it; a prepared file, data or
weights, the sha256 in its header, and a checkpoint its own.
"""

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.data_files import Trap, class_images, write_archives
from tests.machine import largest_file
from tests.reliability.thoroughness import times

from scalewise.config.catalog import DATASETS, DatasetFacts, dataset_facts
from scalewise.training.data import DatasetError, read
from scalewise.training.prepare import prepare
from scalewise.training.prepared import write


def test_the_digits_are_what_the_catalogue_promises_and_no_image_is_in_two_splits(tmp_path: Path) -> None:
    digits = tmp_path / "new" / "folders" / "dataset.safetensors"
    facts = prepare("digits", digits)
    assert facts == DATASETS["digits"]
    data = read(digits)
    shape = (facts.channels, facts.height, facts.width)
    assert data["train_images"].shape == (facts.train_samples, *shape)
    assert data["test_images"].shape == (facts.test_samples, *shape)
    assert data["train_images"].dtype == data["test_images"].dtype == torch.uint8
    assert data["train_labels"].dtype == data["test_labels"].dtype == torch.int64
    assert int(data["train_images"].max()) == 16
    assert set(data["test_labels"].tolist()) == set(data["train_labels"].tolist()) == set(range(10))
    # scikit-learn's 1,797 images are all different
    assert len(torch.cat([data["train_images"], data["test_images"]]).unique(dim=0)) == 1797
    again = digits.with_name("again.safetensors")
    prepare("digits", again)
    assert again.read_bytes() == digits.read_bytes()


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


@pytest.mark.refuses("data: pickle", "security: pickle for data")
def test_a_pickle_in_place_of_data_is_refused_and_not_executed(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / "dataset.safetensors"
    path.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(DatasetError, match="is damaged"):
        read(path)
    assert list(tmp_path.iterdir()) == [path]
    pickle.loads(path.read_bytes())
    assert sprung.exists(), "the trap would have worked"


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "out" / "dataset.safetensors"
    said = r"dataset\.safetensors: cannot be written .*Make room"
    with largest_file(10_000), pytest.raises(DatasetError, match=said):
        write(tensors(), path)
    assert list(path.parent.iterdir()) == []


def test_synthetic_images_are_what_their_name_says_and_always_the_same(tmp_path: Path) -> None:
    name = "synthetic-2x5x7-3classes-400samples"
    facts = prepare(name, tmp_path / "a.safetensors")
    prepare(name, tmp_path / "b.safetensors")

    assert facts == DatasetFacts(400, 40, 2, 5, 7) == dataset_facts(name)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    data = read(tmp_path / "a.safetensors")
    assert set(data["train_labels"].tolist()) == {0, 1, 2}
    assert len(data["train_images"].unique(dim=0)) == 400


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "cifar100"])
def test_a_published_dataset_is_read_as_torchvision_reads_it(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CIFAR's five training files in order, its fine labels, and its channels first."""
    near, prepared, downloads = tmp_path / "near", tmp_path / "dataset.safetensors", tmp_path / "downloads"
    near.mkdir()
    write_archives(dataset, near, monkeypatch)
    shape, classes = (1, 28, 28) if dataset == "mnist" else (3, 32, 32), 100 if dataset == "cifar100" else 10
    monkeypatch.setitem(DATASETS, dataset, DatasetFacts(120, 100, *shape))

    assert prepare(dataset, prepared, downloads=downloads, mirror=str(near)) == DATASETS[dataset]

    data = read(prepared)
    for seed, (images, labels) in enumerate(
        ((data["train_images"], data["train_labels"]), (data["test_images"], data["test_labels"]))
    ):
        expected, expected_labels = class_images(len(images), classes, (images[0].numel(),), seed)
        assert images.shape[1:] == shape
        assert torch.equal(images.flatten(1), torch.from_numpy(expected).flatten(1))
        assert labels.tolist() == expected_labels.tolist()
        assert labels.dtype == torch.int64, "as a loss takes them"
    # only the archives are kept
    assert sorted((downloads / dataset).iterdir()) == [
        downloads / dataset / path.name for path in sorted(near.iterdir())
    ]


def test_a_dataset_of_another_size_than_planned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "digits", DatasetFacts(1400, 360, 1, 8, 8))
    with pytest.raises(DatasetError, match=r"digits has .*train_samples=1437.*plan counts on .*1400"):
        prepare("digits", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def damages(content: bytes, other: bytes, seed: int) -> bytes:
    """The bytes of a file after one damage; the first seven are of one kind each, then any of them."""
    chance = random.Random(seed)
    place = chance.randrange(len(content))
    before, byte, after = content[:place], content[place], content[place + 1 :]
    kinds = (
        before + bytes([byte ^ 1 << chance.randrange(8)]) + after,
        before,
        content + chance.randbytes(chance.randrange(1, 40)),
        before + chance.randbytes(1) + after,
        b"",
        b"<!DOCTYPE html><html><body>404</body></html>\n",
        other,
    )
    return kinds[seed if seed < len(kinds) else chance.randrange(4)]


@pytest.mark.refuses("data: truncated", "data: pickle")
def test_a_prepared_file_that_is_damaged_is_never_trained_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    images = tensors(samples=12, pixels=5)
    plain, path = tmp_path / "plain.safetensors", tmp_path / "dataset.safetensors"
    save_file(images, plain)
    write(images, path)
    sound = path.read_bytes()
    others = (pickle.dumps(images), plain.read_bytes())
    number, refused = times(200, 6000), 0
    for seed in range(number):
        # half of them in the first bytes, where the header is
        begin = sound[: len(sound) if seed % 2 else 400]
        path.write_bytes(damages(begin, others[seed % 2], seed // 2) + sound[len(begin) :])
        refusal = ""
        try:
            found = read(path)
        except DatasetError as error:
            refusal, found = str(error), images
            refused += 1
        assert not refusal or path.name in refusal, f"{seed}: {refusal}"
        for name, tensor in images.items():
            assert found[name].dtype == tensor.dtype, seed
            assert torch.equal(found[name], tensor), f"damage {seed} came through in {name}"
    assert refused > number / 2
    record_property("figure", f"prepared data: {number} damages, {refused} refused, the rest without effect")
