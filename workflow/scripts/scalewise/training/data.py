"""Batches of a prepared dataset: gathered from a split on the device, or made by worker processes."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.nn.functional import interpolate, pad
from torch.utils.data import DataLoader, Dataset, DistributedSampler

Batch = tuple[torch.Tensor, torch.Tensor]
"""float32 [batch, channels, height, width] of zero mean and unit variance, and int64 [batch]."""

CHECKSUM = "sha256"
"""Name of the checksum in the metadata of a prepared file."""

LARGEST_EVALUATION_BATCH = 1024
"""Samples beyond which a larger batch evaluates hardly faster."""


class DatasetError(ValueError):
    """Data or weights that must not be trained on; the message names the file, the values and the fix."""


def read(path: Path) -> dict[str, torch.Tensor]:
    """Map the tensors of a prepared file into memory, once all of them have been compared with its checksum.

    No rank reads a pickle, and the ranks of a node share the pages of the file. A dataset has uint8 images
    ``train_images`` and ``test_images``, [samples, channels, height, width], and int64 labels [samples].

    Raises:
        DatasetError: The file is missing or damaged.
    """
    reason = "it differs from what was stored"
    try:
        with safe_open(path, "pt") as file:
            stored = (file.metadata() or {}).get(CHECKSUM)
            tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if stored == checksum(tensors):
            return tensors
    except FileNotFoundError as error:
        raise DatasetError(
            f"the prepared file {path} is missing: the rule prepare_dataset makes it."
        ) from error
    except (SafetensorError, OSError) as error:
        reason = str(error)
    raise DatasetError(
        f"the prepared file {path} is damaged ({reason}). Delete it and let the rule prepare_dataset make it "
        "again."
    )


def checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the sha256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Preprocessing:
    """Turns stored images into a batch, whichever loader does it.

    Args:
        mean: [channels], in pixel values.
        std: [channels], in pixel values.
        crop_padding: Black pixels added on every side before an image of the old size is cut out.
        horizontal_flip: Mirrors an image with probability one half.
        image_size: Height and width of the batches in pixels; None for those of the dataset.
        memory_format: Layout of the batches in memory.
    """

    mean: torch.Tensor
    std: torch.Tensor
    crop_padding: int = 0
    horizontal_flip: bool = False
    image_size: int | None = None
    memory_format: torch.memory_format = torch.contiguous_format


class ResidentImages(Dataset[Batch]):
    """A whole split, uint8 on one device; a batch is one gather.

    Args:
        images: uint8, [samples, channels, height, width].
        labels: int64, [samples].
        preprocessing: Turns images into batches.
        device: Holds the split and its batches.
        compiled: Compile what follows the gather: two or three kernels in place of a dozen.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        preprocessing: Preprocessing,
        device: torch.device,
        *,
        compiled: bool = False,
    ) -> None:
        self._images, self._labels = images.to(device), labels.to(device)
        self._of, self._device = preprocessing, device
        self._mean = preprocessing.mean.to(device).view(1, -1, 1, 1)
        self._scale = (1 / preprocessing.std).to(device).view(1, -1, 1, 1)
        self._preprocess = torch.compile(self._prepare, dynamic=False) if compiled else self._prepare

    def __len__(self) -> int:
        """Number of samples of the split."""
        return len(self._labels)

    def __getitems__(self, indices: list[int]) -> Batch:
        """Load a batch; torch's DataLoader calls this once for each."""
        here = torch.tensor(indices, pin_memory=self._device.type == "cuda")
        here = here.to(self._device, non_blocking=True)  # else the host would wait for the step before
        return self._preprocess(self._images.index_select(0, here)), self._labels.index_select(0, here)

    def _prepare(self, images: torch.Tensor) -> torch.Tensor:
        of = self._of
        images = augmented(images, of.crop_padding, of.horizontal_flip)
        images = images.to(torch.float32, memory_format=of.memory_format)
        if of.image_size is not None and images.shape[2:] != (of.image_size, of.image_size):
            images = interpolate(images, (of.image_size, of.image_size), mode="bilinear", antialias=True)
            images = images.contiguous(memory_format=of.memory_format)
        return images.sub_(self._mean).mul_(self._scale)


def augmented(images: torch.Tensor, crop_padding: int, horizontal_flip: bool) -> torch.Tensor:
    """Crop and flip each image of a batch at random, all in one gather.

    Equal in distribution to torchvision's RandomCrop(size, padding) and RandomHorizontalFlip.

    Args:
        images: [batch, channels, height, width].
        crop_padding: Black pixels around each image before it is cut out.
        horizontal_flip: Mirrors every second image, at random.
    """
    if not crop_padding and not horizontal_flip:
        return images
    count, _, height, width = images.shape
    device = images.device
    rows = torch.arange(height, device=device).expand(count, -1)
    columns = torch.arange(width, device=device).expand(count, -1)
    if horizontal_flip:
        mirrored = torch.randint(2, (count, 1), device=device, dtype=torch.bool)
        columns = torch.where(mirrored, width - 1 - columns, columns)
    if crop_padding:
        images = pad(images, (crop_padding,) * 4)
        shift = torch.randint(2 * crop_padding + 1, (2, count, 1), device=device)
        rows, columns = rows + shift[0], columns + shift[1]
    pixels = (rows[:, :, None] * images.shape[3] + columns[:, None, :]).flatten(1)
    chosen = images.flatten(2).gather(2, pixels[:, None, :].expand(-1, images.shape[1], -1))
    return chosen.view(count, -1, height, width)


class TransformedImages(Dataset[Batch]):
    """A split of which each sample goes through torchvision's transforms, in worker processes.

    Args:
        images: uint8, [samples, channels, height, width], in mapped memory, which the processes share.
        labels: int64, [samples].
        preprocessing: Turns images into batches.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, preprocessing: Preprocessing) -> None:
        # takes seconds to import, which no other run should pay
        from torchvision.transforms import v2  # noqa: PLC0415

        of, steps = preprocessing, []
        if of.crop_padding:
            steps.append(v2.RandomCrop(tuple(images.shape[2:]), padding=of.crop_padding))
        if of.horizontal_flip:
            steps.append(v2.RandomHorizontalFlip())
        if of.image_size is not None:
            steps.append(v2.Resize((of.image_size, of.image_size), antialias=True))
        steps += [
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((of.mean / 255).tolist(), (of.std / 255).tolist()),
        ]
        self._images, self._labels, self._transform = images, labels, v2.Compose(steps)

    def __len__(self) -> int:
        """Number of samples of the split."""
        return len(self._labels)

    def __getitem__(self, index: int) -> Batch:
        """Return one sample."""
        return self._transform(self._images[index]), self._labels[index]


@dataclass(frozen=True)
class Loaders:
    """Batches of both splits of a dataset, for one rank.

    Args:
        train: Batches of equal size; what does not fill one is left out of an epoch.
        sampler: Shuffles the training split again in each epoch; ``set_epoch`` chooses.
        test: Batches of this rank's part, as many on every rank: what is beyond ``test_samples`` is repeated.
        image: [channels, height, width] of a batch.
        classes: Number of classes; labels are 0 to one less.
        test_samples: Samples of this rank's part.
    """

    train: DataLoader[Batch]
    sampler: DistributedSampler[Batch]
    test: DataLoader[Batch]
    image: torch.Size
    classes: int
    test_samples: int


def open_data(args: argparse.Namespace, device: torch.device, rank: int, world_size: int) -> Loaders:
    """Open a prepared dataset for one rank, normalised by the statistics of its training split.

    Args:
        args: Options of train.py.
        device: Trains.
        rank: Rank of this process, from 0.
        world_size: Number of ranks.

    Raises:
        DatasetError: The file is missing, damaged, or has less than one batch for each rank.
    """
    path = args.data or Path("resources/datasets", args.dataset, "dataset.safetensors")
    data, size = read(path), args.image_size
    images, labels = data["train_images"], data["train_labels"]
    batch_size, seed = args.batch_size_per_device, args.seed
    per_step = batch_size * args.accumulation_steps
    if per_step * world_size > len(labels):
        raise DatasetError(
            f"{path} has {len(labels)} training samples, fewer than the {per_step} of a step on each of "
            f"{world_size} devices"
        )
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    plain = Preprocessing(*channel_statistics(images), image_size=size, memory_format=layout)
    drawn = replace(plain, crop_padding=args.crop_padding, horizontal_flip=args.horizontal_flip)
    resident = args.loader == "resident"
    train: Dataset[Batch]
    if resident:
        compiled = args.compile != "no" and device.type == "cuda"
        train = ResidentImages(images, labels, drawn, device, compiled=compiled)
        options: dict[str, Any] = {"collate_fn": whole_batch}
    else:
        train = TransformedImages(images, labels, drawn)
        options = {"num_workers": args.workers, "persistent_workers": True}
        # forked: the images are read from pages that all processes share
        options |= {"pin_memory": device.type == "cuda", "multiprocessing_context": "fork"}
    sampler: DistributedSampler[Batch] = DistributedSampler(
        train, world_size, rank, seed=seed, drop_last=True
    )
    storage = device if resident else torch.device("cpu")
    test = ResidentImages(data["test_images"], data["test_labels"], plain, storage)
    return Loaders(
        train=DataLoader(train, batch_size, sampler=sampler, drop_last=True, **options),
        sampler=sampler,
        test=DataLoader(
            test,
            min(batch_size, LARGEST_EVALUATION_BATCH),
            sampler=DistributedSampler(test, world_size, rank, shuffle=False),
            collate_fn=whole_batch,
        ),
        image=torch.Size([images.shape[1], size or images.shape[2], size or images.shape[3]]),
        classes=int(labels.max()) + 1,
        test_samples=len(range(rank, len(test), world_size)),
    )


def whole_batch(batch: Any) -> Any:
    """Take a batch as ``ResidentImages`` gives it, in place of joining samples."""
    return batch


def channel_statistics(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and standard deviation of each channel over all images, in pixel values.

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
