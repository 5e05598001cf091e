"""Networks by their names in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from scalewise.builtin.models.resnets import paper_wide_resnet, resnet18, wide_resnet
from scalewise.builtin.models.transformer import transformer
from scalewise.plan.catalog.models import (
    is_transformer,
    is_wide_resnet,
    takes_pretrained,
    transformer_parameters,
    wide_resnet_shape,
)

ModelBuilder = Callable[[torch.Size, int], nn.Module]
"""A function of the shape of an image, [channels, height, width], and the number of classes."""


def linear(image: torch.Size, classes: int) -> nn.Module:
    """Build one linear layer on the pixels, the smallest network that trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(image.numel(), classes))


def digits_cnn(image: torch.Size, classes: int) -> nn.Module:
    """Build three 3x3 convolutions with batch normalisation, for images of 4 pixels or more.

    A step of 256 digits of 8x8 pixels takes some tens of milliseconds on one CPU core: enough for a second
    process to be faster.
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


def mnist_cnn(image: torch.Size, classes: int) -> nn.Module:
    """Build the network of PyTorch's MNIST example, which tutorials on several GPUs train: 1.2 M parameters.

    It returns logits, not their log-softmax, which the loss takes. The linear layer after the convolutions
    grows with the image, which needs 6 pixels or more.
    """
    height, width = ((pixels - 4) // 2 for pixels in image[1:])
    return nn.Sequential(
        nn.Conv2d(image[0], 32, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3),
        # the example pools after the ReLU: the same values and gradients, for four times the work
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * height * width, 128),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


BUILDERS: dict[str, ModelBuilder] = {
    "digits_cnn": digits_cnn,
    "linear": linear,
    "mnist_cnn": mnist_cnn,
    "resnet18": resnet18,
    "wide_resnet": wide_resnet,
}


def build(
    model: str,
    image: torch.Size,
    classes: int,
    weights: Path | None = None,
    device: torch.device | None = None,
) -> nn.Module:
    """Build a network from images of shape [batch, *image] to logits of shape [batch, classes].

    Args:
        model: A name of the configuration.
        image: [channels, height, width].
        classes: Number of classes.
        weights: The prepared file of pretrained weights, for a model that takes them.
        device: Receives the network, whose first weights are drawn on the CPU; None to leave it there.

    Raises:
        KeyError: The name is unknown.
        TransformerSizeError: There is no transformer of the requested size for these images.
        DatasetError: The file of weights cannot be read, or does not fit the network.
    """
    if is_wide_resnet(model):
        network = paper_wide_resnet(image, classes, *wide_resnet_shape(model))
    elif is_transformer(model):
        network = transformer(image, classes, transformer_parameters(model))
    elif takes_pretrained(model):
        network = resnet18(image, classes, weights)
    else:
        network = BUILDERS[model](image, classes)
    return network if device is None else network.to(device)


def blocks(network: nn.Module) -> list[nn.Module]:
    """Return the parts that FSDP gathers one after the other: residual blocks, transformer layers.

    They are the composite modules in an ``nn.Sequential``; in a network without any, its layers. A stem or a
    head that is in none of them belongs to the network as a whole.
    """
    rows = [module for module in network.modules() if isinstance(module, nn.Sequential)]
    composite = [child for row in rows for child in row if any(map(_has_parameters, child.children()))]
    return composite or [child for child in network.children() if _has_parameters(child)]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
