"""Options of ``train.py``, which are keys of experiments.yaml, and the optimizers and schedules they name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    StepLR,
)

STEP_FACTOR = 0.7
"""Factor of the step schedule, after each epoch."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; config/README.md explains the options."""
    parser = argparse.ArgumentParser("train.py", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("--data", type=Path, help="a prepared file; default: resources/datasets/DATASET/dataset.safetensors")
    add("--dataset", default="digits", help="name of a prepared dataset")
    add("--folder", type=Path, default=Path("trained"), help="receives epochs.csv, checkpoints and weights")
    add("--model", default="digits_cnn")
    add("--batch-size-per-device", type=int, default=128)
    add("--accumulation-steps", type=int, default=1)
    add("--epochs", type=int, default=10)
    add("--steps", type=int, help="end after so many optimizer steps, without an evaluation")
    add("--stop-at-accuracy", type=float)
    add("--stop-patience-epochs", type=int, default=1)
    add("--optimizer", choices=("sgd", "adam", "adamw", "adadelta"), default="sgd")
    add("--learning-rate", type=float, default=0.1)
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=0.0)
    add("--schedule", choices=("constant", "step", "cosine", "onecycle"), default="constant")
    add("--crop-padding", type=int, default=0)
    add("--horizontal-flip", action=switch, default=False)
    add("--image-size", type=int)
    add("--loader", choices=("resident", "workers"), default="resident")
    add("--workers", type=int, default=1, help="processes of the workers loader")
    add("--precision", choices=("fp32", "tf32", "bf16", "fp16"), default="fp32")
    add("--channels-last", action=switch, default=False)
    add("--compile", choices=("no", "default", "reduce-overhead"), default="no", help="mode of torch.compile")
    add("--parallelism", choices=("ddp", "zero1", "fsdp"), default="ddp")
    add("--gradient-as-bucket-view", action=switch, default=False)
    add("--bucket-cap-mb", type=int)
    add("--communication-hook", choices=("none", "fp16", "bf16"), default="none")
    add("--save-model", action=switch, default=False)
    add("--seed", type=int, default=1)
    add("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--init-method", default="env://", help="env://, or file:///path of a file that is not there yet")
    add("--timeout-seconds", type=int, default=600, help="a rank waits this long for another")
    add("--spawn", type=int, help="start so many ranks on this node by torch.multiprocessing")
    add("--nodes", type=int, default=1, help="nodes on which --spawn starts ranks")
    return parser


def build_optimizer(
    args: argparse.Namespace, parameters: Iterable[nn.Parameter], world_size: int
) -> optim.Optimizer:
    """Build the optimizer; with zero1 its states are divided among the ranks."""
    # fused: one kernel for all parameters, and no copies of their gradients. SGD has none for the shards of
    # fsdp, Adadelta none at all
    sharded = args.parallelism == "fsdp" and world_size > 1
    kind: type[optim.Optimizer]
    options: dict[str, Any] = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    if args.optimizer == "sgd":
        kind, options = optim.SGD, options | {"momentum": args.momentum, "fused": not sharded}
    elif args.optimizer == "adadelta":
        kind = optim.Adadelta
    else:
        kind, options = {"adam": optim.Adam, "adamw": optim.AdamW}[args.optimizer], options | {"fused": True}
    if args.parallelism == "zero1" and world_size > 1:
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)
    optimizer = kind(parameters, **options)
    if args.optimizer == "sgd" and args.momentum and not sharded:
        begin_momentum(optimizer)
    return optimizer


def begin_momentum(optimizer: optim.Optimizer) -> None:
    """Set the momentum of every weight to zero, which its first step turns into the gradient.

    By default fused SGD allocates the momentum in its first step. If a scaled gradient has overflowed, it
    skips that step and leaves the memory uninitialized, and the next step begins from that.
    """
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.requires_grad:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def build_schedule(args: argparse.Namespace, optimizer: optim.Optimizer, steps_per_epoch: int) -> LRScheduler:
    """Build the learning-rate schedule, counted in optimizer steps also if its unit is an epoch."""
    total = args.epochs * steps_per_epoch
    if args.schedule == "onecycle":
        # cycle_momentum would change the momentum that the options state
        peak = optimizer.param_groups[0]["lr"]
        return OneCycleLR(optimizer, max_lr=peak, total_steps=total, cycle_momentum=False)
    if args.schedule == "step":
        return StepLR(optimizer, steps_per_epoch, STEP_FACTOR)
    if args.schedule == "cosine":
        return CosineAnnealingLR(optimizer, T_max=total)
    return LambdaLR(optimizer, lambda _step: 1.0)
