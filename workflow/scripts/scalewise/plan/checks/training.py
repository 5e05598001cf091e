"""Check the training of a series: its batch, its length, and options that torch ignores or cannot combine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalewise.config.catalog.datasets import DATASETS, DatasetFacts, dataset_facts
from scalewise.config.catalog.models import ModelFacts, known_models, model_facts
from scalewise.config.errors import Place, Problem, RefusedValueError, did_you_mean
from scalewise.config.experiment import AnyExperiment, Experiment
from scalewise.config.program import AnySettings
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape, count_devices
from scalewise.config.site import Site
from scalewise.plan.runs.runs import Options, batch_per_device, global_batch

BATCH_KEY = {"strong": "global_batch_size", "weak": "batch_size_per_device"}
"""The batch size that each scaling keeps."""

_DDP_OPTIONS = ("gradient_as_bucket_view", "bucket_cap_mb", "communication_hook")
"""Options of DistributedDataParallel only."""

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
        below, above = batch // common * common, (batch // common + 1) * common
        micro = f" x accumulation_steps ({settings.accumulation_steps})" * (settings.accumulation_steps > 1)
        text = f"({batch}) is not divisible by {indivisible}, the number of devices{micro}"
        fix = f"Use {below} or {above}." if below else f"Use {above}."
        yield Problem(series.at("global_batch_size"), text, fix)


def check_builtin(series: Series, settings: Settings) -> Iterator[Problem]:
    """Refuse what the built-in training would ignore, or could not train."""
    yield from _check_options(series, settings)
    yield from _check_workload(series, settings)


def _check_workload(series: Series, settings: Settings) -> Iterator[Problem]:
    """Refuse an unknown dataset or model, and batches and warm-ups that do not fit the dataset."""
    facts: DatasetFacts | None = None
    model: ModelFacts | None = None
    try:
        facts = dataset_facts(settings.dataset)
    except KeyError:
        yield _unknown(series.at("dataset"), settings.dataset, [*DATASETS, "synthetic-3x32x32"])
    except RefusedValueError as error:
        yield Problem(series.at("dataset"), error.text, error.fix)
    try:
        model = model_facts(settings.model)
    except KeyError:
        yield _unknown(series.at("model"), settings.model, known_models())
    except RefusedValueError as error:
        yield Problem(series.at("model"), error.text, error.fix)
    key = BATCH_KEY[settings.scaling]
    if facts is None or getattr(settings, key) is None or any(check_batch_divides(series)):
        return
    totals = {size: global_batch(settings, size) for size in series.world_sizes}
    most, largest = max(totals), max(totals, key=lambda size: totals[size])
    if totals[largest] > facts.train_samples:
        text = (
            f"({getattr(settings, key)}) makes a global batch of {totals[largest]} on "
            f"{count_devices(largest)}, but {settings.dataset} has {facts.train_samples} training samples"
        )
        yield Problem(series.at(key), text, "Use a smaller batch, or fewer devices.")
        return
    if model and model.batch_norm and (each := batch_per_device(settings, most)) < MIN_SAMPLES_PER_RANK:
        text = (
            f"({getattr(settings, key)}) leaves {each} sample on each of {count_devices(most)}, and "
            f"{settings.model} normalises over the batch"
        )
        yield Problem(series.at(key), text, f"Use at least {MIN_SAMPLES_PER_RANK} for each.")
    # what does not fill a batch is left out of an epoch
    yield from _check_length(series, settings, facts.train_samples // totals[largest])


def _unknown(place: Place, name: str, known: Sequence[str]) -> Problem:
    own = "Train your own with a program (`program:`)."
    return Problem(place, f"is {name!r}, which is not known", f"{did_you_mean(name, known)} {own}")


def _check_length(series: Series, settings: Settings, steps: int) -> Iterator[Problem]:
    """Refuse a warm-up that leaves no step to measure, and steps beyond the end of a schedule.

    Args:
        series: The series.
        settings: The training of the series.
        steps: Steps of an epoch on the device count with the fewest.
    """
    epochs = f"{settings.epochs} epochs of {steps} steps"
    if settings.compile and not settings.warmup_steps:
        text = "(0) would measure the first step, in which the model is compiled"
        yield Problem(series.at("warmup_steps"), text, "Use 1 or more.")
    elif settings.warmup_steps >= (settings.last_step or settings.epochs * steps):
        text = f"({settings.warmup_steps}) leaves no step of the run to measure ({epochs})"
        yield Problem(series.at("warmup_steps"), text, "Use fewer warm-up steps, or more epochs.")
    # torch's onecycle would raise there, and its cosine rise again
    if settings.schedule in SCHEDULES_WITH_AN_END and (settings.last_step or 0) > settings.epochs * steps:
        text = (
            f"is {settings.schedule}, which ends before the {settings.last_step} steps of the run ({epochs})"
        )
        fix = f"Use epochs: {math.ceil((settings.last_step or 0) / steps)} or more, or another schedule."
        yield Problem(series.at("schedule"), text, fix)


def _check_options(series: Series, settings: Settings) -> Iterator[Problem]:
    """Refuse options that torch ignores, or that cannot work together or on the devices of the site."""
    at, site = series.at, series.site
    if site.accelerator == "cpu":
        cpu = "but the devices here are CPU processes"
        gpu = (
            " This machine has a GPU: `accelerator: cuda` in the site file uses it."
            if site.unused_gpus
            else ""
        )
        # fp16 runs at 0.03 times the speed of fp32 there, and bf16 needs NCCL to be sent
        if settings.precision in ("tf32", "fp16"):
            yield Problem(at("precision"), f"is {settings.precision}, {cpu}", f"Use bf16 or fp32.{gpu}")
        if settings.communication_hook == "bf16":
            yield Problem(
                at("communication_hook"), f"is bf16, {cpu}", f"Use fp16, which sends as few bytes.{gpu}"
            )
    if settings.parallelism == "fsdp":
        for key in (*_DDP_OPTIONS, "channels_last"):
            if (value := getattr(settings, key)) != Settings.model_fields[key].default:
                text = f"is {value}, which parallelism: fsdp cannot use"
                yield Problem(at(key), text, "Remove it, exclude the two together, or use ddp or zero1.")
    if settings.compile == "reduce-overhead":
        # CUDA graphs would overwrite gradients, and replay weights at addresses that have changed
        for key, works in (("accumulation_steps", 1), ("parallelism", "ddp")):
            value = getattr(settings, key)
            if value not in (works, "zero1"):
                text = f"is reduce-overhead, but {key} is {value}, which CUDA graphs cannot replay"
                yield Problem(at("compile"), text, "Use compile: true, or exclude the two together.")
    if isinstance(series.experiment, Experiment) and (target := series.experiment.target) is not None:
        stop = settings.stop_at_accuracy
        if stop is not None and stop < target.accuracy and settings.steps is None:
            text = f"({stop:g}) ends the training before target.accuracy ({target.accuracy:g}) is reached"
            yield Problem(
                at("stop_at_accuracy"), text, f"Use {target.accuracy:g} or more, or a lower target."
            )
