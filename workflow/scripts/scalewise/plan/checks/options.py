"""Check the options of one training together: torch refuses or ignores some combinations.

The rules come from small trainings of two ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from scalewise.config.catalog.datasets import DatasetFacts, dataset_facts
from scalewise.config.catalog.models import IMAGENET_STEM_PIXELS, MODELS, takes_pretrained
from scalewise.config.errors import Place, Problem, format_value
from scalewise.config.experiment import AnyExperiment, Experiment
from scalewise.config.program import AnySettings
from scalewise.config.settings import FEWEST_STEPS, MAX_SEED, Settings
from scalewise.config.shape import count_devices
from scalewise.config.site import Site
from scalewise.plan.runs.runs import Options, seed_of

PRETRAINED_CHANNELS = 3

SCHEDULES_WITH_AN_END = ("cosine", "onecycle")
"""Schedules of the length of the run; the others have no end."""

_DDP_OPTIONS = ("gradient_as_bucket_view", "static_graph", "bucket_cap_mb", "communication_hook")
"""Options of DistributedDataParallel only."""


class Where:
    """The place of a key that may stand in the experiment or, with several values, in its sweep.

    Args:
        options: Swept keys of the series, with their values.
    """

    def __init__(self, place: Place, options: Options) -> None:
        self._place = place
        self._swept = {key for key, _ in options}

    def __call__(self, key: str) -> Place:
        """Return the place of a key."""
        return (*self._place, "sweep", key) if key in self._swept else (*self._place, key)

    def part(self, otherwise: str, **pair: object) -> str:
        """Return the fix for two options that do not work together: an exclude if both are swept."""
        if not self._swept >= pair.keys():
            return otherwise
        entry = ", ".join(f"{key}: {as_yaml(value)}" for key, value in pair.items())
        return f"Exclude the two together: `exclude: [{{{entry}}}]`."


def check_options(
    where: Where, experiment: Experiment, settings: Settings, site: Site, stated_keys: set[str]
) -> Iterator[Problem]:
    """Refuse options of a series that cannot work together, or not on the devices of the site.

    Args:
        where: Gives the place of a key of the series.
        experiment: The experiment that the series is part of.
        settings: One series' training.
        site: Facts of the machine or cluster.
        stated_keys: Keys of the experiment's entry, swept ones too, without those of ``defaults``.
    """
    if site.accelerator == "cpu":
        yield from _check_cpu(where, settings, site)
    yield from _check_parallelism(where, settings)
    yield from _check_graphs(where, settings)
    yield from _check_rate(where, settings)
    yield from check_seed(where, experiment, settings)
    yield from _check_stop(where, experiment, settings, stated_keys)
    yield from _check_steps(where, experiment, settings)


def check_seed(where: Where, experiment: AnyExperiment, settings: AnySettings) -> Iterator[Problem]:
    """Refuse a seed if that of the last repeat is too large."""
    most, last = MAX_SEED, seed_of(settings, experiment.max_repeats)
    if last > most:
        yield Problem(
            where("seed"),
            f"({settings.seed}) makes {last} of the last of {experiment.max_repeats} repeats, over {most}",
            f"Use at most {most - (last - settings.seed)}.",
        )


def _check_cpu(where: Where, settings: Settings, site: Site) -> Iterator[Problem]:
    cpu = "but the devices here are CPU processes"
    gpu = (
        " Or write `accelerator: cuda` in the site file: this machine has a GPU." if site.unused_gpus else ""
    )
    if settings.precision == "tf32":
        yield Problem(where("precision"), f"is 'tf32', a format of GPUs, {cpu}", f"Use fp32 or bf16.{gpu}")
    if settings.precision == "fp16":
        yield Problem(
            where("precision"),
            f"is 'fp16', {cpu}, on which it runs at 0.03 times the speed of fp32",
            f"Use bf16 or fp32.{gpu}",
        )
    if settings.communication_hook == "bf16":
        # it needs a torch that was built with NCCL, which not every torch for CPUs is
        yield Problem(
            where("communication_hook"),
            f"is 'bf16', which torch has for GPUs with NCCL, {cpu}",
            f"Use fp16, which sends as few bytes.{gpu}",
        )


def _check_parallelism(where: Where, settings: Settings) -> Iterator[Problem]:
    if settings.parallelism != "fsdp":
        return
    otherwise = "Remove it, or use parallelism ddp or zero1."
    for key in _DDP_OPTIONS:
        value = getattr(settings, key)
        if value != Settings.model_fields[key].default:
            yield Problem(
                where(key),
                f"is {as_yaml(value)}, but parallelism is fsdp, which has no DistributedDataParallel to "
                "take it",
                where.part(otherwise, parallelism="fsdp", **{key: value}),
            )
    if settings.channels_last:
        yield Problem(
            where("channels_last"),
            "is true, but parallelism is fsdp, which cannot divide weights in that layout",
            where.part(otherwise, parallelism="fsdp", channels_last=True),
        )


def _check_graphs(where: Where, settings: Settings) -> Iterator[Problem]:
    """Refuse what CUDA graphs cannot replay: gradients that they would free, and weights that move."""
    if settings.compile != "reduce-overhead":
        return
    otherwise = "Use compile: true."
    if settings.accumulation_steps > 1:
        yield Problem(
            where("compile"),
            f"is 'reduce-overhead', but accumulation_steps is {settings.accumulation_steps}: CUDA graphs "
            "would overwrite the gradients of one micro-batch with those of the next",
            where.part(otherwise, compile="reduce-overhead", accumulation_steps=settings.accumulation_steps),
        )
    if settings.parallelism == "fsdp":
        yield Problem(
            where("compile"),
            "is 'reduce-overhead', but parallelism is fsdp, whose weights have other addresses in each step",
            where.part(otherwise, compile="reduce-overhead", parallelism="fsdp"),
        )


def _check_rate(where: Where, settings: Settings) -> Iterator[Problem]:
    warmup = settings.learning_rate_warmup_epochs
    here = where("learning_rate_warmup_epochs")
    if warmup and settings.schedule == "onecycle":
        yield Problem(
            here,
            f"is {warmup:g}, but schedule is onecycle, which begins with its own warm-up",
            where.part(
                "Remove it, or use another schedule.",
                learning_rate_warmup_epochs=warmup,
                schedule="onecycle",
            ),
        )
    elif warmup >= settings.epochs:
        yield Problem(
            here,
            f"({warmup:g}) is not below the {settings.epochs} epochs of the whole run",
            "Use fewer, or more epochs.",
        )


def _check_stop(
    where: Where, experiment: Experiment, settings: Settings, stated_keys: set[str]
) -> Iterator[Problem]:
    stop, patience = settings.stop_at_accuracy, settings.stop_patience_epochs
    if stop is None:
        if "stop_patience_epochs" in stated_keys:
            yield Problem(
                where("stop_patience_epochs"),
                f"is {patience}, but there is no stop_at_accuracy to hold for so many epochs",
                "Add `stop_at_accuracy: 0.97`, or remove it.",
            )
        return
    if patience > settings.epochs:
        yield Problem(
            where("stop_patience_epochs"),
            f"({patience}) is over the {settings.epochs} epochs of the whole run",
            f"Use at most {settings.epochs}, or more epochs.",
        )
    target = experiment.target
    if target is not None and target.accuracy > stop:
        yield Problem(
            where("stop_at_accuracy"),
            f"({stop:g}) ends the training before target.accuracy ({target.accuracy:g}) is reached",
            f"Use {target.accuracy:g} or more, or a lower target.",
        )


def _check_steps(where: Where, experiment: Experiment, settings: Settings) -> Iterator[Problem]:
    """Refuse options that a training ignores if it ends after some steps."""
    yield from check_most_steps(where, settings)
    if settings.steps is None:
        return
    if settings.stop_at_accuracy is not None:
        yield Problem(
            where("stop_at_accuracy"),
            f"is {settings.stop_at_accuracy:g}, but steps ({settings.steps}) ends the training before "
            "anything is evaluated",
            "Keep one of the two.",
        )
    if settings.save_model:
        yield Problem(
            where("save_model"),
            f"is true, but steps ({settings.steps}) ends the training before its weights are saved",
            "Keep one of the two.",
        )
    if "epochs" in experiment.swept and settings.schedule not in SCHEDULES_WITH_AN_END:
        yield Problem(
            where("epochs"),
            f"is {experiment.swept['epochs']}, but steps ({settings.steps}) ends the training, so that with "
            f"schedule {settings.schedule} these runs differ in nothing",
            "Remove steps, or sweep another key.",
        )


def check_most_steps(where: Where, settings: AnySettings) -> Iterator[Problem]:
    """Refuse fewer measured steps than the warm-up has or an interval needs."""
    if settings.steps is None:
        return
    most, warmup = settings.steps.most, settings.warmup_steps
    adaptive = settings.steps.until_interval is not None
    here = (*where("steps"), "most") if adaptive else where("steps")
    if adaptive and most < FEWEST_STEPS:
        needed = max(FEWEST_STEPS, warmup)
        yield Problem(
            here,
            f"({most}) is below the {FEWEST_STEPS} steps that an interval needs",
            f"Use {needed} or more, or `steps: {max(most, warmup)}`, which measures just these.",
        )
    elif most < warmup:
        fewer = " or fewer warmup_steps" if warmup > Settings.model_fields["warmup_steps"].default else ""
        yield Problem(
            here,
            f"({most}) is below warmup_steps ({warmup}): fewer steps would be measured than excluded",
            f"Use {warmup} or more{',' if fewer else ''}{fewer}.",
        )


def check_images(where: Where, settings: Settings, facts: DatasetFacts) -> Iterator[Problem]:
    """Refuse crops and pretrained weights that do not fit the images.

    Args:
        where: Gives the place of a key of the series.
        settings: One series' training.
        facts: The dataset's, in the size that the model gets.
    """
    if settings.crop_padding:
        # images are cropped before they are resized to image_size
        stored = dataset_facts(settings.dataset)
        pixels = min(stored.height, stored.width)
        if settings.crop_padding >= pixels:
            yield Problem(
                where("crop_padding"),
                f"({settings.crop_padding}) is not below the {pixels} pixels of {settings.dataset}, so that "
                "a crop could show nothing but padding",
                f"Use for instance {pixels // 8 or 1}." if pixels > 1 else "Remove it.",
            )
    if not settings.pretrained:
        return
    here, pixels = where("pretrained"), min(facts.height, facts.width)
    if not takes_pretrained(settings.model):
        able = ", ".join(model for model in MODELS if takes_pretrained(model))
        yield Problem(
            here,
            f"is true, but model is {settings.model!r}, for which there are no weights",
            where.part(f"Remove it, or use {able}.", model=settings.model, pretrained=True),
        )
    elif facts.channels != PRETRAINED_CHANNELS:
        yield Problem(
            here,
            f"is true, but {settings.dataset} has images of {facts.channels} channels, and the weights are "
            f"for {PRETRAINED_CHANNELS}",
            where.part("Remove it, or use other data.", dataset=settings.dataset, pretrained=True),
        )
    elif pixels < IMAGENET_STEM_PIXELS:
        yield Problem(
            here,
            f"is true, but below {IMAGENET_STEM_PIXELS} pixels {settings.model} has another first layer, and "
            f"these images have {pixels}",
            "Add `image_size: 224`, or remove it."
            if settings.image_size is None
            else "Use image_size: 224, or remove it.",
        )


def check_warmup(where: Where, settings: Settings, steps: Mapping[int, int]) -> Iterator[Problem]:
    """Refuse a warm-up that leaves no step to measure, or in which no model can be compiled.

    Args:
        where: Gives the place of a key of the series.
        settings: One series' training.
        steps: Steps of an epoch, for each world size.
    """
    fewest = min(steps, key=lambda world_size: steps[world_size])
    whole_run = settings.last_step or settings.epochs * steps[fewest]
    if settings.compile and not settings.warmup_steps:
        yield Problem(
            where("warmup_steps"),
            "(0) would measure the first step, in which the model is compiled",
            "Use warmup_steps: 1 or more.",
        )
    elif settings.warmup_steps >= whole_run:
        yield Problem(
            where("warmup_steps"),
            f"({settings.warmup_steps}) is not below the {whole_run} steps of the whole run "
            f"({settings.epochs} epochs of {steps[fewest]} steps on {count_devices(fewest)})",
            "Use fewer warm-up steps, or more epochs.",
        )


def check_schedule(where: Where, settings: Settings, steps: Mapping[int, int]) -> Iterator[Problem]:
    """Refuse steps beyond the end of a schedule: there torch's onecycle raises, and its cosine rises again.

    Args:
        where: Gives the place of a key of the series.
        settings: One series' training.
        steps: Steps of an epoch, for each world size.
    """
    if settings.last_step is None or settings.schedule not in SCHEDULES_WITH_AN_END:
        return
    world_size, of_epoch = min(steps.items(), key=lambda entry: entry[1])
    whole_schedule = settings.epochs * of_epoch
    if settings.last_step > whole_schedule:
        yield Problem(
            where("schedule"),
            f"is {settings.schedule}, which ends after {whole_schedule} steps ({settings.epochs} epochs of "
            f"{of_epoch} steps on {count_devices(world_size)}), but warmup_steps ({settings.warmup_steps}) "
            f"and steps ({settings.most_steps}) make {settings.last_step}",
            f"Use epochs: {math.ceil(settings.last_step / of_epoch)} or more, or another schedule.",
        )


def option_warnings(name: str, experiment: Experiment, world_sizes: Sequence[int]) -> Iterator[str]:
    """Warn of options that are possible but rarely intended.

    Args:
        name: The experiment's name.
        experiment: The experiment, checked.
        world_sizes: One for each run.
    """
    key = "learning_rate_scaling"
    rules = experiment.swept.get(key, [experiment.learning_rate_scaling])
    scaling = [rule for rule in rules if rule != "none"]
    most = max(world_sizes)
    if experiment.scaling == "strong" and scaling and most > 1:
        factor = most if scaling[0] == "linear" else math.sqrt(most)
        place = f"sweep.{key}" if key in experiment.swept else key
        yield (
            f"experiments.{name}.{place} is {scaling[0]}, but strong scaling keeps the global batch: "
            f"{most} devices would take the steps of one at {factor:.3g} times its learning rate. "
            "Use none, or weak scaling."
        )


def as_yaml(value: object) -> str:
    """Format a value as YAML does."""
    return value if isinstance(value, str) else format_value(value)
