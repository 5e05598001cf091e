"""All that a rank needs to train, built from a run's definition; one device takes the same path as many."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from scalewise.builtin.data.augmentation import Augmentation
from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.data.loaders import (
    Batch,
    Preprocessing,
    ResidentImages,
    channel_statistics,
    resident_loader,
)
from scalewise.builtin.data.sampling import EpochSampler, SeededBatches
from scalewise.builtin.measured_training import MeasuredTraining
from scalewise.builtin.models.builders import blocks, build
from scalewise.builtin.optim import build_optimizer, build_schedule
from scalewise.builtin.parallel_model import ParallelModel
from scalewise.builtin.precision import Precision
from scalewise.measure.probe_spec import ProbeSpec
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity


@dataclass(frozen=True)
class Trainer:
    """This rank's part of a training.

    Args:
        settings: They hold the seed of this repeat.
        schedule: Advances once an optimizer step.
        sampler: Gives the samples of this rank in each step.
        batch_sampler: Chooses the batches that ``train`` gives next.
        train: Gives the batches to train on.
        test: Gives the batches to evaluate on.
        measured: Measures the steps and the memory of this process, once its hooks are set.
    """

    settings: Settings
    parallel_model: ParallelModel
    optimizer: Optimizer
    schedule: LRScheduler
    precision: Precision
    sampler: EpochSampler
    batch_sampler: SeededBatches
    train: DataLoader[Batch]
    test: ResidentImages
    measured: MeasuredTraining
    identity: Identity
    device: torch.device


@dataclass(frozen=True)
class Loaders:
    """The loader of the training split with its batch sampler, and the test split."""

    batch_sampler: SeededBatches
    train: DataLoader[Batch]
    test: ResidentImages


def build_loaders(
    settings: Settings, dataset: Dataset, rank: int, device: torch.device, timeout_seconds: float
) -> Loaders:
    """Batches of both splits, normalised by the statistics of the training split.

    Args:
        settings: They choose the loader, and what it does to an image.
        dataset: Mapped from its file, so that worker processes share its pages.
        rank: Draws its own crops and flips.
        device: Receives the batches.
        timeout_seconds: Ranks wait this long for each other; a worker process has half of it for a batch.
    """
    mean, std = channel_statistics(dataset.train_images)
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    plain = Preprocessing(mean, std, image_size=settings.image_size, memory_format=layout)
    drawn = replace(plain, augmentation=Augmentation(settings.crop_padding, settings.horizontal_flip))
    batch_sampler = SeededBatches(settings.seed * 10_007 + rank)
    train = dataset.train_images, dataset.train_labels
    test = dataset.test_images, dataset.test_labels
    if settings.loader == "resident":
        loader = resident_loader(ResidentImages(*train, drawn, device), batch_sampler)
        return Loaders(batch_sampler, loader, ResidentImages(*test, plain, device))
    # torchvision's transforms take seconds to import, which no other run should pay
    from scalewise.builtin.data.worker_loader import WorkerLoader  # noqa: PLC0415

    workers = settings.cpus_per_device
    loader = WorkerLoader(
        *train, drawn, batch_sampler, device, workers=workers, timeout_seconds=timeout_seconds
    )
    return Loaders(batch_sampler, loader, ResidentImages(*test, plain, device, storage=torch.device("cpu")))


def build_trainer(
    settings: Settings,
    global_batch_size: int,
    dataset: Dataset,
    loaders: Loaders,
    identity: Identity,
    device: torch.device,
    weights: Path | None = None,
    process_started: float = 0.0,
) -> Trainer:
    """Build model, optimizer, schedule and sampler of this rank, and what measures it.

    Args:
        settings: They hold the seed of this repeat.
        global_batch_size: Samples of a step over all ranks.
        dataset: Gives the shape of its images and the number of classes.
        loaders: Give the batches of both splits.
        identity: Chooses the samples of this rank, and its dropout.
        device: Holds the model.
        weights: The prepared file to begin from; None begins from random weights.
        process_started: Monotonic seconds of the process's start, if the system does not report it.
    """
    steps = settings.steps
    # now: memory that is held so far, by interpreter and libraries, is none of the training's
    until_interval = (steps and steps.until_interval) or 0.0
    measured = MeasuredTraining(
        ProbeSpec(warmup_steps=settings.warmup_steps, until_interval=until_interval), process_started
    )
    choose_algorithms(settings, device)
    torch.manual_seed(settings.seed)
    image = dataset.train_images.shape[1:]
    if settings.image_size is not None:
        image = torch.Size([image[0], settings.image_size, settings.image_size])
    network = build(settings.model, image, dataset.classes, weights, device)
    if settings.channels_last:
        network = network.to(memory_format=torch.channels_last)
    parallel_model = ParallelModel.build(network, blocks(network), settings, device)
    # the same weights everywhere, but each rank its own dropout
    torch.manual_seed(settings.seed * 10_007 + identity.rank)
    optimizer = build_optimizer(settings, network.parameters(), identity.world_size)
    sampler = EpochSampler(
        len(dataset.train_labels),
        global_batch_size,
        identity.rank,
        identity.world_size,
        settings.seed,
        settings.accumulation_steps,
    )
    return Trainer(
        settings=settings,
        parallel_model=parallel_model,
        optimizer=optimizer,
        schedule=build_schedule(settings, optimizer, len(sampler)),
        precision=Precision(settings, device),
        sampler=sampler,
        batch_sampler=loaders.batch_sampler,
        train=loaders.train,
        test=loaders.test,
        measured=measured,
        identity=identity,
        device=device,
    )


def choose_algorithms(settings: Settings, device: torch.device) -> None:
    """Choose deterministic algorithms, or the fastest that cuDNN finds for these shapes."""
    if settings.deterministic:
        # cuBLAS is deterministic with workspaces of a fixed size alone; read when CUDA first needs one
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(settings.deterministic)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not settings.deterministic
