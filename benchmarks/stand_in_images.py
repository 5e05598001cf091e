"""Images that a network can learn to tell apart, where no download is possible; MNIST's own file format."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset as Samples
from torchvision import transforms

from .one_rank import Dataset

CLASSES = 10
# hard enough that an epoch of some hundred steps leaves errors to count
CONTRAST, NOISE = 10.0, 70.0


def stand_in(shape: tuple[int, int, int], train_samples: int, test_samples: int, seed: int = 1) -> Dataset:
    """A smooth pattern for each of 10 classes, in pixel noise.

    Args:
        shape: [channels, height, width] of an image.
        train_samples: images to train on.
        test_samples: images of the same classes to evaluate on.
        seed: of patterns and noise.
    """
    random = np.random.default_rng(seed)
    coarse = random.normal(0, CONTRAST, (CLASSES, shape[0], 4, 4))
    rows, columns = (np.arange(size) * 4 // size for size in shape[1:])
    patterns = 128 + coarse[:, :, rows][:, :, :, columns]

    def split(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = random.integers(0, CLASSES, samples)
        images = np.empty((samples, *shape), np.uint8)
        for start in range(0, samples, 1000):
            chosen = labels[start : start + 1000]
            noisy = patterns[chosen] + random.normal(0, NOISE, (len(chosen), *shape))
            images[start : start + 1000] = noisy.clip(0, 255)
        return torch.from_numpy(images), torch.from_numpy(labels)

    found = {}
    for name, samples in (("train", train_samples), ("test", test_samples)):
        found[f"{name}_images"], found[f"{name}_labels"] = split(samples)
    return found


def write_mnist(root: Path, dataset: Dataset) -> None:
    """Store a dataset of shape [1, 28, 28] where torchvision looks for MNIST, as MNIST is stored."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    splits = {
        "train": (dataset["train_images"], dataset["train_labels"]),
        "t10k": (dataset["test_images"], dataset["test_labels"]),
    }
    for split, (images, labels) in splits.items():
        _write_idx(raw / f"{split}-images-idx3-ubyte", images.squeeze(1).numpy())
        _write_idx(raw / f"{split}-labels-idx1-ubyte", labels.numpy().astype(np.uint8))


def _write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Two zero bytes, 8 for unsigned bytes, the number of dimensions; each dimension, big-endian; data."""
    path.write_bytes(struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes())


class PilImages(Samples[tuple[torch.Tensor, int]]):
    """Samples as torchvision's CIFAR10 gives them: an array in memory, a PIL image and a transform for each.

    CIFAR10 itself would have to read a pickle.

    Args:
        images: uint8, [samples, 3, height, width].
        labels: int64, [samples].
        transform: from a PIL image to a tensor.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, transform: Any) -> None:
        self._data = images.permute(0, 2, 3, 1).contiguous().numpy()
        self._targets = labels.tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._transform(Image.fromarray(self._data[index])), self._targets[index]


def per_sample(mean: torch.Tensor, std: torch.Tensor, *first: Any) -> transforms.Compose:
    """ToTensor and Normalize, after what may come first.

    Args:
        mean: of each channel, in pixel values.
        std: of each channel, in pixel values.
        first: transforms of the PIL image.
    """
    normalise = transforms.Normalize((mean / 255).tolist(), (std / 255).tolist())
    return transforms.Compose([*first, transforms.ToTensor(), normalise])
