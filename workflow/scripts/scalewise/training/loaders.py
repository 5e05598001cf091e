"""From indices to a normalised batch on the device."""

from __future__ import annotations

import torch

Batch = tuple[torch.Tensor, torch.Tensor]


class ResidentLoader:
    """The whole uint8 dataset on the device; a batch is one gather.

    Args:
        images: uint8, [samples, channels, height, width].
        labels: int64, [samples].
        mean: of each channel, in pixel values.
        std: of each channel, in pixel values.
        device: where the batches are used.
    """

    name = "resident"

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        mean: torch.Tensor,
        std: torch.Tensor,
        device: torch.device,
    ) -> None:
        self._images = images.to(device)
        self._labels = labels.to(device)
        self._mean = mean.to(device).view(1, -1, 1, 1)
        self._scale = (1 / std).to(device).view(1, -1, 1, 1)

    def __len__(self) -> int:
        """Samples."""
        return len(self._labels)

    def load(self, indices: torch.Tensor) -> Batch:
        """Images as float32 [batch, channels, height, width], zero mean and unit variance; labels."""
        here = indices.to(self._images.device, non_blocking=True)
        images = self._images.index_select(0, here).float()
        return images.sub_(self._mean).mul_(self._scale), self._labels.index_select(0, here)


def channel_statistics(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each channel over all images, in pixel values.

    From a histogram of the 256 values: exact, and no float copy of the dataset.
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
