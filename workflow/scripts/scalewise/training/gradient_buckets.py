"""The buckets in which DistributedDataParallel sends gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import _DEFAULT_FIRST_BUCKET_BYTES as FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
from torch.distributed import _compute_bucket_assignment_by_size as assign_by_size  # type: ignore[attr-defined]

from scalewise.plan.config.settings import Settings

DEFAULT_BUCKET_MB = 25
"""DistributedDataParallel's own size, where no bucket_cap_mb is set; its first bucket is then smaller."""

MEBIBYTE = 1024 * 1024

BYTES_AS_THEY_TRAVEL = {"fp16": 2, "bf16": 2}
"""Bytes of an element that a communication hook makes smaller."""


def bucket_assignment(
    parameters: Sequence[torch.Tensor], order: Sequence[int], bucket_cap_mb: int | None
) -> list[list[int]]:
    """The buckets that DistributedDataParallel builds after its first step, by torch's own function.

    Args:
        parameters: Those of the model's that have gradients.
        order: Their indices, as their gradients become ready.
        bucket_cap_mb: The setting; None for torch's own, whose first bucket is smaller.

    Returns:
        Indices of the parameters of each bucket, in the order in which buckets travel.
    """
    cap = (bucket_cap_mb or DEFAULT_BUCKET_MB) * MEBIBYTE
    first = cap if bucket_cap_mb else int(FIRST_BUCKET_BYTES)
    buckets, _ = assign_by_size([parameters[index] for index in order], [first, cap])
    return [[order[place] for place in bucket] for bucket in buckets]


def travelling_bytes(weight: torch.Tensor, settings: Settings) -> int:
    """Bytes of a weight's gradient on its way to the other ranks."""
    size = BYTES_AS_THEY_TRAVEL.get(settings.communication_hook, weight.element_size())
    return weight.numel() * size
