"""A transformer encoder on image patches, of a requested number of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

TOLERANCE = 0.05
WIDTH_TO_DEPTH = 40
"""Usual proportion of vision transformers: 32 (S) to 64 (B), and 35 to 43 in larger ones."""

LARGEST_PATCH = 16
PATCHES_A_SIDE = 8


class TransformerSizeError(ValueError):
    """No transformer for these images and classes has the requested number of parameters."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of an encoder. Its number of parameters is computed without building it.

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
        """Height and width of a patch: a power of two, for 8 patches on the shorter side; 16 at most."""
        shorter = min(self.image[1:])
        return min(LARGEST_PATCH, 1 << max(0, math.ceil(math.log2(shorter / PATCHES_A_SIDE))))

    @property
    def grid(self) -> tuple[int, int]:
        """Numbers of rows and columns of patches; the last ones may be padded."""
        return math.ceil(self.image[1] / self.patch), math.ceil(self.image[2] / self.patch)

    @property
    def tokens(self) -> int:
        """Number of patches."""
        return math.prod(self.grid)

    @property
    def heads(self) -> int:
        """Number of attention heads: of 64 channels each, or of 32 if the width is no multiple of 64."""
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
    """Choose the encoder of the most usual proportions among those with the requested number of parameters.

    Args:
        parameters: The requested number; that of the result is within 5 % of it.
        image: [channels, height, width].
        classes: Number of classes.

    Raises:
        TransformerSizeError: Embedding, positions and head take more than that.
    """
    shape = (image[0], image[1], image[2])
    candidates = []
    for width in (*range(32, 256, 32), *range(256, 16385, 64)):
        one_layer = Architecture(shape, classes, width, 1).parameters
        layer = Architecture(shape, classes, width, 2).parameters - one_layer
        depth = max(1, 1 + round((parameters - one_layer) / layer))
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
        "Request about as many, or more."
    )


class Encoder(nn.Module):
    """Patches, layers, mean over all tokens, logits (Dosovitskiy et al., arXiv:2010.11929)."""

    def __init__(self, sizes: Architecture) -> None:
        super().__init__()
        channels, height, width = sizes.image
        rows, columns = sizes.grid
        # left, right, top, bottom
        self.padding = (0, columns * sizes.patch - width, 0, rows * sizes.patch - height)
        self.embed = nn.Conv2d(channels, sizes.width, sizes.patch, sizes.patch)
        self.positions = nn.Parameter(torch.empty(sizes.tokens, sizes.width))
        nn.init.normal_(self.positions, std=0.02)
        # not nn.TransformerEncoder: it copies one layer, so that all begin with the same weights
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    sizes.width,
                    sizes.heads,
                    dim_feedforward=4 * sizes.width,
                    dropout=0.0,
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(sizes.depth)
            )
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] -> [batch, classes]."""
        if any(self.padding):
            images = functional.pad(images, self.padding)
        tokens: torch.Tensor = self.embed(images).flatten(2).transpose(1, 2)
        logits: torch.Tensor = self.head(self.norm(self.layers(tokens + self.positions)).mean(dim=1))
        return logits
