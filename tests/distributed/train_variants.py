"""Train variants of train.py, one after the other, on ranks that are started once.

    python train_variants.py VARIANTS.json WORLD_SIZE FOLDER

The file has the words of each variant by its name. FOLDER receives a folder for each, with what train.py
writes and seen{rank}.json: what a rank trained with.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import train
from scalewise.training.options import make_parser


def seen(training: train.Training) -> dict[str, Any]:
    """Return what a rank trained with."""
    model = training.model
    found: dict[str, Any] = {}
    parameters = list(training.network.parameters())
    found["local_elements"] = sum(
        (each.to_local() if isinstance(each, DTensor) else each).numel() for each in parameters
    )
    found["elements"] = sum(each.numel() for each in parameters)
    optimizer: Any = training.optimizer
    states = getattr(optimizer, "optim", optimizer).state.values()
    found["state_elements"] = sum(
        (value.to_local() if isinstance(value, DTensor) else value).numel()
        for state in states
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    )
    if isinstance(model, DistributedDataParallel):
        logged = model._get_ddp_logging_data()
        names = ("rebuilt_bucket_sizes", "gradient_as_bucket_view", "comm_hook")
        found |= {name: str(logged.get(name)) for name in names}
    return found


def train_all(rank: int, variants: dict[str, list[str]], world_size: int, folder: Path) -> None:
    """Train all variants as one rank."""
    torch.set_num_threads(1)
    kept: list[train.Training] = []
    set_up = train.set_up

    def keep(*given: Any) -> train.Training:
        kept.append(set_up(*given))
        return kept[-1]

    vars(train)["set_up"] = keep
    for name, words in variants.items():
        output = folder / name
        meet = f"file://{(folder / f'{name}.meet').absolute()}"
        args = make_parser().parse_args([*words, "--folder", str(output), "--init-method", meet])
        train.train(args, rank, rank, world_size)
        (output / f"seen{rank}.json").write_text(json.dumps(seen(kept.pop())), encoding="utf-8")
        # a process group that a forked loader worker finds as garbage waits there for threads it has not
        gc.collect()


if __name__ == "__main__":
    path, number, place = sys.argv[1:]
    chosen = json.loads(Path(path).read_text(encoding="utf-8"))
    spawn(train_all, (chosen, int(number), Path(place)), nprocs=int(number))
