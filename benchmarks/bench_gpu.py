"""The WideResNet of Sigma2's Olivia guide on one GPU: its ways of training it, and ours, in images/s.

- the guide on one GPU: fp32, batch 32, a per-sample loader in the process itself;
- the guide on several, here on one: fp16 with a scaler, batch 256, 8 loader processes;
- ours: bf16, channels_last, the images on the GPU, compiled, batch 256.

All with crop and flip, on random images of 3x32x32 in 100 classes: CIFAR-100's shape, so it says nothing of
accuracy. "fp32" is torch's default, which convolves in tf32. Then the memory of ours, with
gradient_as_bucket_view and without.

    python benchmarks/run.py gpu
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Literal

import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision import transforms

from scalewise.training.data.datasets import Dataset
from scalewise.training.data.loaders import channel_statistics
from scalewise.training.loop import TrainingState, train_epoch
from scalewise.training.measure.memory import CudaGauge, PosixGauge
from scalewise.training.models.builders import build
from scalewise.training.trainer import Trainer

from .measure import Row, spend, spread
from .one_rank import one_rank, project_task
from .stand_in_images import PilImages, per_sample

Accelerator = Literal["cpu", "cuda"]
CLASSES, CROP_PADDING = 100, 4
OURS = {
    "precision": "bf16",
    "channels_last": True,
    "compile": True,
    "crop_padding": CROP_PADDING,
    "horizontal_flip": True,
}


@dataclass(frozen=True)
class Sizes:
    """How much to measure.

    Args:
        model: the network's name.
        pixels: height and width of an image.
        steps: of a timed pass, after which the device is waited for.
        rounds: timed passes, after one that is not timed.
        single_batch: of the guide on one GPU.
        batch: of the others.
        workers: loader processes of the guide on several GPUs.
    """

    model: str = "wide_resnet"
    pixels: int = 32
    steps: int = 100
    rounds: int = 5
    single_batch: int = 32
    batch: int = 256
    workers: int = 8


@dataclass(frozen=True)
class Measured:
    """One way of training.

    Args:
        rates: images/s of each timed pass.
        peak_bytes: of memory.
        memory_kind: what that counts.
        device_name: of the GPU, or CPU.
    """

    rates: list[float]
    peak_bytes: int
    memory_kind: str
    device_name: str


TINY = Sizes("digits_cnn", pixels=8, steps=2, rounds=2, single_batch=4, batch=8, workers=1)
"""Takes the same path in seconds on a CPU: ``rows(TINY, "cpu")``."""


def rows(sizes: Sizes | None = None, accelerator: Accelerator = "cuda") -> list[Row]:
    """The three ways, then memory; one line that says so where there is no GPU."""
    if accelerator == "cuda" and not torch.cuda.is_available():
        return [Row(what="gpu: WideResNet, batch 256", ours="no GPU here", n=0)]
    sizes = sizes or Sizes()
    single = in_a_process(guide, sizes, accelerator, False)
    several = in_a_process(guide, sizes, accelerator, True)
    ours = in_a_process(project, sizes, accelerator, False)
    viewed = in_a_process(project, sizes, accelerator, True)
    return [
        rate_row(f"the guide's way: fp32, batch {sizes.single_batch}, 0 workers", single, single),
        rate_row(f"the guide's way: fp16, batch {sizes.batch}, {sizes.workers} workers", several, single),
        rate_row(f"ours, batch {sizes.batch}, against the line above", ours, several),
        rate_row("ours with gradient_as_bucket_view, against ours without", viewed, ours),
        Row(
            what=f"gpu: peak of ours, {ours.memory_kind}, gradient_as_bucket_view on against off",
            ours=f"{viewed.peak_bytes / 1e6:,.0f} MB",
            reference=f"{ours.peak_bytes / 1e6:,.0f} MB",
            ratio=f"{viewed.peak_bytes / ours.peak_bytes:.3f}",
            n=1,
        ),
    ]


def in_a_process(
    way: Callable[[Sizes, Accelerator, bool], Measured], sizes: Sizes, accelerator: Accelerator, option: bool
) -> Measured:
    """A process for each, so that neither its memory nor its choice of algorithms is another's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(way, sizes, accelerator, option).result()


def rate_row(what: str, measured: Measured, reference: Measured) -> Row:
    """Images/s on this device, and how many times the reference's median."""
    is_reference = measured is reference
    ratio = spread(measured.rates).median / spread(reference.rates).median
    return Row(
        what=f"gpu: images/s, {measured.device_name}, {what}",
        ours=spread(measured.rates).show(digits=0),
        reference="" if is_reference else spread(reference.rates).show(digits=0),
        ratio="" if is_reference else f"{ratio:.2f}",
        n=len(measured.rates),
    )


def random_images(samples: int, pixels: int) -> Dataset:
    """Random pixels; every class is there."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (samples, 3, pixels, pixels), dtype=torch.uint8, generator=generator)
    labels = torch.arange(samples) % CLASSES
    return Dataset(images, labels, images[:CLASSES], labels[:CLASSES], CLASSES)


def guide(sizes: Sizes, accelerator: Accelerator, several_gpus: bool) -> Measured:
    """The guide's own loop: as on one GPU, or as on several, where it takes all of its options."""
    batch, workers = (sizes.batch, sizes.workers) if several_gpus else (sizes.single_batch, 0)
    dataset = random_images(sizes.steps * batch, sizes.pixels)
    random = (transforms.RandomCrop(sizes.pixels, padding=CROP_PADDING), transforms.RandomHorizontalFlip())
    transform = per_sample(*channel_statistics(dataset.train_images), *random)
    samples = PilImages(dataset.train_images, dataset.train_labels, transform)
    loader = DataLoader(
        samples,
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=accelerator == "cuda",
        persistent_workers=workers > 0,
    )
    network = build(sizes.model, dataset.train_images.shape[1:], CLASSES)
    with one_rank(accelerator) as (_, device):
        return train_guide(network.to(device), loader, several_gpus, sizes.rounds, device)


def train_guide(
    network: nn.Module, loader: DataLoader[Any], several_gpus: bool, rounds: int, device: torch.device
) -> Measured:
    """Passes over the loader: plain SGD in one process, or DDP, momentum and fp16 with a scaler."""
    model = DistributedDataParallel(network) if several_gpus else network
    optimizer = optim.SGD(network.parameters(), lr=0.01, momentum=0.9 if several_gpus else 0.0)
    scaler = torch.amp.GradScaler(device.type, enabled=several_gpus)

    def epoch() -> None:
        model.train()
        for data, target in loader:
            images, labels = (part.to(device, non_blocking=True) for part in (data, target))
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16, enabled=several_gpus):
                loss = cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        loss.item()  # waits for the device

    return measure(epoch, len(loader.dataset), rounds, device)  # type: ignore[arg-type]


def project(sizes: Sizes, accelerator: Accelerator, view: bool) -> Measured:
    """Our training, with gradient_as_bucket_view or without."""
    dataset = random_images(sizes.steps * sizes.batch, sizes.pixels)
    options = OURS | {
        "model": sizes.model,
        "global_batch_size": sizes.batch,
        "gradient_as_bucket_view": view,
    }
    with one_rank(accelerator) as (identity, device):
        return train_ours(project_task(options, dataset, identity, device), sizes.rounds)


def train_ours(trainer: Trainer, rounds: int) -> Measured:
    """Epochs of the project's own loop."""
    epochs = itertools.count()
    return measure(
        lambda: train_epoch(trainer, TrainingState.start(trainer.device, next(epochs))),
        len(trainer.train),
        rounds,
        trainer.device,
    )


def measure(epoch: Callable[[], object], samples: int, rounds: int, device: torch.device) -> Measured:
    """Samples per second of wall time, after an epoch in which libraries load and choose."""
    epoch()
    rates = [samples / spend(epoch).wall for _ in range(rounds)]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    gauge = CudaGauge(device) if device.type == "cuda" else PosixGauge()
    return Measured(rates, gauge.peak(), gauge.kind, name)
