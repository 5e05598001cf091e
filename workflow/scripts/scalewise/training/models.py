"""The networks, by the names the configuration knows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

ModelBuilder = Callable[[torch.Size, int], nn.Module]
"""From the shape of an image, [channels, height, width], and the number of classes."""


def linear(image: torch.Size, classes: int) -> nn.Module:
    """One linear layer on the pixels: the smallest thing that trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(image.numel(), classes))


def digits_cnn(image: torch.Size, classes: int) -> nn.Module:
    """Three 3x3 convolutions with batch normalisation, for images of 4 pixels and more.

    On 8x8 digits a step of 256 images is some tens of milliseconds on one CPU core: enough work for a
    second process to be worth having.
    """

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *stage(image[0], 32),
        *stage(32, 64),
        nn.MaxPool2d(2),
        *stage(64, 128),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, classes),
    )


BUILDERS: dict[str, ModelBuilder] = {"digits_cnn": digits_cnn, "linear": linear}


def build(name: str, image: torch.Size, classes: int) -> nn.Module:
    """The named network, from images of shape [batch, *image] to logits [batch, classes]."""
    return BUILDERS[name](image, classes)
