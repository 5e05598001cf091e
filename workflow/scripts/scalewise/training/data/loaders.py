"""Normalised batches on the device, by indices: the resident loader, and what both loaders promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn.functional import interpolate

from scalewise.training.data.augmentation import Augmentation, Cropper

_SEEDS = 2**62

Batch = tuple[torch.Tensor, torch.Tensor]
"""float32 [batch, channels, height, width] of zero mean and unit variance, and int64 [batch]."""


class Loader(Protocol):
    """Gives the batches of one split; both loaders draw crops and flips from the same distribution."""

    def __len__(self) -> int:
        """Number of samples of the split."""

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: random draws follow from seed, rank, epoch and place."""

    def batches(self, indices: Iterable[torch.Tensor], first: int = 0) -> Iterator[Batch]:
        """Yield a batch for each tensor of indices, in their order.

        Random draws for a batch follow from its place in the epoch alone, so that a training can go on in
        the middle of one.

        Args:
            indices: int64, [batch], one tensor for each batch.
            first: Place of the first batch in the epoch, from 0.
        """


@dataclass(frozen=True)
class Preprocessing:
    """Turns stored images into a batch, whichever loader does it.

    Args:
        mean: [channels], in pixel values.
        std: [channels], in pixel values.
        augmentation: Random changes of each image.
        image_size: Height and width of the batches in pixels; None for those of the dataset.
        memory_format: Layout of the batches in memory.
        seed: Each rank draws with its own.
    """

    mean: torch.Tensor
    std: torch.Tensor
    augmentation: Augmentation = field(default_factory=Augmentation)
    image_size: int | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    seed: int = 0

    def seed_of(self, epoch: int, place: int) -> int:
        """Seed of the random draws for one batch of an epoch."""
        return ((self.seed * 1_000_003 + epoch) * 1_000_003 + place) % _SEEDS


class ResidentLoader:
    """The whole uint8 dataset on one device; a batch is one gather.

    Args:
        images: uint8, [samples, channels, height, width].
        labels: int64, [samples].
        preprocessing: Turns images into batches.
        device: Receives the batches.
        home: Holds the dataset; None for the same device.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        preprocessing: Preprocessing,
        device: torch.device,
        home: torch.device | None = None,
    ) -> None:
        self._device = device
        self._home = home or device
        self._labels = labels.to(self._home)
        self._images = images.to(self._home)
        self._preparation = preprocessing
        augmentation = preprocessing.augmentation
        self._cropper = Cropper(self._images, augmentation) if augmentation else None
        self._mean = preprocessing.mean.to(device).view(1, -1, 1, 1)
        self._scale = (1 / preprocessing.std).to(device).view(1, -1, 1, 1)
        self._generator = torch.Generator(self._home)
        self._epoch = 0

    def __len__(self) -> int:
        """Number of samples of the split."""
        return len(self._labels)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with random draws of its own."""
        self._epoch = epoch

    def batches(self, indices: Iterable[torch.Tensor], first: int = 0) -> Iterator[Batch]:
        """Yield a batch for each tensor of indices."""
        for place, chosen in enumerate(indices, first):
            if self._cropper:
                self._generator.manual_seed(self._preparation.seed_of(self._epoch, place))
            yield self.load(chosen)

    def load(self, indices: torch.Tensor) -> Batch:
        """Load the batch of these samples."""
        here = indices.to(self._home, non_blocking=True)
        if self._cropper:
            chosen = self._cropper.draw(here, self._generator)
        else:
            chosen = self._images.index_select(0, here)
        layout = self._preparation.memory_format
        images = chosen.to(self._device).to(torch.float32, memory_format=layout)
        size = self._preparation.image_size
        if size is not None and images.shape[2:] != (size, size):
            images = interpolate(images, (size, size), mode="bilinear", antialias=True)
        images = images.sub_(self._mean).mul_(self._scale)
        # a copy only where they were resized
        images = images.contiguous(memory_format=layout)
        return images, self._labels.index_select(0, here).to(self._device)


def channel_statistics(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each channel over all images, in pixel values.

    They come from a histogram of the 256 values: exact, and no float copy of the dataset.
    """
    values = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        weights = counts / counts.sum()
        mean = (weights * values).sum()
        means.append(mean)
        stds.append((weights * (values - mean) ** 2).sum().sqrt().clamp_min(1e-6))
    return torch.stack(means).float(), torch.stack(stds).float()
