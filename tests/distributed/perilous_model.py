"""A model that a run trains as its own file: what it draws and counts must survive, and it can end its rank.

Batch norm counts, dropout draws. The environment, which is no part of a run's settings, says how long a pass
takes and what happens at a chosen one, counted in each process from its first:

- ``PERIL_PAUSE``: seconds that a pass takes longer.
- ``PERIL_AT``: the pass at which ``PERIL_MARK``, a file, is made.
- ``PERIL_RANK`` and ``PERIL_IN``: the rank that then kills itself, in its ``forward`` or ``backward`` pass,
  or whose answers are not numbers, ``nan``.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn


class Perilous(nn.Module):
    def __init__(self, image: torch.Size, classes: int) -> None:
        super().__init__()
        channels, height, width = image
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(8 * height * width, 96),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Linear(96, classes),
        )
        self.passes = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        if self.training and torch.is_grad_enabled():
            self.passes += 1
            time.sleep(float(os.environ.get("PERIL_PAUSE", "0")))
            if self.passes == int(os.environ.get("PERIL_AT", "0")):
                return self._meet(logits)
        return logits

    def _meet(self, logits: torch.Tensor) -> torch.Tensor:
        Path(os.environ["PERIL_MARK"]).touch()
        how = os.environ.get("PERIL_IN")
        if how is None or os.environ["PERIL_RANK"] != os.environ["RANK"]:
            return logits
        if how == "forward":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "backward":
            logits.register_hook(lambda _gradient: os.kill(os.getpid(), signal.SIGKILL))
        return logits * float("nan") if how == "nan" else logits


def build(image: torch.Size, classes: int) -> nn.Module:
    return Perilous(image, classes)


def build_heavy(image: torch.Size, classes: int) -> nn.Module:
    """With 40 MB that nothing uses, so that a checkpoint takes its time."""
    network = Perilous(image, classes)
    network.ballast = nn.Parameter(torch.zeros(10_000_000), requires_grad=False)
    return network


class Steep(nn.Module):
    """Its gradients are too large for fp16 until its scaler has come down from 2^16."""

    def __init__(self, image: torch.Size, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(images.flatten(1))
        return 4096 * logits


def build_steep(image: torch.Size, classes: int) -> nn.Module:
    return Steep(image, classes)
