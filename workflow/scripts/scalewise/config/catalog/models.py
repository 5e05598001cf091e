"""Requirements of models, which the planner must know without building them.

The training package builds them; a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scalewise.config.errors import RefusedValueError

SMALLEST_TRANSFORMER, LARGEST_TRANSFORMER = 1_000_000, 100_000_000_000

_NUMBER = r"[1-9]\d{0,8}"
_WIDE_RESNET = re.compile(rf"wrn-({_NUMBER})-({_NUMBER})", re.ASCII)
_TRANSFORMER = re.compile(r"transformer-(\d{1,9}(?:\.\d{1,9})?)([MG])", re.ASCII)
_MILLIONTHS = {"M": 1, "G": 1000}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's demands on its batches.

    Args:
        batch_norm: Normalises over the batch, so a batch of one image per device cannot train.
        min_pixels: Least height and width of an image.
    """

    batch_norm: bool
    min_pixels: int


IMAGENET_STEM_PIXELS = 64
"""Least height and width of images for ResNet-18's ImageNet stem; smaller ones get one with other weights."""

MODELS = {
    "digits_cnn": ModelFacts(True, 4),
    "linear": ModelFacts(False, 1),
    "mnist_cnn": ModelFacts(False, 6),
    "resnet18": ModelFacts(True, 8),
    "wide_resnet": ModelFacts(True, 4),
}
"""Models of one size. The others carry their size in their names."""


def model_facts(model: str) -> ModelFacts:
    """Look up a model's demands on its batches.

    Args:
        model: A known name, ``wrn-28-10`` or ``transformer-25M``.

    Raises:
        KeyError: unknown name.
        RefusedValueError: a size that no such model has.
    """
    if is_wide_resnet(model):
        wide_resnet_shape(model)
        return ModelFacts(batch_norm=True, min_pixels=4)
    if is_transformer(model):
        transformer_parameters(model)
        return ModelFacts(batch_norm=False, min_pixels=1)
    return MODELS[model]


def known_models() -> list[str]:
    """List the names for the hint on an unknown one; an example stands for models of many sizes."""
    return [*MODELS, "wrn-28-10", "transformer-25M"]


def is_wide_resnet(model: str) -> bool:
    """Whether the name means a wide residual network of a depth and a widening factor."""
    return model.split("-", maxsplit=1)[0] == "wrn"


def is_transformer(model: str) -> bool:
    """Whether the name means a transformer encoder with a number of parameters."""
    return model.split("-", maxsplit=1)[0] == "transformer"


def wide_resnet_shape(model: str) -> tuple[int, int]:
    """``wrn-28-10`` -> (28, 10): depth and widening factor.

    Raises:
        RefusedValueError: there is no such network.
    """
    match = _WIDE_RESNET.fullmatch(model)
    if match is None:
        raise RefusedValueError(
            f"is {model!r}, but a wide ResNet is named by its depth and its widening factor",
            "Write for instance wrn-28-10.",
        )
    depth, widening = int(match[1]), int(match[2])
    if depth < 10 or (depth - 4) % 6:
        below = max(10, (depth - 4) // 6 * 6 + 4)
        nearest = f"wrn-{below}-{widening}"
        if depth > below:
            nearest += f" or wrn-{below + 6}-{widening}"
        raise RefusedValueError(
            f"is {model!r}, but the depth of a wide ResNet is 6n + 4 and {depth} is not", f"Use {nearest}."
        )
    return depth, widening


def transformer_parameters(model: str) -> int:
    """``transformer-25M`` -> 25,000,000 parameters; ``transformer-1.5G`` -> 1,500,000,000.

    Raises:
        RefusedValueError: no number, or one outside the supported range.
    """
    match = _TRANSFORMER.fullmatch(model)
    if match is None:
        raise RefusedValueError(
            f"is {model!r}, but a transformer is named by its number of parameters",
            "Write for instance transformer-25M or transformer-1.5G.",
        )
    parameters = round(float(match[1]) * _MILLIONTHS[match[2]] * 1_000_000)
    if not SMALLEST_TRANSFORMER <= parameters <= LARGEST_TRANSFORMER:
        raise RefusedValueError(
            f"is {model!r}, {parameters:,} parameters, but transformers are built from "
            f"{SMALLEST_TRANSFORMER:,} to {LARGEST_TRANSFORMER:,}",
            "Use a number between transformer-1M and transformer-100G.",
        )
    return parameters
