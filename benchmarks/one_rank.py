"""The project's own training as a process group of one, built as a rank of a run builds it."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train_epoch
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import rank_setup_for
from scalewise.measure.hooks import hooked
from scalewise.measure.measured_process import MeasuredProcess
from scalewise.plan.config.settings import Settings
from scalewise.plan.jobs.launch import RankLaunch, SiteLaunch
from scalewise.ranks.distributed.devices import claim_cpus, claim_device
from scalewise.ranks.distributed.identity import Identity, identify
from scalewise.ranks.distributed.process_group import process_group

TIMEOUT_SECONDS = 60
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


@contextmanager
def one_rank(
    accelerator: Literal["cpu", "cuda"] = "cpu", cpus: int = 1
) -> Iterator[tuple[Identity, torch.device]]:
    """Be rank 0 of 1, on so many CPUs and the first device.

    Whatever holds a DistributedDataParallel must be gone when this ends.
    """
    identity = identify(os.environ | _ALONE, "spawn")
    claim_cpus(accelerator, identity, cpus)
    device = claim_device(accelerator, identity.local_rank)
    ranks = RankLaunch(
        shape="1x1", accelerator=accelerator, cpus_per_device=cpus, launcher="spawn", rendezvous="tcp"
    )
    rank_setup = rank_setup_for(ranks, SiteLaunch(), TIMEOUT_SECONDS)
    with (
        tempfile.TemporaryDirectory() as folder,
        process_group(RankFiles(Path(folder)), rank_setup, identity, device),
    ):
        yield identity, device


def project_task(
    options: Mapping[str, Any], dataset: Dataset, identity: Identity, device: torch.device
) -> Trainer:
    """Build a training of these options, with ``global_batch_size`` among them, and no warm-up.

    As in a run it is measured, but only within ``measuring``.
    """
    settings = Settings.model_validate({"dataset": "digits", "warmup_steps": 0} | dict(options))
    assert settings.global_batch_size is not None
    loaders = build_loaders(settings, dataset, identity.rank, device, TIMEOUT_SECONDS)
    trainer = build_trainer(settings, settings.global_batch_size, dataset, loaders, identity, device)
    trainer.measured.begin_training(trainer.optimizer, 0, None, device)
    return trainer


@contextmanager
def measuring(process: MeasuredProcess) -> Iterator[None]:
    """Set the probe's hooks for a while, as often as needed: they see all that this process trains."""
    with hooked(process):
        # those of forward passes are set once, at the first step
        process.model.hook_forward_passes()
        yield


def epochs_of(trainer: Trainer) -> Callable[[], object]:
    """The next epoch, each time."""
    epochs = itertools.count()
    return lambda: train_epoch(trainer, TrainingState.start(trainer.device, next(epochs)))
