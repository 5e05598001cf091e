"""Random crops and flips of a whole batch at once, each image its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, drawn anew for each image each time.

    Args:
        crop_padding: Black pixels added on every side before an image of the old size is cut out.
        horizontal_flip: Mirrors an image with probability one half.
    """

    crop_padding: int = 0
    horizontal_flip: bool = False

    def __bool__(self) -> bool:
        """True if there is anything to do."""
        return self.crop_padding > 0 or self.horizontal_flip


class Cropper:
    """Images padded once, so that crop and flip of a batch are one gather.

    Equal in distribution to torchvision's RandomCrop(size, padding) and RandomHorizontalFlip.

    Args:
        images: uint8, [samples, channels, height, width].
        augmentation: The changes that are drawn.
    """

    def __init__(self, images: torch.Tensor, augmentation: Augmentation) -> None:
        self._height, self._width = images.shape[2:]
        self._augmentation = augmentation
        border = augmentation.crop_padding
        padded = pad(images, (border,) * 4) if border else images
        self._padded_width = padded.shape[3]
        self._pixels = padded.flatten(2)
        device = images.device
        self._rows = torch.arange(self._height, device=device).view(1, -1, 1)
        self._columns = torch.arange(self._width, device=device).view(1, 1, -1)
        self._mirrored_columns = self._width - 1 - self._columns

    def draw(self, indices: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Augment the images at these indices: uint8, [batch, channels, height, width].

        Args:
            indices: int64, [batch], on the device of the images.
            generator: A generator of that device.
        """
        count, device = len(indices), indices.device
        rows, columns = self._rows, self._columns
        if self._augmentation.horizontal_flip:
            mirrored = torch.randint(2, (count, 1, 1), generator=generator, device=device, dtype=torch.bool)
            columns = torch.where(mirrored, self._mirrored_columns, columns)
        if self._augmentation.crop_padding:
            places = 2 * self._augmentation.crop_padding + 1
            shift = torch.randint(places, (2, count, 1, 1), generator=generator, device=device)
            rows, columns = rows + shift[0], columns + shift[1]
        pixels = (rows * self._padded_width + columns).expand(count, -1, -1).flatten(1)
        chosen = self._pixels.index_select(0, indices)
        channels = chosen.shape[1]
        cropped = chosen.gather(2, pixels.unsqueeze(1).expand(-1, channels, -1))
        return cropped.view(count, channels, self._height, self._width)
