"""Batches of the workers loader are those of the resident loader, made by processes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from scalewise.builtin.data.augmentation import Augmentation
from scalewise.builtin.data.loaders import (
    Batch,
    Preprocessing,
    ResidentImages,
    channel_statistics,
    resident_loader,
)
from scalewise.builtin.data.sampling import EpochSampler, Indices, SeededBatches
from scalewise.builtin.data.worker_loader import WorkerLoader

CPU = torch.device("cpu")
SAMPLES = 60
ORDER = [np.array([7, 0, 7]), np.array([59]), np.array([3, 2, 1, 0])]

Made = tuple[DataLoader[Batch], SeededBatches]


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """A loader that a test has let go of in a circle of references keeps its processes until it is found.

    They hold what this process had open when they began, a browser's pipe for one, whose end it waits for.
    """
    before = psutil.Process().children()
    yield
    gc.collect()
    assert [child for child in psutil.Process().children() if child not in before] == []


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (SAMPLES, 3, 6, 6), dtype=torch.uint8, generator=generator)


@pytest.fixture
def plain(images: torch.Tensor) -> Preprocessing:
    return Preprocessing(*channel_statistics(images))


def workers(images: torch.Tensor, preprocessing: Preprocessing, number: int = 1, seed: int = 0) -> Made:
    labels, batches = torch.arange(len(images)), SeededBatches(seed)
    loader = WorkerLoader(images, labels, preprocessing, batches, CPU, workers=number, timeout_seconds=60)
    return loader, batches


def resident(images: torch.Tensor, preprocessing: Preprocessing, seed: int = 0) -> Made:
    batches = SeededBatches(seed)
    return resident_loader(
        ResidentImages(images, torch.arange(len(images)), preprocessing, CPU), batches
    ), batches


both_loaders = pytest.mark.parametrize("make", [workers, resident])


def epoch(made: Made, number: int = 0, order: list[Indices] | None = None, first: int = 0) -> list[Batch]:
    loader, batches = made
    batches.plan(ORDER if order is None else order, number, first)
    return list(loader)


@pytest.mark.parametrize("number", [1, 2])
def test_both_loaders_give_the_same_batches_in_the_same_order(
    images: torch.Tensor, plain: Preprocessing, number: int
) -> None:
    ours = epoch(workers(images, plain, number))
    for (batch, labels), (expected, expected_labels) in zip(
        ours, epoch(resident(images, plain)), strict=True
    ):
        assert batch.dtype == torch.float32
        assert torch.allclose(batch, expected, atol=1e-5)
        assert labels.tolist() == expected_labels.tolist()


def test_ranks_use_every_sample_once_an_epoch(images: torch.Tensor, plain: Preprocessing) -> None:
    for number in range(2):
        seen = []
        for rank in range(2):
            sampler = EpochSampler(SAMPLES, 16, rank, 2, seed=1)
            sampler.set_epoch(number)
            order = [indices for step in sampler for indices in step.micro_batches]
            loader = workers(images, plain)
            seen += [label for _, labels in epoch(loader, number, order) for label in labels.tolist()]
        assert sorted(seen) == list(range(SAMPLES))


def test_every_epoch_is_loaded_by_as_many_processes_as_were_asked_for(
    images: torch.Tensor, plain: Preprocessing
) -> None:
    before = set(psutil.Process().children())
    loader = workers(images, plain, number=2)
    started = []
    for number in range(2):
        epoch(loader, number)
        started.append(set(psutil.Process().children()) - before)
    assert len(started[0]) == 2
    assert started[0] == started[1]


@both_loaders
def test_images_are_brought_to_the_size_asked_for(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    ((batch, _),) = epoch(make(images, replace(plain, image_size=9)), order=[np.arange(8)])
    assert batch.shape == (8, 3, 9, 9)
    smooth = torch.nn.functional.interpolate(
        images[:8].float(), (9, 9), mode="bilinear", antialias=True, align_corners=False
    )
    expected = (smooth - plain.mean.view(3, 1, 1)) / plain.std.view(3, 1, 1)
    # torchvision rounds to whole pixel values, for columns and for rows
    assert (batch - expected).abs().max() < 1.01 / float(plain.std.min())


@both_loaders
def test_images_come_in_the_layout_asked_for(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        for batch, _ in epoch(make(images, replace(plain, memory_format=layout))):
            assert batch.is_contiguous(memory_format=layout)


@both_loaders
def test_crops_and_flips_leave_exactly_the_images_that_are_possible(
    images: torch.Tensor, make: Callable[..., Made]
) -> None:
    number, image = 1800, images[:1]
    augmentation = Augmentation(crop_padding=1, horizontal_flip=True)
    raw = Preprocessing(torch.zeros(3), torch.ones(3), augmentation)
    ((batch, _),) = epoch(make(image.expand(number, -1, -1, -1), raw), order=[np.arange(number)])
    padded = torch.nn.functional.pad(image[0].float(), (1, 1, 1, 1))
    crops = [padded[:, top : top + 6, left : left + 6] for top in range(3) for left in range(3)]
    possible = torch.stack(crops + [crop.flip(2) for crop in crops]).flatten(1)
    distances = torch.cdist(batch.flatten(1), possible, p=float("inf"))
    assert distances.min(1).values.max() < 0.01
    often = distances.argmin(1).bincount(minlength=len(possible))
    # 100 of each, give or take 5 standard deviations
    assert often.min() > 50
    assert often.max() < 150


@both_loaders
def test_crops_follow_from_seed_and_epoch_and_differ_between_them(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    def drawn(seed: int, number: int, *before: int) -> torch.Tensor:
        loader = make(images, replace(plain, augmentation=Augmentation(crop_padding=2)), seed=seed)
        for earlier in before:
            epoch(loader, earlier)
        return torch.cat([batch for batch, _ in epoch(loader, number)])

    assert torch.equal(drawn(1, 2), drawn(1, 2, 0, 1))
    assert not torch.equal(drawn(1, 2), drawn(1, 3))
    assert not torch.equal(drawn(1, 2), drawn(2, 2))


def test_crops_do_not_depend_on_the_number_of_processes(images: torch.Tensor, plain: Preprocessing) -> None:
    augmented = replace(plain, augmentation=Augmentation(crop_padding=2, horizontal_flip=True))
    one, two = (torch.cat([b for b, _ in epoch(workers(images, augmented, n))]) for n in (1, 2))
    assert torch.equal(one, two)


@both_loaders
def test_an_epoch_resumed_in_its_middle_has_the_same_crops(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    made = make(images, replace(plain, augmentation=Augmentation(crop_padding=2)))
    whole, rest = epoch(made, 3), epoch(made, 3, ORDER[1:], first=1)
    for (batch, labels), (expected, expected_labels) in zip(rest, whole[1:], strict=True):
        assert torch.equal(batch, expected)
        assert torch.equal(labels, expected_labels)


@both_loaders
def test_a_hook_on_torchs_loader_has_the_samples_of_each_batch_also_of_a_smaller_last_one(
    images: torch.Tensor,
    plain: Preprocessing,
    make: Callable[..., Made],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[list[int]] = []
    original = _BaseDataLoaderIter.__next__

    def hook(iterator: _BaseDataLoaderIter) -> Batch:
        batch: Batch = original(iterator)
        taken.append(batch[1].tolist())
        return batch

    made = make(images, plain)
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", hook)
    sampler = EpochSampler(SAMPLES, 16, rank=1, world_size=2, seed=1, accumulation_steps=2)
    order = [indices for step in sampler for indices in step.micro_batches]
    epoch(made, order=order)
    assert taken == [indices.tolist() for indices in order]
    assert [len(batch) for batch in taken] == [4, 4, 4, 4, 4, 4, 3, 3]
    assert made[0].batch_sampler.batch_size == 4  # type: ignore[union-attr]


@both_loaders
def test_loading_leaves_the_random_numbers_of_the_training_alone(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    augmented = replace(plain, augmentation=Augmentation(crop_padding=2))
    torch.manual_seed(5)
    epoch(make(images, augmented))
    after = torch.rand(3).tolist()
    torch.manual_seed(5)
    assert after == torch.rand(3).tolist()


class SlowLabels:
    """A file system that takes its time."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3)
        return torch.tensor(index)


def test_a_process_that_gives_nothing_for_half_the_time_that_ranks_wait_is_complained_of(
    images: torch.Tensor, plain: Preprocessing
) -> None:
    labels = cast("torch.Tensor", SlowLabels())
    batches = SeededBatches(0)
    loader = WorkerLoader(images, labels, plain, batches, CPU, workers=1, timeout_seconds=2)
    with pytest.raises(RuntimeError, match=r"no batch within 1 s: one of its 1 processes hangs") as caught:
        epoch((loader, batches), order=[np.array([0])])
    # what ranks say that wait in vain for another: it would hide who is at fault
    assert "timed out" not in str(caught.value)
