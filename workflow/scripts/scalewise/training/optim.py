"""Optimizers and learning-rate schedules, by the names the configuration knows."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, StepLR

from scalewise.plan.config import Settings


def build_optimizer(settings: Settings, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """The optimizer of the settings."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return optim.Adam(parameters, lr=rate, weight_decay=decay)
    if settings.optimizer == "adadelta":
        return optim.Adadelta(parameters, lr=rate, weight_decay=decay)
    return optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay)


def build_schedule(settings: Settings, optimizer: optim.Optimizer, steps_per_epoch: int) -> LRScheduler:
    """The schedule of the settings, counted in optimizer steps whatever its own unit is."""
    if settings.schedule == "onecycle":
        # cycle_momentum would change the momentum that the settings state
        return OneCycleLR(
            optimizer,
            max_lr=settings.learning_rate,
            total_steps=settings.epochs * steps_per_epoch,
            cycle_momentum=False,
        )
    if settings.schedule == "step":
        return StepLR(optimizer, settings.schedule_step_epochs * steps_per_epoch, settings.schedule_gamma)
    return LambdaLR(optimizer, lambda _step: 1.0)
