"""The resident loader against torchvision's per-sample path, batch after batch, on one CPU thread.

MNIST as it is, from files in its own format; CIFAR-10's shape with a random crop and flip, from arrays as
torchvision holds them. Both on stand-in images.

    python benchmarks/run.py loader
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import MNIST

from scalewise.training.data import Batch, Preprocessing, ResidentImages, channel_statistics, whole_batch

from .measure import Row, interleave, rate_rows
from .one_rank import one_rank
from .stand_in_images import PilImages, per_sample, stand_in, write_mnist

LEAST_PLAIN, LEAST_AUGMENTED = 80.0, 20.0
ROUNDS = 15
BATCH = 64
MNIST_SAMPLES, MNIST_EPOCHS = 60_000, 10
CIFAR_SAMPLES, CIFAR_EPOCHS = 50_000, 2
# A part of an epoch takes long enough. That it stays in the caches more than a whole epoch would
# favours the reference.
REFERENCE_SAMPLES = 6_000
CROP_PADDING = 4
SMALL = {
    "ROUNDS": 1, "MNIST_SAMPLES": 640, "MNIST_EPOCHS": 1, "CIFAR_SAMPLES": 640, "CIFAR_EPOCHS": 1,
    "REFERENCE_SAMPLES": 640,
}  # fmt: skip


def rows() -> list[Row]:
    """Both datasets, each with its reference in turn."""
    with one_rank() as device:
        return mnist_rows(device) + cifar_rows(device)


def mnist_rows(device: torch.device) -> list[Row]:
    """ToTensor and Normalize."""
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(Path(folder), stand_in((1, 28, 28), MNIST_SAMPLES, 10))
        plain = MNIST(folder, train=True)
    images = plain.data.unsqueeze(1)
    mean, std = channel_statistics(images)
    plain.transform = per_sample(mean, std)
    resident = ResidentImages(images, plain.targets, Preprocessing(mean, std), device)
    torch.testing.assert_close(resident.__getitems__([7])[0][0], plain[7][0])
    return compare("MNIST images/s", resident, MNIST_EPOCHS, plain, LEAST_PLAIN)


def cifar_rows(device: torch.device) -> list[Row]:
    """RandomCrop and RandomHorizontalFlip, then ToTensor and Normalize."""
    dataset = stand_in((3, 32, 32), CIFAR_SAMPLES, 10)
    images, labels = dataset["train_images"], dataset["train_labels"]
    mean, std = channel_statistics(images)
    random = (transforms.RandomCrop(32, padding=CROP_PADDING), transforms.RandomHorizontalFlip())
    samples = PilImages(images, labels, per_sample(mean, std, *random))
    preprocessing = Preprocessing(mean, std, CROP_PADDING, horizontal_flip=True)
    resident = ResidentImages(images, labels, preprocessing, device)
    return compare("CIFAR images/s with crop and flip", resident, CIFAR_EPOCHS, samples, LEAST_AUGMENTED)


def compare(what: str, resident: ResidentImages, epochs: int, samples: Any, least: float) -> list[Row]:
    """Whole epochs of ours, with their sampler, and a part of one of the DataLoader's, in turn."""
    sampler: DistributedSampler[Batch] = DistributedSampler(resident, 1, 0, drop_last=True)
    loader = DataLoader(resident, BATCH, sampler=sampler, drop_last=True, collate_fn=whole_batch)
    reference_loader = DataLoader(Subset(samples, range(REFERENCE_SAMPLES)), batch_size=BATCH, shuffle=True)

    def ours() -> None:
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for _batch in loader:
                pass

    def reference() -> None:
        for _batch in reference_loader:
            pass

    interleave(ours, reference, rounds=1)
    pairs = interleave(ours, reference, ROUNDS)
    our_samples = len(resident) // BATCH * BATCH * epochs
    return rate_rows(f"loader: {what}, batch {BATCH}", pairs, our_samples, REFERENCE_SAMPLES, least)
