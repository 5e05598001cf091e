"""A transformer whose memory is its parameters': 64 narrow layers, of which none is much of the whole.

What a layer's backward pass holds for a moment beside the buckets, a gradient or two, is 1 % of its 50
million parameters.
"""

from __future__ import annotations

import torch
from torch import nn

from scalewise.training.models.transformer import Architecture, Encoder

WIDTH, DEPTH = 256, 64


def build(image: torch.Size, classes: int) -> nn.Module:
    """The network, as a study names it: ``model: deep_transformer.py:build``."""
    return Encoder(Architecture((image[0], image[1], image[2]), classes, WIDTH, DEPTH))
