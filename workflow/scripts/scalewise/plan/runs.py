"""Make the runs of an experiment: one job each, with a short, readable and stable name."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scalewise.config.catalog import prepared_path
from scalewise.config.experiment import MAX_REPEATS, AnyExperiment
from scalewise.config.program import ARGUMENT, AnySettings, ProgramSettings, program_files
from scalewise.config.settings import LauncherName, Settings
from scalewise.config.shape import Shape
from scalewise.config.templates import fill_in, names_in
from scalewise.plan.run_definition import NO_OPTIONS, RunDefinition, canonical_json, digest

Options = tuple[tuple[str, Any], ...]
"""The swept keys of a series with their values, in the order of the configuration's model."""

_SHORT = {
    "accumulation_steps": "accumulation",
    "bucket_cap_mb": "bucket-mb",
    "communication_hook": "hook",
    "crop_padding": "crop",
    "gradient_as_bucket_view": "bucket-view",
    "horizontal_flip": "flip",
    "stop_patience_epochs": "patience",
}
"""Short forms of keys in a run's name. A changed entry would rename, and so repeat, runs."""


def input_files(run: RunDefinition) -> dict[str, str | list[str]]:
    """Return the files that training needs: prepared data.

    Of a user's program: its files, those that the user names, and the file that exists once it is prepared.
    """
    settings = run.settings
    if not isinstance(settings, ProgramSettings):
        return {"dataset": str(prepared_path(settings.dataset))}
    prepared = f"resources/prepared/{digest(preparation(settings))}.done"
    return {
        "dataset": [],
        "program": [str(path) for path in program_files(settings)],
        # prepare may not have made them yet; the run's records hold their hashes
        "files": [] if settings.prepare else list(settings.files),
        "prepared": prepared if settings.prepare else [],
    }


def repeat_settings(settings: AnySettings, repeat: int) -> AnySettings:
    """Return the settings of one repeat of a series: with another seed, so that accuracies are independent.

    The launcher is the run's, not the training's.
    """
    return settings.model_copy(update={"seed": (settings.seed + repeat - 1) % 2**31, "launcher": None})


def batch_per_device(settings: AnySettings, world_size: int) -> int:
    """Return the samples of one forward pass on one device, from the batch size that the scaling keeps."""
    if settings.scaling == "weak":
        assert settings.batch_size_per_device is not None
        return settings.batch_size_per_device
    assert settings.global_batch_size is not None
    return settings.global_batch_size // (world_size * settings.accumulation_steps)


def global_batch(settings: AnySettings, world_size: int) -> int:
    """Return the samples of one optimizer step over all devices."""
    return batch_per_device(settings, world_size) * world_size * settings.accumulation_steps


def preparation(settings: ProgramSettings) -> str:
    """Return the command that a program needs once on the login node, as canonical JSON.

    It has the words, with the program's custom values filled in, the ``python`` of a Python file (None for
    that of the ranks), the variables that the configuration adds, and the folder that it runs in (None for
    that of snakemake).
    """
    values = {f"{ARGUMENT}{name}": value for name, value in settings.argument.items()}
    environment = settings.environment.items()
    return canonical_json(
        {
            "words": [fill_in(str(word), values) for word in settings.prepare],
            "python": settings.python,
            "environment": {
                name: fill_in(str(value), {}) for name, value in environment if not names_in(str(value))
            },
            "working_directory": settings.working_directory,
        }
    )


def option_label(key: str, value: object) -> str:
    """Name an option: ``epochs: 5`` -> ``epochs-5``, ``horizontal_flip: true`` -> ``flip-on``."""
    short = _SHORT.get(key, key.removeprefix(ARGUMENT).replace("_", "-"))
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    return f"{short}-{re.sub('[^A-Za-z0-9._-]', '-', text)}"


def series_label(options: Options) -> str:
    """Return the options of a series as one word; empty without a sweep."""
    return ".".join(option_label(*option) for option in options)


def series_name(options: Options) -> str:
    """Return the name of a series in tables."""
    return series_label(options) or NO_OPTIONS


def combinations(experiment: AnyExperiment) -> Iterator[Options]:
    """Yield every combination of the swept values, in the order of the model's keys."""
    swept = experiment.swept
    for values in itertools.product(*swept.values()):
        yield tuple(zip(swept, values, strict=True))


def excluded(experiment: AnyExperiment, options: Options, devices: int | str) -> bool:
    """Whether an entry of ``exclude`` matches this combination at this device count."""
    return any(excludes(entry, options, devices) for entry in experiment.exclude)


def excludes(entry: Mapping[str, Any], options: Options, devices: int | str) -> bool:
    """Whether an entry of ``exclude`` matches a combination at a device count; true is not 1, 1 is 1.0."""
    actual = dict(options) | {"devices": devices}
    return all(
        key in actual and actual[key] == value and isinstance(actual[key], bool) == isinstance(value, bool)
        for key, value in entry.items()
    )


def settings_of(experiment: AnyExperiment, options: Options) -> AnySettings:
    """Return the settings of one series: the experiment's with the options of the series."""
    kind = ProgramSettings if isinstance(experiment, ProgramSettings) else Settings
    # the values were validated as parts of the experiment and of its sweep
    values = {key: getattr(experiment, key) for key in kind.model_fields}
    for key, value in options:
        if key.startswith(ARGUMENT):
            values["argument"] = {**values["argument"], key.removeprefix(ARGUMENT): value}
        else:
            values[key] = value
    return kind.model_construct(**values)


def partition_of(experiment: AnyExperiment) -> str:
    """Return the partition of an experiment that is divided over several; else empty."""
    return experiment.partitions[0] if experiment.partitions else ""


@dataclass(frozen=True, slots=True)
class Point:
    """One device count of one series, on one partition; its repeats differ only in the seed.

    Args:
        devices: The device count as the configuration gives it, ``4`` or ``"2x2"``.
        options: Swept keys of the series, with their values.
        partition: The partition, if the experiment compares several; else empty.
    """

    devices: int | str
    options: Options
    partition: str

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return Shape.parse(self.devices).world_size if isinstance(self.devices, str) else self.devices

    @property
    def name(self) -> str:
        """The name, such as ``d2.bucket-view-on``, or with a partition ``d2.a100.bucket-view-on``."""
        return ".".join(filter(None, (f"d{self.devices}", self.partition, series_label(self.options))))

    def run_name(self, repeat: int) -> str:
        """Return the name of a repeat, such as ``d2.bucket-view-on.r1``."""
        return f"{self.name}.r{repeat}"


def points(experiment: AnyExperiment) -> Iterator[Point]:
    """Yield every device count of every series that is not excluded."""
    partition = partition_of(experiment)
    for options in combinations(experiment):
        for devices in experiment.devices.counts:
            if not excluded(experiment, options, devices):
                yield Point(devices, options, partition)


def points_by_series(experiment: AnyExperiment) -> dict[Options, list[Point]]:
    """Return the points of each series that has any, by its options."""
    series = itertools.groupby(points(experiment), operator.attrgetter("options"))
    return {options: [*of_series] for options, of_series in series}


def expand(
    name: str,
    experiment: AnyExperiment,
    shapes: Mapping[int | str, Shape],
    accelerator: Literal["cpu", "cuda"],
    launcher: LauncherName = "torchrun",
) -> list[RunDefinition]:
    """Make all runs of an experiment, up to the most repeats.

    Args:
        name: The experiment's name.
        experiment: The experiment, validated.
        shapes: The shape of each entry of ``experiment.devices.counts``.
        accelerator: ``cuda`` or ``cpu``.
        launcher: The site's, for settings that name none.
    """
    runs = []
    for point in points(experiment):
        settings, shape = settings_of(experiment, point.options), shapes[point.devices]
        batch = batch_per_device(settings, shape.world_size)
        # every value was validated as part of the experiment, of its sweep or of its device counts
        runs += [
            RunDefinition.model_construct(
                experiment=name,
                run=point.run_name(repeat),
                partition=point.partition,
                shape=shape,
                batch_size_per_device=batch,
                global_batch_size=global_batch(settings, shape.world_size),
                repeat=repeat,
                options=dict(point.options),
                accelerator=accelerator,
                launcher=settings.launcher or launcher,
                settings=repeat_settings(settings, repeat),
            )
            for repeat in range(1, experiment.repeats.max + 1)
        ]
    return runs


def priority(run: RunDefinition) -> int:
    """Return the priority of a run, the highest first: repeats as blocks, shuffled within each.

    A drift of the machine during a study then affects all device counts equally, and an interrupted study
    has every point once before any point twice. The shuffle is a hash of the run's name, so further runs
    do not change it.
    """
    return (MAX_REPEATS - run.repeat) * 1_000_000 + int(digest(run.label), 16) % 1_000_000 + 1
