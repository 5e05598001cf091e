"""The pipeline's own training, train.py, as a process group of one rank."""

from __future__ import annotations

import itertools
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from scalewise.training.options import make_parser
from scalewise.training.prepared import write
from train import Training, choose_algorithms, join, set_up, train_epoch

Dataset = Mapping[str, torch.Tensor]
"""Images and labels of both splits, as ``scalewise.training.data.read`` returns them."""


@contextmanager
def one_rank(accelerator: Literal["cpu", "cuda"] = "cpu", cpus: int = 1) -> Iterator[torch.device]:
    """Be rank 0 of 1, on so many CPUs and the first device; yield the device.

    What holds a DistributedDataParallel must be gone when this ends.
    """
    if accelerator == "cpu":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    torch.set_num_threads(cpus)
    device = torch.device(accelerator, 0) if accelerator == "cuda" else torch.device("cpu")
    if accelerator == "cuda":
        torch.cuda.set_device(device)
    join(options({}), 0, 1, device)
    try:
        yield device
    finally:
        dist.destroy_process_group()


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
    """Return a function that trains the next epoch."""
    epochs = itertools.count()
    return lambda: train_epoch(training, next(epochs))
