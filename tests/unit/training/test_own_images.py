"""Folders of images, .npz files and images made at random become what every rank maps."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from scalewise.plan.catalog.datasets import DatasetFacts, dataset_facts
from scalewise.training.data.datasets import DatasetError, load, prepare
from scalewise.training.data.own_arrays import read_image

SIZES = [(40, 24), (24, 40), (16, 16), (61, 33)]


def write_images(folder: Path, test: str = "test") -> Path:
    """Two classes of four images, each of another size, and one of each class to test on."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 4), (test, 1)):
        for name in ("cat", "Dog"):
            held = folder / split / name
            held.mkdir(parents=True)
            for index in range(count):
                width, height = SIZES[index]
                pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(held / f"{index}.{'PNG' if index % 2 else 'jpg'}")
            (held / "notes.txt").write_text("no image")
            (held / ".DS_Store").write_bytes(b"\0")
    return folder


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_is_read_as_torchvision_reads_it(test: str, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "photos", test)
    prepared = tmp_path / "out.safetensors"

    facts = prepare(str(folder), prepared, image_size=16)

    assert facts == DatasetFacts(8, 2, 3, 16, 16) == dataset_facts(str(folder), 16)
    data = load(prepared)
    reference = ImageFolder(
        str(folder / "train"),
        v2.Compose([v2.PILToTensor(), v2.Resize(16, antialias=True), v2.CenterCrop(16)]),
    )
    assert data.train_labels.tolist() == reference.targets == [0] * 4 + [1] * 4
    assert reference.classes == ["Dog", "cat"]
    for image, (wanted, _) in zip(data.train_images, reference, strict=True):
        # two resizers round differently
        assert (image.int() - wanted.int()).abs().max() <= 2


def test_an_image_that_is_not_rgb_becomes_so(tmp_path: Path) -> None:
    for mode in ("L", "RGBA", "P", "1", "CMYK"):
        path = tmp_path / f"{mode}.tif"
        Image.new(mode, (20, 30)).save(path)
        assert read_image(path, 8).shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is no image in JPEG, PNG", id="empty"),
        pytest.param(b"<html>404</html>", "is no image", id="HTML"),
        pytest.param(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no image", id="program"),
        pytest.param(None, "cannot be read", id="cut"),
    ],
)
def test_a_damaged_image_is_named_and_nothing_is_left(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    folder = write_images(tmp_path / "photos")
    broken = folder / "train" / "cat" / "0.jpg"
    broken.write_bytes(broken.read_bytes()[:400] if content is None else content)
    with pytest.raises(DatasetError, match=message) as refused:
        prepare(str(folder), tmp_path / "new" / "out.safetensors", image_size=16)
    assert str(refused.value).startswith(f"{broken}: ")
    assert list((tmp_path / "new").iterdir()) == []


def test_an_image_of_absurd_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (3000, 3000)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000_000)
    with pytest.raises(DatasetError, match=r"bomb\.png: cannot be read .*decompression bomb"):
        read_image(path, 8)


def test_a_folder_needs_a_size(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="needs image_size"):
        prepare(str(write_images(tmp_path / "photos")), tmp_path / "out.safetensors")


def own_arrays(**others: NDArray[Any]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for split, count in (("train", 40), ("test", 20)):
        arrays[f"{split}_images"] = np.arange(count * 30, dtype=np.uint8).reshape(count, 1, 6, 5)
        arrays[f"{split}_labels"] = np.arange(count, dtype=np.int32) % 5
    return arrays | others


@pytest.mark.parametrize("packed", [True, False])
def test_an_npz_comes_through_unchanged(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    (np.savez_compressed if packed else np.savez)(path, **own_arrays())  # type: ignore[arg-type]

    facts = prepare(str(path), tmp_path / "out.safetensors")

    assert facts == DatasetFacts(40, 20, 1, 6, 5) == dataset_facts(str(path))
    data = load(tmp_path / "out.safetensors")
    for name, array in own_arrays().items():
        assert np.array_equal(getattr(data, name).numpy(), array), name


class _Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.mkdir, (self.path,)  # type: ignore[return-value]


@pytest.mark.refuses("data: pickle", "security: pickle for data")
def test_an_npz_of_objects_is_refused_and_not_executed(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / "mine.npz"
    traps = np.array([_Trap(sprung)] * 40, dtype=object)
    np.savez(path, **own_arrays(train_labels=traps))  # type: ignore[arg-type]
    with pytest.raises(DatasetError, match=r"mine\.npz: cannot be read \(Object arrays"):
        prepare(str(path), tmp_path / "out.safetensors")
    path.write_bytes(pickle.dumps(_Trap(sprung)))
    with pytest.raises(DatasetError, match=r"mine\.npz: cannot be read"):
        prepare(str(path), tmp_path / "out.safetensors")
    assert list(tmp_path.iterdir()) == [path]
    pickle.loads(path.read_bytes())
    assert sprung.exists(), "the trap would have worked"


@pytest.mark.parametrize("kept", [0, 10, 500, -30], ids=["empty", "cut mark", "cut member", "cut list"])
def test_a_damaged_npz_is_named(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **own_arrays())  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DatasetError, match=r"mine\.npz: cannot be read .*numpy\.savez"):
        prepare(str(path), tmp_path / "out.safetensors")


def test_an_npz_without_an_array_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, train_images=own_arrays()["train_images"])
    with pytest.raises(DatasetError, match=r"mine\.npz: test_images .*Store test_images, test_labels"):
        prepare(str(path), tmp_path / "out.safetensors")


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
