"""Names of the built-in models, which the planner must know without building them."""

from __future__ import annotations

import re

from scalewise.config.errors import unknown

MODELS = {"digits_cnn": True, "linear": False, "mnist_cnn": False, "resnet18": True, "wide_resnet": True}
"""Models of one size -> whether they normalise over the batch. The others carry their size in their names."""

SMALLEST_TRANSFORMER, LARGEST_TRANSFORMER = 1_000_000, 100_000_000_000

_WIDE_RESNET = re.compile(r"wrn-([1-9]\d{0,8})-[1-9]\d{0,8}", re.ASCII)
_TRANSFORMER = re.compile(r"transformer-(\d{1,9}(?:\.\d{1,9})?)([MG])", re.ASCII)


def known_models() -> list[str]:
    """List the names for the hint on an unknown one; an example stands for models of many sizes."""
    return [*MODELS, "wrn-28-10", "transformer-25M"]


def normalises_over_batch(model: str) -> bool:
    """Return whether a model normalises over the batch: it needs two images on each device.

    Raises:
        ValueError: An unknown name, or a size that no such model has.
    """
    if model.startswith("wrn-"):
        match = _WIDE_RESNET.fullmatch(model)
        if match is None or int(match[1]) < 10 or (int(match[1]) - 4) % 6:
            raise ValueError(
                f"is {model!r}, which is no wide ResNet. Write wrn-DEPTH-WIDENING with a depth of 6n + 4, "
                "such as wrn-28-10."
            )
        return True
    if model.startswith("transformer-"):
        match = _TRANSFORMER.fullmatch(model)
        millions = float(match[1]) * (1000 if match[2] == "G" else 1) if match else 0
        if not SMALLEST_TRANSFORMER <= millions * 1e6 <= LARGEST_TRANSFORMER:
            raise ValueError(
                f"is {model!r}, which is no transformer of a possible size. Write its parameters, from "
                "transformer-1M to transformer-100G."
            )
        return False
    try:
        return MODELS[model]
    except KeyError:
        raise unknown(model, known_models()) from None
