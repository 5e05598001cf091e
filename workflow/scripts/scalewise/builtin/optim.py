"""Build optimizers and learning-rate schedules by their names in the configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, assert_never

import torch
from torch import nn, optim
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
    StepLR,
)

from scalewise.plan.config.settings import Settings

STATES_OF_A_WEIGHT = {"sgd": 1, "adam": 2, "adamw": 2, "adadelta": 2}
"""Largest number of tensors that an optimizer keeps for each weight."""


def initial_rate(settings: Settings, world_size: int) -> float:
    """Return the learning rate that a schedule starts from, or peaks at, on so many devices."""
    factors = {"none": 1.0, "linear": float(world_size), "sqrt": math.sqrt(world_size)}
    return settings.learning_rate * factors[settings.learning_rate_scaling]


def build_optimizer(
    settings: Settings, parameters: Iterable[nn.Parameter], world_size: int
) -> optim.Optimizer:
    """Build the optimizer of the settings; with zero1 its states are divided among the ranks."""
    kind, options = _optimizer(settings)
    options |= {"lr": initial_rate(settings, world_size), "weight_decay": settings.weight_decay}
    if settings.parallelism == "zero1":
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **options)
    optimizer = kind(parameters, **options)
    if isinstance(optimizer, optim.SGD) and settings.momentum and options["fused"]:
        _begin_momentum(optimizer)
    return optimizer


def _begin_momentum(optimizer: optim.SGD) -> None:
    """Set the momentum of every weight to zero, which its first step turns into the gradient.

    By default fused SGD allocates the momentum in its first step. If a scaled gradient has overflowed, it
    skips that step and leaves the memory uninitialized, and the next step begins from that.
    """
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.requires_grad:
                optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def _optimizer(settings: Settings) -> tuple[type[optim.Optimizer], dict[str, Any]]:
    # fused: one kernel for all parameters, and no copies of their gradients. SGD has none for the shards of
    # fsdp, Adadelta none at all
    fused = settings.parallelism != "fsdp"
    if settings.optimizer == "adam":
        return optim.Adam, {"fused": fused}
    if settings.optimizer == "adamw":
        return optim.AdamW, {"fused": fused}
    if settings.optimizer == "adadelta":
        return optim.Adadelta, {}
    if settings.optimizer == "sgd":
        return optim.SGD, {"momentum": settings.momentum, "fused": fused}
    assert_never(settings.optimizer)


def build_schedule(settings: Settings, optimizer: optim.Optimizer, steps_per_epoch: int) -> LRScheduler:
    """Build the schedule of the settings, counted in optimizer steps also if its unit is an epoch."""
    total = settings.epochs * steps_per_epoch
    warmup = round(settings.learning_rate_warmup_epochs * steps_per_epoch)
    if settings.schedule == "onecycle":
        # cycle_momentum would change the momentum that the settings state
        peak = optimizer.param_groups[0]["lr"]
        return OneCycleLR(optimizer, max_lr=peak, total_steps=total, cycle_momentum=False)
    # LinearLR reaches the full rate after its last step, so that the first step already moves
    rise = LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup) if warmup else None
    after: LRScheduler
    if settings.schedule == "step":
        after = StepLR(optimizer, settings.schedule_step_epochs * steps_per_epoch, settings.schedule_gamma)
    elif settings.schedule == "cosine":
        after = CosineAnnealingLR(optimizer, T_max=max(total - warmup, 1))
    else:
        after = LambdaLR(optimizer, lambda _step: 1.0)
    return after if rise is None else SequentialLR(optimizer, [rise, after], milestones=[warmup])
