"""Check the batch size on every device count."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scalewise.config.catalog.datasets import DatasetFacts
from scalewise.config.catalog.models import ModelFacts
from scalewise.config.errors import Problem
from scalewise.config.program import AnySettings
from scalewise.config.settings import Settings
from scalewise.config.shape import count_devices
from scalewise.plan.checks.options import Where, check_schedule, check_warmup
from scalewise.plan.runs.runs import batch_per_device, global_batch

BATCH_KEY = {"strong": "global_batch_size", "weak": "batch_size_per_device"}
"""The batch size that each scaling keeps."""

MAX_STEPS = 10_000_000
"""Most steps of an epoch; ImageNet with a batch of one image has 1.3 million."""

MIN_SAMPLES_PER_RANK = 2
"""Batch normalisation needs two values in a forward pass."""


def check_batch(
    where: Where, settings: Settings, facts: DatasetFacts, model: ModelFacts, world_sizes: list[int]
) -> Iterator[Problem]:
    """Refuse a batch size, with one problem for each mistake however many device counts it concerns."""
    key = BATCH_KEY[settings.scaling]
    stated: int | None = getattr(settings, key)
    if stated is None:
        return
    micro_batches = settings.accumulation_steps
    if indivisible := list(check_batch_divides(where, settings, world_sizes, facts.train_samples)):
        yield from indivisible
        return
    over = [why for size in world_sizes if (why := _excess(settings, size, facts.train_samples))]
    if over:
        otherwise = "" if settings.scaling == "strong" else ", or fewer devices"
        yield Problem(where(key), f"({stated}) {over[0]}", f"Use a smaller batch{otherwise}.")
        return
    most = max(world_sizes)
    per_device = batch_per_device(settings, most)
    if model.batch_norm and per_device < MIN_SAMPLES_PER_RANK:
        each = "per device and micro-batch" if micro_batches > 1 else "per device"
        yield Problem(
            where(key),
            f"({stated}) leaves {per_device} sample {each} on {count_devices(most)}, and "
            f"{settings.model} normalises over the batch",
            f"Use at least {MIN_SAMPLES_PER_RANK} {each}.",
        )
    totals = {size: global_batch(settings, size) for size in world_sizes}
    least = min(totals.values())
    if facts.train_samples // least > MAX_STEPS:
        yield Problem(
            where(key),
            f"({stated}) makes {facts.train_samples // least:,} steps of an epoch of {settings.dataset}",
            f"Use a larger batch: at most {MAX_STEPS:,} steps are possible.",
        )
        return
    # what does not fill a batch is left out of an epoch
    steps = {size: facts.train_samples // total for size, total in totals.items()}
    yield from check_warmup(where, settings, steps)
    yield from check_schedule(where, settings, steps)


def check_batch_divides(
    where: Where, settings: AnySettings, world_sizes: Sequence[int], train_samples: float = math.inf
) -> Iterator[Problem]:
    """Refuse a batch size that is not divisible by each device count; the fix names the nearest that are.

    Args:
        where: Gives the place of a key of the series.
        settings: One series' training.
        world_sizes: Device counts of the series.
        train_samples: Images in the training split; of a program's data that is unknown.
    """
    key = BATCH_KEY[settings.scaling]
    stated: int | None = getattr(settings, key)
    if stated is None:
        return
    indivisible = [why for size in world_sizes if (why := _not_divisible(settings, size))]
    if indivisible:
        common = math.lcm(*world_sizes) * settings.accumulation_steps
        below, above = stated // common * common, (stated // common + 1) * common
        nearest = f"Use {below} or {above}." if below else f"Use {above}."
        if not below and above > train_samples:
            nearest = (
                "Use fewer device counts: the smallest batch that all of these divide exceeds the dataset."
            )
        yield Problem(where(key), f"({stated}) {indivisible[0]}", nearest)


def _not_divisible(settings: AnySettings, world_size: int) -> str:
    """Return why the batch of strong scaling is not divisible; empty if it is."""
    micro_batches, batch = settings.accumulation_steps, settings.global_batch_size
    if settings.scaling != "strong" or batch is None or batch % (world_size * micro_batches) == 0:
        return ""
    parts = f"the world size ({world_size})"
    if micro_batches > 1:
        parts = f"{world_size * micro_batches}: {parts} times accumulation_steps ({micro_batches})"
    return f"is not divisible by {parts}"


def _excess(settings: Settings, world_size: int, train_samples: float) -> str:
    """Return how the global batch exceeds the training data; empty if it does not."""
    total, micro_batches = global_batch(settings, world_size), settings.accumulation_steps
    if total <= train_samples:
        return ""
    accumulated = f" over {micro_batches} micro-batches" if micro_batches > 1 else ""
    return (
        f"makes a global batch of {total} on {count_devices(world_size)}{accumulated}, but "
        f"{settings.dataset} has {train_samples} training samples"
    )
