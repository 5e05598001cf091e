"""train.py as a process group of one rank, next to a bare loop and torchvision's loader."""

from __future__ import annotations

import itertools
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as Samples
from torchvision import transforms

from scalewise.training.data import channel_statistics
from scalewise.training.options import make_parser
from scalewise.training.prepared import write
from train import Training, choose_algorithms, join, set_up, train_epoch

Dataset = Mapping[str, torch.Tensor]
"""Images and labels of both splits, as ``scalewise.training.data.read`` returns them."""

CROPS = {"crop_padding": 4, "horizontal_flip": True}
"""Options of train.py; ``host_loader`` draws alike."""


@contextmanager
def one_rank(accelerator: str = "cpu", cpus: int = 1) -> Iterator[torch.device]:
    """Be rank 0 of 1, on so many CPUs and the first device; yield the device."""
    torch.set_num_threads(cpus)
    if accelerator == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
        device = torch.device("cpu")
    else:
        device = torch.device(accelerator, 0)
        torch.cuda.set_device(device)
    join(options({}), 0, 1, device)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done all it was given; a CPU never runs behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def options(changed: Mapping[str, Any]) -> Namespace:
    """Return the options of train.py, but for those that change."""
    return Namespace(**vars(make_parser().parse_args([])) | dict(changed))


def training_of(chosen: Mapping[str, Any], dataset: Dataset, device: torch.device) -> Training:
    """Build the training of these options, for one rank that reports no epoch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dataset.safetensors"
        write({name: tensor.contiguous() for name, tensor in dataset.items()}, path)
        args = options(dict(chosen) | {"data": path, "folder": Path(folder) / "out"})
        choose_algorithms(args, device)
        return set_up(args, 0, 1, device)


def epochs_of(training: Training) -> Callable[[], object]:
    """Return a function that trains the next epoch, and waits for the device."""
    epochs = itertools.count()
    return lambda: train_epoch(training, next(epochs))


def bare_loop(training: Training) -> Callable[[], None]:
    """Return an epoch of a loop that only trains, over the training's images, network and optimizer."""
    # one network and one optimizer for both: two copies would differ by where they lie in memory
    model, optimizer, device = training.model, training.optimizer, training.device
    images, labels = (torch.cat(parts) for parts in zip(*training.data.train, strict=True))
    size, half = training.args.batch_size_per_device, training.args.precision == "bf16"
    layout = torch.channels_last if training.args.channels_last else torch.contiguous_format

    def bare() -> None:
        model.train()
        for chosen in torch.randperm(len(images), device=device).split(size):
            batch = images[chosen].contiguous(memory_format=layout)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = cross_entropy(model(batch), labels[chosen])
            loss.backward()
            optimizer.step()
        wait_for(device)

    return bare


def loader_epochs(training: Training, epochs: int = 1) -> Callable[[], None]:
    """Return some epochs of a training's batches, of which nothing is trained."""
    data = training.data

    def load() -> None:
        for epoch in range(epochs):
            data.sampler.set_epoch(epoch)
            for _batch in data.train:
                pass
        wait_for(training.device)

    return load


def host_epoch(loader: DataLoader[Any], device: torch.device) -> Callable[[], None]:
    """Return an epoch of batches that come from the host, of which nothing is trained."""

    def load() -> None:
        for images, labels in loader:
            images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        wait_for(device)

    return load


def random_images(
    samples: int, channels: int = 3, pixels: int = 32, classes: int = 10, test_samples: int = 10
) -> Dataset:
    """Return random pixels; every class is there."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (samples, channels, pixels, pixels), dtype=torch.uint8, generator=generator)
    labels = torch.arange(samples) % classes
    test = {"test_images": images[:test_samples].clone(), "test_labels": labels[:test_samples].clone()}
    return {"train_images": images, "train_labels": labels, **test}


class PilImages(Samples[tuple[torch.Tensor, int]]):
    """Samples as torchvision's MNIST and CIFAR10 give them: from an array, by a PIL image and transforms.

    Args:
        images: uint8, [samples, channels, height, width].
        labels: int64, [samples].
        transform: From a PIL image to a tensor.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, transform: Any) -> None:
        # [samples, height, width] of one channel
        self._data = images.permute(0, 2, 3, 1).squeeze(3).contiguous().numpy()
        self._targets = labels.tolist()
        self._transform = transform

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._transform(Image.fromarray(self._data[index])), self._targets[index]


def host_loader(
    dataset: Dataset,
    batch: int,
    *,
    workers: int = 0,
    crops: bool = True,
    pinned: bool = False,
    samples: int | None = None,
) -> DataLoader[Any]:
    """Return torchvision's way: its transforms sample by sample, in this process or in workers."""
    images, labels = (dataset[f"train_{part}"][:samples] for part in ("images", "labels"))
    mean, std = (each / 255 for each in channel_statistics(images))
    steps = [transforms.ToTensor(), transforms.Normalize(mean.tolist(), std.tolist())]
    if crops:
        crop = transforms.RandomCrop(images.shape[-1], padding=CROPS["crop_padding"])
        steps = [crop, transforms.RandomHorizontalFlip(), *steps]
    return DataLoader(
        PilImages(images, labels, transforms.Compose(steps)),
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
    )
