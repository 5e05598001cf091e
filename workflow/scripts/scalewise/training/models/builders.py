"""The networks, by the names the configuration knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from scalewise.plan.catalog.models import (
    is_transformer,
    is_wide_resnet,
    takes_pretrained,
    transformer_parameters,
    wide_resnet_shape,
)
from scalewise.training.models.resnets import paper_wide_resnet, resnet18, wide_resnet
from scalewise.training.models.transformer import transformer

ModelBuilder = Callable[[torch.Size, int], nn.Module]
"""Builds a network for images of a shape, [channels, height, width], and a number of classes."""


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


def mnist_cnn(image: torch.Size, classes: int) -> nn.Module:
    """The network of PyTorch's MNIST example, which tutorials on several GPUs train: 1.2 M parameters.

    It gives logits where the example gives their log-softmax: our loss takes that. The linear layer after
    the convolutions grows with the image, which is to have 6 pixels or more.
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
    """The named network, from images of shape [batch, *image] to logits [batch, classes].

    Args:
        model: A name of the configuration.
        image: [channels, height, width].
        classes: Number of classes.
        weights: A safetensors file of pretrained weights, for a model that takes them.
        device: Receives the network, whose first weights are drawn on the CPU; None to leave it there.

    Raises:
        KeyError: The name is unknown.
        ValueError: The model cannot be built so; the message says why, and what to do.
    """
    network = _build(model, image, classes, weights)
    return network if device is None else network.to(device)


def _build(model: str, image: torch.Size, classes: int, weights: Path | None) -> nn.Module:
    if weights is not None:
        if not takes_pretrained(model):
            raise ValueError(f"{model} takes no pretrained weights ({weights}). Set pretrained: false.")
        return resnet18(image, classes, weights)
    if is_wide_resnet(model):
        return paper_wide_resnet(image, classes, *wide_resnet_shape(model))
    if is_transformer(model):
        return transformer(image, classes, transformer_parameters(model))
    return BUILDERS[model](image, classes)


def blocks(network: nn.Module) -> list[nn.Module]:
    """Parts to shard one by one, so that the parameters of one at a time need be whole.

    They are the composite modules that stand in a row, in an ``nn.Sequential`` or ``nn.ModuleList``: residual
    blocks, transformer layers. A network without any is divided into its layers.

    Args:
        network: Must not be sharded yet.

    Returns:
        No part within another, in the order of the network. What belongs to none of them, such as a stem or a
        head, is left for the network as a whole.
    """
    rows = list(_rows(network))
    if rows:
        return rows
    return [child for child in network.children() if _has_parameters(child) and not _only_holds(child)]


def _rows(module: nn.Module) -> Iterator[nn.Module]:
    in_a_row = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        holds_rows = isinstance(child, nn.Sequential) and any(map(_is_composite, child.children()))
        if in_a_row and _is_composite(child) and not holds_rows and not _only_holds(child):
            yield child
        else:
            yield from _rows(child)


def _is_composite(module: nn.Module) -> bool:
    return any(_has_parameters(child) for child in module.children())


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _only_holds(module: nn.Module) -> bool:
    """Lists and dictionaries of modules are never called, and so cannot be sharded themselves."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict)
