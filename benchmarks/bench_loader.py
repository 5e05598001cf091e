"""The resident loader against torchvision's per-sample path, batch after batch, on one CPU thread.

MNIST's shape as it is, CIFAR-10's with a random crop and flip; the pixels are random.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .measure import Row, compare, interleave
from .one_rank import CROPS, host_epoch, host_loader, loader_epochs, one_rank, random_images, training_of

ROUNDS = 15
BATCH = 64
SAMPLES = 50_000
# A part of an epoch takes long enough. That it stays in the caches more than a whole epoch would
# favours the reference.
REFERENCE_SAMPLES = 6_000
SMALL = {"ROUNDS": 1, "SAMPLES": 640, "REFERENCE_SAMPLES": 640}


def rows() -> list[Row]:
    """Load both datasets, each with its reference in turn."""
    with one_rank() as device:
        return [
            row(device, "MNIST images/s", random_images(SAMPLES, 1, 28), {}, epochs=12, least=80),
            row(
                device, "CIFAR images/s with crop and flip", random_images(SAMPLES), CROPS, epochs=2, least=20
            ),
        ]


def row(
    device: torch.device,
    what: str,
    dataset: Mapping[str, torch.Tensor],
    crops: Mapping[str, Any],
    *,
    epochs: int,
    least: float,
) -> Row:
    """Load whole epochs of ours, with their sampler, and a part of one of torchvision's, in turn."""
    settings = {"model": "linear", "batch_size_per_device": BATCH, **crops}
    ours = loader_epochs(training_of(settings, dataset, device), epochs)
    reference = host_epoch(host_loader(dataset, BATCH, crops=bool(crops), samples=REFERENCE_SAMPLES), device)
    interleave(ours, reference, rounds=1)
    our_seconds, reference_seconds = interleave(ours, reference, ROUNDS)
    samples = SAMPLES // BATCH * BATCH * epochs
    rates = (
        [samples / seconds for seconds in our_seconds],
        [REFERENCE_SAMPLES / seconds for seconds in reference_seconds],
    )
    return compare(f"loader: {what}, by cpu time", rates, digits=0, ratio_digits=1, least=least)
