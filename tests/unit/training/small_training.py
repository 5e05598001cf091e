"""A training of one rank in this process, on images made at random."""

from __future__ import annotations

from typing import Any

import torch
from tests.small_runs import definition_of

from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity

CPU = torch.device("cpu")
ALONE = Identity(0, 0, 1, 1, "node", None, 0)


def random_images(samples: int, test_samples: int = 8, pixels: int = 8) -> Dataset:
    """Square images of ten classes."""
    generator = torch.Generator().manual_seed(0)
    number = samples + test_samples
    images = torch.randint(256, (number, 1, pixels, pixels), dtype=torch.uint8, generator=generator)
    labels = torch.arange(number) % 10
    return Dataset(images[:samples], labels[:samples], images[samples:], labels[samples:], 10)


def settings_of(**chosen: Any) -> Settings:
    """Return settings of a linear model and batches of 24, but for those that are chosen."""
    usual = {"dataset": "digits", "model": "linear", "global_batch_size": 24, "warmup_steps": 1}
    return Settings.model_validate(usual | chosen)


def trainer_of(dataset: Dataset, settings: Settings) -> Trainer:
    """Return the only rank; there must be a process group."""
    loaders = build_loaders(settings, dataset, 0, CPU, 60)
    batch = definition_of(settings).global_batch_size
    return build_trainer(settings, batch, dataset, loaders, ALONE, CPU)
