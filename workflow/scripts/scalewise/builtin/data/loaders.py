"""Normalised batches on the device by torch's DataLoader, gathered from a split that lies there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from scalewise.builtin.data.augmentation import Augmentation, Cropper
from scalewise.builtin.data.sampling import SeededBatches

Batch = tuple[torch.Tensor, torch.Tensor]
"""float32 [batch, channels, height, width] of zero mean and unit variance, and int64 [batch]."""


@dataclass(frozen=True)
class Preprocessing:
    """Turns stored images into a batch, whichever loader does it.

    Args:
        mean: [channels], in pixel values.
        std: [channels], in pixel values.
        augmentation: Random changes of each image.
        image_size: Height and width of the batches in pixels; None for those of the dataset.
        memory_format: Layout of the batches in memory.
    """

    mean: torch.Tensor
    std: torch.Tensor
    augmentation: Augmentation = field(default_factory=Augmentation)
    image_size: int | None = None
    memory_format: torch.memory_format = torch.contiguous_format


class ResidentImages(Dataset[Batch]):
    """A whole split, uint8 on one device; a batch is one gather.

    Args:
        images: uint8, [samples, channels, height, width].
        labels: int64, [samples].
        preprocessing: Turns images into batches.
        device: Receives the batches.
        storage: Holds the split; None for the same device.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        preprocessing: Preprocessing,
        device: torch.device,
        storage: torch.device | None = None,
    ) -> None:
        self._device = device
        self._storage = storage or device
        self._labels = labels.to(self._storage)
        self._images = images.to(self._storage)
        self._size = preprocessing.image_size
        self._layout = preprocessing.memory_format
        augmentation = preprocessing.augmentation
        self._cropper = Cropper(self._images, augmentation) if augmentation else None
        self._mean = preprocessing.mean.to(device).view(1, -1, 1, 1)
        self._scale = (1 / preprocessing.std).to(device).view(1, -1, 1, 1)
        self._generator = torch.Generator(self._storage)

    def __len__(self) -> int:
        """Number of samples of the split."""
        return len(self._labels)

    def __getitems__(self, seed_and_indices: list[Any]) -> Batch:
        """Load a batch of ``SeededBatches``; torch's DataLoader calls this once for each."""
        seed, indices = seed_and_indices
        if self._cropper:
            self._generator.manual_seed(seed)
        return self.load(torch.from_numpy(indices))

    def load(self, indices: torch.Tensor) -> Batch:
        """Load the batch of these samples."""
        here = indices.to(self._storage, non_blocking=True)
        if self._cropper:
            chosen = self._cropper.draw(here, self._generator)
        else:
            chosen = self._images.index_select(0, here)
        images = chosen.to(self._device).to(torch.float32, memory_format=self._layout)
        if self._size is not None and images.shape[2:] != (self._size, self._size):
            images = interpolate(images, (self._size, self._size), mode="bilinear", antialias=True)
            images = images.contiguous(memory_format=self._layout)
        images.sub_(self._mean).mul_(self._scale)
        return images, self._labels.index_select(0, here).to(self._device)


def resident_loader(images: ResidentImages, batch_sampler: SeededBatches) -> DataLoader[Batch]:
    """Build the loader of batches that the rank gathers itself."""
    return DataLoader(
        images,
        batch_sampler=batch_sampler,
        collate_fn=lambda batch: batch,
        # leaves torch's default generator, which dropout draws from, unchanged
        generator=torch.Generator(),
    )


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
