"""Check the training of a series: its batch, its length, and options that torch ignores or cannot combine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.config.catalog.datasets import dataset_facts
from scalewise.config.catalog.models import normalises_over_batch
from scalewise.config.errors import Place, Problem
from scalewise.config.experiment import AnyExperiment, Experiment
from scalewise.config.program import AnySettings
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape, count_devices
from scalewise.config.site import Site
from scalewise.plan.runs.runs import Options, batch_per_device, global_batch

BATCH_KEY = {"strong": "global_batch_size", "weak": "batch_size_per_device"}
"""The batch size that each scaling keeps."""

FSDP_CANNOT_USE = ("gradient_as_bucket_view", "bucket_cap_mb", "communication_hook", "channels_last")
"""Options of DistributedDataParallel only, and a layout that FSDP2 does not keep."""

SCHEDULES_WITH_AN_END = ("cosine", "onecycle")
"""Schedules of the length of the run; the others have no end."""

MIN_SAMPLES_PER_RANK = 2
"""Batch normalisation needs two values in a forward pass."""


@dataclass(frozen=True)
class Series:
    """The runs of an experiment that differ in device count and repeat only.

    Args:
        place: The experiment's place.
        options: Swept keys, with their values.
        settings: The experiment's training with these values.
        shapes: One for each device count.
    """

    place: Place
    experiment: AnyExperiment
    options: Options
    settings: AnySettings
    shapes: Sequence[Shape]
    site: Site

    def at(self, key: str) -> Place:
        """Return the place of a key: in the experiment or, with several values, in its sweep."""
        return (*self.place, "sweep", key) if key in dict(self.options) else (*self.place, key)

    @property
    def world_sizes(self) -> list[int]:
        """Device counts."""
        return [shape.world_size for shape in self.shapes]


def check_batch_divides(series: Series) -> Iterator[Problem]:
    """Refuse a batch size that is not divisible by each device count; the fix names the nearest that are."""
    settings, batch = series.settings, series.settings.global_batch_size
    if settings.scaling != "strong" or batch is None:
        return
    parts = [size * settings.accumulation_steps for size in series.world_sizes]
    if indivisible := next((part for part in parts if batch % part), None):
        common = math.lcm(*parts)
        near = [each for each in (batch // common * common, batch // common * common + common) if each]
        micro = f" x accumulation_steps ({settings.accumulation_steps})" * (settings.accumulation_steps > 1)
        text = f"({batch}) is not divisible by {indivisible}, the number of devices{micro}."
        yield Problem(series.at("global_batch_size"), f"{text} Use {' or '.join(map(str, near))}.")


def check_builtin(series: Series, settings: Settings) -> Iterator[Problem]:
    """Refuse what the built-in training would ignore, or could not train."""
    yield from _check_options(series, settings)
    facts: dict[str, Any] = {}
    for key, look_up in (("dataset", dataset_facts), ("model", normalises_over_batch)):
        try:
            facts[key] = look_up(getattr(settings, key))
        except ValueError as error:
            yield Problem(series.at(key), str(error))
    key = BATCH_KEY[settings.scaling]
    if "dataset" not in facts or getattr(settings, key) is None or any(check_batch_divides(series)):
        return
    images = facts["dataset"].train_samples
    batches = {size: global_batch(settings, size) for size in series.world_sizes}
    largest, most = max(batches.values()), max(batches)
    each = batch_per_device(settings, most)
    if largest > images:
        text = f"({getattr(settings, key)}) makes a batch of {largest}, over the dataset's {images} images."
        yield Problem(series.at(key), text)
    elif facts.get("model") and each < MIN_SAMPLES_PER_RANK:
        text = (
            f"({getattr(settings, key)}) leaves {each} sample on each of {count_devices(most)}. "
            f"{settings.model} normalises over the batch: use at least {MIN_SAMPLES_PER_RANK} for each."
        )
        yield Problem(series.at(key), text)
    else:
        # what does not fill a batch is left out of an epoch
        yield from _check_length(series, settings, images // largest)


def _check_length(series: Series, settings: Settings, steps: int) -> Iterator[Problem]:
    """Refuse a warm-up that leaves no step to measure, and steps beyond the end of a schedule.

    Args:
        series: The series.
        settings: The training of the series.
        steps: Steps of an epoch on the device count with the fewest.
    """
    all_steps = settings.epochs * steps
    epochs = f"{settings.epochs} epochs of {steps} steps"
    if settings.compile and not settings.warmup_steps:
        text = "(0) would measure the first step, in which the model is compiled. Use 1 or more."
        yield Problem(series.at("warmup_steps"), text)
    elif settings.steps is None and settings.warmup_steps >= all_steps:
        text = f"({settings.warmup_steps}) leaves no step of the run to measure ({epochs})."
        yield Problem(series.at("warmup_steps"), text)
    # torch's onecycle would raise there, and its cosine rise again
    if settings.schedule in SCHEDULES_WITH_AN_END and (settings.last_step or 0) > all_steps:
        text = f"is {settings.schedule}, which ends with the epochs, before step {settings.last_step}"
        yield Problem(series.at("schedule"), f"{text} ({epochs}). Use more epochs.")


def _check_options(series: Series, settings: Settings) -> Iterator[Problem]:
    """Refuse options that torch ignores, or that cannot work together or on the devices of the site."""
    on_cpus, is_fsdp = series.site.accelerator == "cpu", settings.parallelism == "fsdp"
    # fp16 runs at 0.03 times the speed of fp32 there
    no_gpu = "but the devices here are CPU processes (`accelerator` of the site file)"
    # CUDA graphs would overwrite gradients, and replay weights at addresses that have changed
    graphs = settings.compile == "reduce-overhead"
    combined = f"but accumulation_steps is {settings.accumulation_steps}. Use compile: true."
    rows = [
        ("precision", on_cpus and settings.precision in ("tf32", "fp16"), f"{no_gpu}. Use bf16 or fp32."),
        ("compile", graphs and settings.accumulation_steps > 1, combined),
        ("compile", graphs and is_fsdp, "but parallelism is fsdp. Use compile: true."),
    ]
    for key in FSDP_CANNOT_USE:
        is_set = getattr(settings, key) != Settings.model_fields[key].default
        rows.append(
            (key, is_fsdp and is_set, "which parallelism: fsdp cannot use. Exclude the two together.")
        )
    target = series.experiment.target if isinstance(series.experiment, Experiment) else None
    stop = settings.stop_at_accuracy
    if target is not None and stop is not None:
        too_early = f"which ends the training before target.accuracy ({target.accuracy:g}) is reached."
        rows.append(("stop_at_accuracy", stop < target.accuracy, too_early))
    for key, is_wrong, text in rows:
        if is_wrong:
            yield Problem(series.at(key), f"is {getattr(settings, key)}, {text}")
