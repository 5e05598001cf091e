"""Models that take memory of a GPU: as study and runs name them, `gpu_models.py:build_...`."""

from __future__ import annotations

import torch
from torch import nn

from scalewise.training.models.transformer import Architecture, Encoder

HELD_BYTES = 32 << 30
"""More than all other tests take together."""

TOO_MANY_BYTES = 1 << 42
"""Four tebibytes, which no GPU has."""


class Holding(nn.Module):
    """A linear layer that holds memory of its GPU beside its weights, from its first pass on."""

    def __init__(self, image: torch.Size, classes: int, held_bytes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)
        self.held_bytes = held_bytes
        self.held: torch.Tensor | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # a new model is tried on the host first
        if self.held is None and images.is_cuda:
            self.held = torch.empty(self.held_bytes, dtype=torch.uint8, device=images.device)
        logits: torch.Tensor = self.layer(images.flatten(1))
        return logits


def build_holding(image: torch.Size, classes: int) -> nn.Module:
    return Holding(image, classes, HELD_BYTES)


def build_too_large(image: torch.Size, classes: int) -> nn.Module:
    return Holding(image, classes, TOO_MANY_BYTES)


def build_deep(image: torch.Size, classes: int) -> nn.Module:
    """Two hundred million parameters in 256 narrow layers, beside which activations are little."""
    return Encoder(Architecture((image[0], image[1], image[2]), classes, 256, 256))
