"""Batches are those that a user would compute by hand, and each test sample is evaluated once."""

import gc
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from torch.nn.functional import interpolate, pad
from torch.utils.data import DataLoader

from scalewise.training.data import (
    DatasetError,
    Loaders,
    Preprocessing,
    ResidentImages,
    TransformedImages,
    channel_statistics,
    open_data,
)
from scalewise.training.options import make_parser
from scalewise.training.prepared import write

CPU = torch.device("cpu")
SAMPLES, TEST_SAMPLES = 60, 13


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """A loader in a circle of references keeps its processes, and the pipes that they inherited."""
    before = psutil.Process().children()
    yield
    gc.collect()
    assert [child for child in psutil.Process().children() if child not in before] == []


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (SAMPLES, 3, 6, 6), dtype=torch.uint8, generator=generator)


@pytest.fixture
def prepared(images: torch.Tensor, tmp_path: Path) -> Path:
    path = tmp_path / "dataset.safetensors"
    test = {"test_images": images[:TEST_SAMPLES].clone(), "test_labels": torch.arange(TEST_SAMPLES)}
    write({"train_images": images, "train_labels": torch.arange(SAMPLES), **test}, path)
    return path


def options(data: Path, *words: str) -> Namespace:
    return make_parser().parse_args([f"--data={data}", "--batch-size-per-device=8", *words])


def labels_of(loaders: Loaders, epoch: int) -> list[int]:
    loaders.sampler.set_epoch(epoch)
    return [int(label) for _, labels in loaders.train for label in labels]


def test_images_are_normalized_by_all_pixels_of_a_channel_also_if_they_are_all_alike() -> None:
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    images[:, 1] = 37
    preprocessing = Preprocessing(*channel_statistics(images))
    batch, _ = ResidentImages(images, torch.arange(2), preprocessing, CPU).__getitems__([0, 1])
    assert batch.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert batch.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 0, 1], abs=1e-6)


def test_both_loaders_give_the_same_batches_and_processes_stay_for_all_epochs(prepared: Path) -> None:
    before = set(psutil.Process().children())
    resident = open_data(options(prepared), CPU, 0, 1)
    workers = open_data(options(prepared, "--loader=workers", "--workers=2"), CPU, 0, 1)
    started = []
    for epoch in range(2):
        resident.sampler.set_epoch(epoch)
        workers.sampler.set_epoch(epoch)
        for (batch, labels), (expected, expected_labels) in zip(workers.train, resident.train, strict=True):
            assert batch.dtype == torch.float32
            torch.testing.assert_close(batch, expected, atol=1e-5, rtol=0)
            assert labels.tolist() == expected_labels.tolist()
        started.append(set(psutil.Process().children()) - before)
    assert len(started[0]) == 2
    assert started[0] == started[1]


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_crops_and_flips_are_as_often_each_of_those_that_are_possible(
    images: torch.Tensor, loader: str
) -> None:
    """As by torchvision's RandomCrop and RandomHorizontalFlip, which the workers loader calls."""
    number, image = 1800, images[:1]
    raw = Preprocessing(torch.zeros(3), torch.full((3,), 255.0), crop_padding=1, horizontal_flip=True)
    many, labels = image.expand(number, -1, -1, -1), torch.arange(number)
    torch.manual_seed(0)
    if loader == "resident":
        batch, _ = ResidentImages(many, labels, raw, CPU).__getitems__(list(range(number)))
    else:
        ((batch, _),) = DataLoader(TransformedImages(many, labels, raw), number)
    padded = pad(image[0].float() / 255, (1, 1, 1, 1))
    crops = [padded[:, top : top + 6, left : left + 6] for top in range(3) for left in range(3)]
    possible = torch.stack(crops + [crop.flip(2) for crop in crops]).flatten(1)
    distances = torch.cdist(batch.flatten(1), possible, p=float("inf"))
    assert distances.min(1).values.max() < 1e-4
    often = distances.argmin(1).bincount(minlength=len(possible))
    # 100 of each, give or take 5 standard deviations
    assert often.min() > 50
    assert often.max() < 150


@pytest.mark.parametrize("loader", ["resident", "workers"])
def test_images_are_resized_and_only_if_the_options_say_so(prepared: Path, loader: str) -> None:
    larger = open_data(options(prepared, f"--loader={loader}", "--image-size=12"), CPU, 0, 1)
    plain = open_data(options(prepared), CPU, 0, 1)
    (batch, _), (expected, _) = next(iter(larger.train)), next(iter(plain.train))
    assert larger.image == (3, 12, 12)
    expected = interpolate(expected, (12, 12), mode="bilinear", antialias=True)
    # torchvision rounds to whole pixel values
    torch.testing.assert_close(batch, expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_an_epoch_in_whole_batches_of_samples_of_their_own(
    prepared: Path, world_size: int
) -> None:
    ranks = [open_data(options(prepared), CPU, rank, world_size) for rank in range(world_size)]
    parts = [labels_of(each, 0) for each in ranks]
    assert {len(part) for part in parts} == {SAMPLES // world_size // 8 * 8}
    together = [label for part in parts for label in part]
    assert len(set(together)) == len(together)
    assert labels_of(ranks[0], 1) != parts[0] == labels_of(ranks[0], 0)


@pytest.mark.parametrize(("words", "devices"), [([], 9), (["--accumulation-steps=8"], 1)])
def test_fewer_samples_than_those_of_a_step_are_refused_with_the_numbers(
    prepared: Path, words: list[str], devices: int
) -> None:
    with pytest.raises(DatasetError, match=rf"60 training samples, fewer than .* on each of {devices} dev"):
        open_data(options(prepared, *words), CPU, 0, devices)
