"""A transformer encoder on image patches with about as many parameters as one asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

TOLERANCE = 0.05
WIDTH_TO_DEPTH = 40
"""Usual proportion: vision transformers have 32 (S) to 64 (B), and 35 to 43 beyond."""

LARGEST_PATCH = 16
PATCHES_A_SIDE = 8


class TransformerSizeError(ValueError):
    """No transformer on such images has so few parameters."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of an encoder, and its number of parameters by arithmetic alone.

    Args:
        image: (channels, height, width).
        classes: Number of classes.
        width: Channels of a token.
        depth: Number of layers.
    """

    image: tuple[int, int, int]
    classes: int
    width: int
    depth: int

    @property
    def patch(self) -> int:
        """Height and width of a patch: a power of two that leaves 8 patches or less, of 16 at most."""
        shorter = min(self.image[1:])
        return min(LARGEST_PATCH, 1 << max(0, math.ceil(math.log2(shorter / PATCHES_A_SIDE))))

    @property
    def grid(self) -> tuple[int, int]:
        """Patches from top to bottom and from left to right; the last ones may be padded."""
        return math.ceil(self.image[1] / self.patch), math.ceil(self.image[2] / self.patch)

    @property
    def tokens(self) -> int:
        """Number of patches."""
        return math.prod(self.grid)

    @property
    def heads(self) -> int:
        """Heads of 64 channels, or of 32 in a narrow network."""
        return self.width // (64 if self.width % 64 == 0 else 32)

    @property
    def parameters(self) -> int:
        """Number of parameters: patch embedding and positions, layers, last normalisation and head."""
        width = self.width
        embedding = (self.image[0] * self.patch**2 + 1 + self.tokens) * width
        attention = 4 * width**2 + 4 * width
        perceptron = 8 * width**2 + 5 * width
        layer = attention + perceptron + 4 * width
        return embedding + self.depth * layer + 2 * width + (width + 1) * self.classes


def architecture(parameters: int, image: torch.Size, classes: int) -> Architecture:
    """The encoder of usual proportions among those with the asked number of parameters.

    Args:
        parameters: The number asked for; the result has as many within 5 %.
        image: [channels, height, width].
        classes: Number of classes.

    Raises:
        TransformerSizeError: Patches, positions and classes alone take more.
    """
    shape = (image[0], image[1], image[2])
    candidates = []
    for width in (*range(32, 256, 32), *range(256, 16385, 64)):
        least = Architecture(shape, classes, width, 1)
        layer = Architecture(shape, classes, width, 2).parameters - least.parameters
        depth = max(1, 1 + round((parameters - least.parameters) / layer))
        candidates.append(Architecture(shape, classes, width, depth))

    def error(candidate: Architecture) -> float:
        return abs(candidate.parameters / parameters - 1)

    def oddity(candidate: Architecture) -> float:
        # one per cent of the parameters weighs as much as a tenth of the proportion
        return abs(math.log(candidate.width / candidate.depth / WIDTH_TO_DEPTH)) + 10 * error(candidate)

    near = [candidate for candidate in candidates if error(candidate) <= TOLERANCE]
    if near:
        return min(near, key=oddity)
    nearest = min(candidates, key=error)
    raise TransformerSizeError(
        f"no transformer on images of {list(image)} and {classes} classes has {parameters:,} parameters "
        f"within {100 * TOLERANCE:.0f} %: the nearest has {nearest.parameters:,}. "
        "Ask for about as many, or for more."
    )


def transformer(image: torch.Size, classes: int, parameters: int) -> nn.Module:
    """An encoder (Dosovitskiy et al., arXiv:2010.11929) with the mean of all patches before the head.

    Args:
        image: [channels, height, width].
        classes: Number of classes.
        parameters: The number asked for; the result has as many within 5 %.

    Raises:
        TransformerSizeError: Patches, positions and classes alone take more.
    """
    return Encoder(architecture(parameters, image, classes))


class Encoder(nn.Module):
    """Patches, layers, mean, logits."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        self.patches = Patches(sizes)
        self.layers = nn.ModuleList(Layer(sizes.width, sizes.heads) for _ in range(sizes.depth))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] -> [batch, classes]."""
        tokens: torch.Tensor = self.patches(images)
        for layer in self.layers:
            tokens = layer(tokens)
        logits: torch.Tensor = self.head(self.norm(tokens).mean(dim=1))
        return logits


class Patches(nn.Module):
    """One token a patch, with its place added."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        channels, height, width = sizes.image
        rows, columns = sizes.grid
        # left, right, top, bottom
        self.padding = (0, columns * sizes.patch - width, 0, rows * sizes.patch - height)
        self.embed = nn.Conv2d(channels, sizes.width, sizes.patch, sizes.patch)
        self.places = nn.Parameter(torch.empty(sizes.tokens, sizes.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the places anew; ``embed`` has a method of its own, as every module of torch."""
        nn.init.normal_(self.places, std=0.02)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] -> [batch, tokens, width]."""
        if any(self.padding):
            images = functional.pad(images, self.padding)
        tokens: torch.Tensor = self.embed(images).flatten(2).transpose(1, 2)
        return tokens + self.places


class Layer(nn.Module):
    """Attention, then a perceptron of one hidden layer, each on normalised tokens and added to them.

    Args:
        width: Channels of a token.
        heads: Number of attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] -> [batch, tokens, width]."""
        # [3, batch, heads, tokens, channels of a head]
        split = self.queries_keys_values(self.norm1(tokens)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        tokens = tokens + self.joined(attended.transpose(1, 2).flatten(2))
        changed: torch.Tensor = self.perceptron(self.norm2(tokens))
        return tokens + changed
