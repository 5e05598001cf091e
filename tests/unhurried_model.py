"""A model whose steps wait more than they compute: a training without an end leaves the machine to others."""

from __future__ import annotations

import time

import torch
from torch import nn

STEP_SECONDS = 0.02


class Unhurried(nn.Module):
    def __init__(self, image: torch.Size, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(STEP_SECONDS)
        logits: torch.Tensor = self.layer(images.flatten(1))
        return logits


def build(image: torch.Size, classes: int) -> nn.Module:
    return Unhurried(image, classes)
