"""The built-in training as a script of a user's: the same data, network and loop, without Scalewise's hooks.

torchrun --standalone --nproc-per-node=2 benchmarks/built_in_as_program.py --model mnist_cnn ... FILE
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "workflow" / "scripts"))

from scalewise.builtin.data import datasets
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.trainer import build_loaders, build_trainer
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import identify

TIMEOUT_SECONDS = 600.0


def main() -> None:
    """Train to the end of the last epoch, in the process group of the environment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="of one device")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("dataset", type=Path, help="a prepared file")
    options = parser.parse_args()
    dataset = datasets.load(options.dataset)
    settings = Settings.model_validate(
        {"dataset": "digits", "model": options.model, "epochs": options.epochs, "seed": options.seed}
    )
    identity, device = identify(os.environ, "torchrun"), torch.device("cpu")
    loaders = build_loaders(settings, dataset, identity.rank, device, TIMEOUT_SECONDS)
    dist.init_process_group("gloo")
    global_batch_size = options.batch_size * identity.world_size
    trainer = build_trainer(settings, global_batch_size, dataset, loaders, identity, device)
    train(trainer, TrainingState.start(device), lambda epoch: print(epoch, flush=True))
    # DistributedDataParallel must be gone before its process group
    del trainer
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
