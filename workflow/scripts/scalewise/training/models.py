"""Networks by their names: small ones of tutorials, residual ones, and transformers of any size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from scalewise.training.transformer import Encoder, architecture

IMAGENET_STEM_PIXELS = 64
"""Least height and width of images for ResNet-18's ImageNet stem; smaller ones get one with other weights."""

GUIDE_CHANNELS = (16, 160, 320, 640)


def build(model: str, image: torch.Size, classes: int) -> nn.Module:
    """Build a network from images of shape [batch, *image] to logits of shape [batch, classes].

    Args:
        model: digits_cnn, linear, mnist_cnn, resnet18, wide_resnet, ``wrn-28-10`` (depth, widening) or
            ``transformer-25M`` (parameters).
        image: [channels, height, width].
        classes: Number of classes.

    Raises:
        KeyError: The name is unknown.
        TransformerSizeError: There is no transformer of the requested size for these images.
    """
    if model.startswith("wrn-"):
        depth, widening = map(int, model.split("-")[1:])
        return paper_wide_resnet(image, classes, depth, widening)
    if model.startswith("transformer-"):
        size = model.removeprefix("transformer-")
        parameters = round(float(size[:-1]) * {"M": 1e6, "G": 1e9}[size[-1]])
        return Encoder(architecture(parameters, image, classes))
    return BUILDERS[model](image, classes)


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


def linear(image: torch.Size, classes: int) -> nn.Module:
    """Build one linear layer on the pixels, the smallest network that trains."""
    return nn.Sequential(nn.Flatten(), nn.Linear(image.numel(), classes))


def digits_cnn(image: torch.Size, classes: int) -> nn.Module:
    """Build three 3x3 convolutions with batch normalisation, for images of 4 pixels or more.

    A step of 256 digits of 8x8 pixels takes some tens of milliseconds on one CPU core: enough for a second
    process to be faster.
    """
    return nn.Sequential(
        *_convolved(image[0], 32),
        *_convolved(32, 64),
        nn.MaxPool2d(2),
        *_convolved(64, 128),
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


def resnet18(image: torch.Size, classes: int) -> nn.Module:
    """Build torchvision's ResNet-18 (He et al., arXiv:1512.03385), for any number of channels.

    ImageNet's stem would shrink images of less than 64 pixels too far. They get the stem that is usual for
    CIFAR: a 3x3 convolution of stride 1, and no pooling.
    """
    # costs every rank of every other model more than a second
    from torchvision.models import resnet  # noqa: PLC0415

    network = cast(nn.Module, resnet.resnet18(weights=None, num_classes=classes))
    small = min(image[1:]) < IMAGENET_STEM_PIXELS
    if small or image[0] != 3:
        kernel, stride, padding = (3, 1, 1) if small else (7, 2, 3)
        network.conv1 = nn.Conv2d(image[0], 64, kernel, stride, padding, bias=False)
        _he_initialise(network.conv1)
    if small:
        network.maxpool = nn.Identity()
    return network


def wide_resnet(image: torch.Size, classes: int) -> nn.Module:
    """Build the WideResNet of the Sigma2 guide to training on several GPUs: 17.2 million parameters.

    Three stages of 160, 320 and 640 channels, two blocks each, with max pooling in between. The last
    pooling is over all pixels; the guide's is over 7x7 of the 8x8.
    """
    stem, *widths = GUIDE_CHANNELS
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_convolved(image[0], stem))
    before = stem
    for stage, width in enumerate(widths, start=1):
        if stage > 1:
            layers[f"pool{stage}"] = nn.MaxPool2d(2)
        layers[f"block{stage}a"] = GuideBlock(before, width)
        layers[f"block{stage}b"] = GuideBlock(width, width)
        before = width
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(before, classes)
    return nn.Sequential(layers)


class GuideBlock(nn.Module):
    """Two 3x3 convolutions, each normalised and rectified, plus a shortcut; nothing after the sum.

    Args:
        inputs: Channels before.
        outputs: Channels after; if they differ, the shortcut is a 1x1 convolution.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = _convolved(inputs, outputs)
        self.dropout = nn.Dropout(0.01)
        self.second = _convolved(outputs, outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, inputs, height, width] -> [batch, outputs, height, width]."""
        residual: torch.Tensor = self.second(self.dropout(self.first(x)))
        shortcut: torch.Tensor = self.shortcut(x)
        return residual + shortcut


def _convolved(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def paper_wide_resnet(image: torch.Size, classes: int, depth: int, widening: int) -> nn.Module:
    """Build WRN-d-k of Zagoruyko and Komodakis (arXiv:1605.07146), without dropout.

    WRN-28-10 has 36.5 million parameters.

    Args:
        image: [channels, height, width].
        classes: Number of classes.
        depth: 6n + 4 layers: three stages of n blocks.
        widening: Multiplies the 16, 32 and 64 channels of the stages.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Conv2d(image[0], 16, 3, padding=1, bias=False))
    before = 16
    for stage, width in enumerate((16 * widening, 32 * widening, 64 * widening), start=1):
        for block in range((depth - 4) // 6):
            stride = 2 if stage > 1 and block == 0 else 1
            layers[f"stage{stage}_block{block + 1}"] = PreactivationBlock(before, width, stride)
            before = width
    layers["norm"] = nn.BatchNorm2d(before)
    layers["relu"] = nn.ReLU(inplace=True)
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(before, classes)
    network = nn.Sequential(layers)
    _he_initialise(network)
    return network


class PreactivationBlock(nn.Module):
    """Two 3x3 convolutions, each after its normalisation and rectifier, plus a shortcut.

    Args:
        inputs: Channels before.
        outputs: Channels after.
        stride: The first convolution's; 2 halves height and width.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        changes = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, inputs, height, width] -> [batch, outputs, height / stride, width / stride]."""
        active: torch.Tensor = self.relu(self.norm1(x))
        residual: torch.Tensor = self.conv2(self.relu(self.norm2(self.conv1(active))))
        shortcut: torch.Tensor = x if self.shortcut is None else self.shortcut(active)
        return residual + shortcut


def _he_initialise(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


BUILDERS: dict[str, Callable[[torch.Size, int], nn.Module]] = {
    "digits_cnn": digits_cnn,
    "linear": linear,
    "mnist_cnn": mnist_cnn,
    "resnet18": resnet18,
    "wide_resnet": wide_resnet,
}
"""Functions of the shape of an image, [channels, height, width], and the number of classes."""
