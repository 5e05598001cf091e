"""Rules of the batch size: what every device count, measured or predicted, makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scalewise.plan.catalog.datasets import DatasetFacts
from scalewise.plan.catalog.models import ModelFacts
from scalewise.plan.checks.options import Where, check_schedule, check_warmup
from scalewise.plan.config.errors import Problem
from scalewise.plan.config.experiment import AnyExperiment
from scalewise.plan.config.program import AnySettings
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import count_devices
from scalewise.plan.runs.batches import MIN_SAMPLES_PER_RANK, step_sizes
from scalewise.plan.runs.runs import batch_per_device, global_batch

BATCH_KEY = {"strong": "global_batch_size", "weak": "batch_size_per_device"}
"""The batch size that each scaling keeps."""

MAX_STEPS = 10_000_000
"""Most steps of an epoch; ImageNet image by image has 1.3 million."""


def check_batch(
    where: Where, settings: Settings, facts: DatasetFacts, model: ModelFacts, world_sizes: list[int]
) -> Iterator[Problem]:
    """One problem a mistake, however many device counts it shows on."""
    key = BATCH_KEY[settings.scaling]
    stated: int | None = getattr(settings, key)
    if stated is None:
        return
    passes = settings.accumulation_steps
    if indivisible := list(check_batch_divides(where, settings, world_sizes, facts.train_samples)):
        yield from indivisible
        return
    over = [why for size in world_sizes if (why := _over_the_data(settings, size, facts.train_samples))]
    if over:
        otherwise = "" if settings.scaling == "strong" else ", or fewer devices"
        yield Problem(where(key), f"({stated}) {over[0]}", f"Use a smaller batch{otherwise}.")
        return
    most = max(world_sizes)
    per_device = batch_per_device(settings, most)
    if model.batch_norm and per_device < MIN_SAMPLES_PER_RANK:
        each = "per device and pass" if passes > 1 else "per device"
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
    sizes = {size: step_sizes(facts.train_samples, total, size * passes) for size, total in totals.items()}
    yield from check_warmup(where, settings, sizes)
    yield from check_schedule(where, settings, sizes)


def check_batch_divides(
    where: Where, settings: AnySettings, world_sizes: Sequence[int], most: float = math.inf
) -> Iterator[Problem]:
    """Refuse a batch that some device count does not divide, with the nearest that all do.

    Args:
        where: Gives the place of a key of the series.
        settings: One series' training.
        world_sizes: Device counts of the series.
        most: Training samples, which no batch can exceed.
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
        if not below and above > most:
            nearest = "Have fewer device counts: what all of these divide is more than the data."
        yield Problem(where(key), f"({stated}) {indivisible[0]}", nearest)


def check_projected_batch(
    where: Where, experiment: AnyExperiment, settings: AnySettings, train_samples: float = math.inf
) -> Iterator[Problem]:
    """Device counts on which a series could not be trained as it is, so that a prediction means nothing.

    Args:
        where: Gives the place of a key of the series.
        experiment: The device counts stand in ``project``.
        settings: The series, of which every device count is a run.
        train_samples: Images in the training split; of a program's data that is unknown.
    """
    key = BATCH_KEY[settings.scaling]
    batch: int | None = getattr(settings, key)
    # a batch over the dataset is refused by itself
    if experiment.project is None or batch is None or batch > train_samples:
        return
    for index, devices in enumerate(experiment.project.devices):
        here = (*where("project"), "devices", index)
        why = _not_divisible(settings, devices)
        if not why and isinstance(settings, Settings):
            why = _over_the_data(settings, devices, train_samples)
        if why:
            yield Problem(here, f"is {devices}, but {key} ({batch}) {why}", f"Remove it, or change {key}.")


def _not_divisible(settings: AnySettings, world_size: int) -> str:
    """Say what does not divide the batch that strong scaling keeps; empty where all does."""
    passes, batch = settings.accumulation_steps, settings.global_batch_size
    if settings.scaling != "strong" or batch is None or batch % (world_size * passes) == 0:
        return ""
    parts = f"the world size ({world_size})"
    if passes > 1:
        parts = f"{world_size * passes}: {parts} times accumulation_steps ({passes})"
    return f"is not divisible by {parts}"


def _over_the_data(settings: Settings, world_size: int, train_samples: float) -> str:
    """Say how the global batch exceeds the training data; empty where it does not."""
    total, passes = global_batch(settings, world_size), settings.accumulation_steps
    if total <= train_samples:
        return ""
    accumulated = f" over {passes} passes" if passes > 1 else ""
    return (
        f"makes a global batch of {total} on {count_devices(world_size)}{accumulated}, but "
        f"{settings.dataset} has {train_samples} training samples"
    )
