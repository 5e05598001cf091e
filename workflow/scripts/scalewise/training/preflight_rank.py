"""The smallest job that proves a site: every rank says where it is, and all add up one number."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from scalewise.execution.preflight_report import DATASETS, GREETINGS, Greeting, Greetings, sizes
from scalewise.execution.rank_files import Attempt
from scalewise.records import write_json
from scalewise.training.distributed.process_group import gather, process_group
from scalewise.training.measure.provenance import device_name
from scalewise.training.rank import report_for_duty


def say_hello(attempt: Attempt) -> None:
    """Meet the others and leave in the attempt's folder what all of them found."""
    muster = attempt.muster()
    identity, cpus, device = report_for_duty(attempt, muster)
    paths = (attempt.folder / DATASETS).read_text(encoding="utf-8").splitlines()
    with process_group(attempt, muster, identity, device):
        number = torch.tensor([identity.rank + 1.0], dtype=torch.float64, device=device)
        dist.all_reduce(number)
        greeting = Greeting(
            rank=identity.rank,
            local_rank=identity.local_rank,
            host=identity.host,
            device=device_name(device),
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            cpus=cpus,
            threads=torch.get_num_threads(),
            python=sys.executable,
            torch=torch.__version__,
            total=number.item(),
            datasets=sizes(paths),
        )
        greetings = gather(greeting, identity.world_size)
        if identity.rank == 0:
            write_json(attempt.folder / GREETINGS, Greetings(ranks=greetings))
    attempt.finished(identity.rank)
