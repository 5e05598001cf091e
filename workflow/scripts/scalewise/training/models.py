"""The networks, by the names the configuration knows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

ModelBuilder = Callable[[int, int, int, int], nn.Module]
"""(channels, height, width, classes) -> module from images to logits."""


def linear(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """One linear layer on the pixels: the smallest thing that trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))


def digits_cnn(channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Three 3x3 convolutions with batch normalisation, for images of 4 pixels and more.

    On 8x8 digits a step of 256 images is some tens of milliseconds on one CPU core: enough work for a
    second process to be worth having.
    """

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *stage(channels, 32),
        *stage(32, 64),
        nn.MaxPool2d(2),
        *stage(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


BUILDERS: dict[str, ModelBuilder] = {"digits_cnn": digits_cnn, "linear": linear}


def build(name: str, image_shape: torch.Size, classes: int) -> nn.Module:
    """The named network for images of [channels, height, width]."""
    channels, height, width = image_shape
    return BUILDERS[name](channels, height, width, classes)
