"""The models of ``config/experiments.yaml``: every key, its type, its unit and its default.

The JSON Schema that completes the file in editors, and the table in config/README.md, are generated
from these models (schema.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from scalewise.config.errors import did_you_mean
from scalewise.config.program import ProgramSettings, ProgramSweep, is_file
from scalewise.config.settings import (
    SWEEPABLE,
    Count,
    Fraction,
    Memory,
    PlainPath,
    Rate,
    Settings,
    StrictModel,
    sweep_model,
)

MAX_REPEATS = 1000
RepeatCount = Annotated[int, Field(gt=0, le=MAX_REPEATS)]


class Target(StrictModel):
    """Accuracy at which a training counts as done."""

    accuracy: Fraction
    """Test accuracy to reach, 0.97 for 97 %."""


SHOWN_LOSS = 0.005
"""Loss of final accuracy that is worth a caution, as a fraction: the uncertainty with 10,000 test images."""


DEFAULT_EFFICIENCY = 0.7
"""Least parallel efficiency of an answer without a criterion."""

LIMITS = ("deadline_minutes", "max_device_hours")
"""Criteria on a whole run."""


class DecisionRule(StrictModel):
    """Rule for the number of devices. Without a criterion: an efficiency of 0.7 or more."""

    min_efficiency: Fraction | None = None
    """Recommend only device counts whose parallel efficiency is at least this. Default: 0.7 if no other
    criterion is given."""
    deadline_minutes: Rate | None = None
    """Recommend the smallest device count on which a whole run, with start-up and the site's queue, takes at
    most this long, by a bound that 95 % of further runs keep."""
    max_device_hours: Rate | None = None
    """Only device counts on which a whole run takes at most this many device-hours."""
    by: Literal["time", "cost", "energy", "soonest"] | None = None
    """What decides between partitions, for the same work: time; cost by the site's price or billing; energy;
    or soonest, the wait in the queue and the time together. By default time decides."""
    min_gain: Annotated[float, Field(ge=0, le=1)] = 0.05
    """More devices are recommended only if they are shown to be faster than fewer by at least this share,
    0.05 for 5 %: the whole 95 % interval of the ratio lies above it. Three repeats can show 5 % if they
    scatter by 1 %. 0: any gain."""

    def required_efficiency(self, judged: Collection[str] = LIMITS) -> float | None:
        """Return the least efficiency that is required: by default one, unless another criterion decides.

        Args:
            judged: Criteria that can be judged.
        """
        if self.min_efficiency is not None:
            return self.min_efficiency
        decides = any(getattr(self, name) is not None for name in LIMITS if name in judged)
        return None if decides else DEFAULT_EFFICIENCY


class Repeats(StrictModel):
    """Jobs of every point: a fixed number, or more until the decision is clear."""

    min: RepeatCount = 6
    """Jobs of every point; of a study that chooses its device counts, of those that its answer rests on."""
    max: RepeatCount = 10
    """Most jobs of a point: more than `min` only where the decision is not clear."""

    @model_validator(mode="after")
    def _check_order(self) -> Repeats:
        if self.min > self.max or 1 == self.min < self.max:
            text = f"has a min of {self.min} and a max of {self.max}"
            raise ValueError(f"{text}. Use a min of 2 or more, and no smaller max.")
        return self


RepeatsKey = Annotated[
    Repeats,
    BeforeValidator(
        lambda value: value if isinstance(value, (dict, Repeats)) else {"min": value, "max": value},
        json_schema_input_type=RepeatCount | Repeats,
    ),
]

DeviceCount = int | str
"""A total, or nodes x devices per node, ``2x2``."""


class Devices(StrictModel):
    """Device counts: a list that is measured whole, or the most up to which the study chooses."""

    counts: SkipJsonSchema[list[DeviceCount]] = Field(default_factory=list)
    """The list; with ``up_to``, the counts that a site allows."""
    up_to: Count | None = None
    """Choose among all counts up to this one that fill nodes: even parts of one, and whole nodes. With strong
    scaling, those that divide the batch."""

    @model_validator(mode="after")
    def _check_is_given(self) -> Devices:
        if not (self.counts or self.up_to):
            raise ValueError("names no device counts. Write [1, 2, 4] or {up_to: 64}.")
        return self


DevicesKey = Annotated[
    Devices,
    BeforeValidator(
        lambda value: value if isinstance(value, (dict, Devices)) else {"counts": value},
        json_schema_input_type=Annotated[list[DeviceCount], Field(min_length=1)] | Devices,
    ),
]


class Budget(StrictModel):
    """The most that a study may spend on its runs."""

    device_hours: Rate
    """Device-hours of all runs of the experiment together, as the site bills them. A run is made only if its
    runtime_minutes fit into what is left."""


class Sweep(sweep_model(Settings, SWEEPABLE)):  # type: ignore[misc]
    """Options to combine, each with a list of values."""


CENTRES = Path(__file__).resolve().parents[4] / "profiles" / "centres"
TEMPLATE = ".md.j2"


def known_centres() -> list[str]:
    """Return the names of the centres that Scalewise knows: one template each."""
    return sorted(path.name.removesuffix(TEMPLATE) for path in CENTRES.glob(f"*{TEMPLATE}"))


def template_of(centre: str) -> Path:
    """Return the template of a centre: the path itself, or that of the file with this name."""
    return Path(centre) if centre.endswith(TEMPLATE) else CENTRES / f"{centre}{TEMPLATE}"


def _centre(centre: str) -> str:
    if not is_file(template_of(centre)):
        near = did_you_mean(centre, known_centres())
        raise ValueError(f"is {centre!r}, and there is no such template. {near}")
    return centre


class Proposal(StrictModel):
    """The computing-time proposal that a study is for."""

    centre: Annotated[PlainPath, AfterValidator(_centre)]
    """The computing centre: the name of a template in profiles/centres, such as csc-roihu, or the path of
    your own, which ends in .md.j2."""
    unit_factor: Rate | None = None
    """Units of the centre for one GPU-hour (of a centre that counts nodes, one node-hour), if its template
    does not know it."""


class ExperimentKeys(StrictModel):
    """Keys of every experiment: device counts, repeats, the decision, limits of a run."""

    title: str = ""
    """Shown in the report. Changing it reruns nothing."""
    devices: DevicesKey
    """Device counts to compare, such as [1, 2, 4]. "2x2" (nodes x devices per node) forces a shape. {up_to:
    64} measures only those that the answer needs."""
    partitions: Annotated[list[str], Field(min_length=1)] | Literal["all"] | None = None
    """Partitions of the site to compare, such as [a100, h200], or all. Their runs have one answer. Default:
    the site's first."""
    budget: Budget | None = None
    """The most that the study may spend; for devices that are chosen."""
    repeats: RepeatsKey = Field(3, validate_default=True)
    """Jobs per device count and option. 95 % intervals are wide with 3, narrower with 6. A mapping adds jobs
    only where the decision is not clear."""
    sweep: StrictModel
    """Every combination of these values is a series with its own baseline."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to exclude: a run that matches all keys of an entry (swept keys or devices) is not
    made."""
    decision: DecisionRule = Field(default_factory=DecisionRule)
    """The rule by which the report recommends a number of devices."""
    trainings: Count | None = None
    """Trainings that are planned, such as a sweep or several seeds. The answer compares the ways to split the
    devices between them, and a proposal states their total."""
    samples_per_training: Count | None = None
    """Samples that one planned training processes, in all its epochs, if the study's runs are shorter: its
    time and cost then follow from the throughput. Default: a run of the study is a training."""
    proposal: Proposal | None = None
    """Write a computing-time proposal into results/{experiment}/proposal. Changing it reruns nothing."""
    runtime_minutes: Count = 10
    """Scalewise ends a run after this many minutes. Changing it reruns nothing."""
    memory_gb: Memory | None = None
    """Memory to request, per node, in GB. Changing it reruns nothing."""
    timeout_seconds: Annotated[int, Field(ge=5)] = 120
    """A run ends when a rank has waited this long for another: at the start, or in a collective operation.
    Raise it if evaluation or a slow file system keeps ranks apart. Changing it reruns nothing."""

    @property
    def swept(self) -> dict[str, list[Any]]:
        """The swept keys with their values, in the order of the model's keys."""
        return self.sweep.model_dump(exclude_none=True)

    @property
    def chooses_devices(self) -> bool:
        """Whether the study measures only the device counts that its answer needs."""
        return self.devices.up_to is not None

    @property
    def has_rounds(self) -> bool:
        """Whether each round of runs decides which runs come next."""
        return self.chooses_devices or self.repeats.min < self.repeats.max


class Experiment(ExperimentKeys, Settings):
    """One question about one training: the device counts to compare and the options to combine."""

    sweep: Sweep = Field(default_factory=Sweep)
    """Every combination of these values is a series with its own baseline."""
    target: Target | None = None
    """What counts as trained."""


class ProgramExperiment(ExperimentKeys, ProgramSettings):
    """One question about a user's program."""

    sweep: ProgramSweep = Field(default_factory=ProgramSweep)
    """Every combination of these values is a series with its own baseline: `argument.NAME`, or a key of this
    table."""


AnyExperiment = Experiment | ProgramExperiment


def experiment_kind(values: Mapping[str, Any]) -> type[Experiment] | type[ProgramExperiment]:
    """Return the model of an experiment: the key ``program`` decides."""
    return ProgramExperiment if "program" in values else Experiment


def read_experiment(values: Mapping[str, Any]) -> AnyExperiment:
    """Read an experiment that the planner has checked, from its keys and values."""
    return experiment_kind(values).model_validate(values)


EXPERIMENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"

PARTIAL = "partial"
"""A folder below results/ that is no experiment's."""


def _folder_name(name: str) -> str:
    if not re.fullmatch(EXPERIMENT_NAME, name) or name.lower() == PARTIAL:
        raise ValueError(
            f"is named {name!r}, which cannot be a folder's name below results/. Use at most 100 letters, "
            "digits, - and _; begin with a letter or digit."
        )
    return name


class StudyFile(StrictModel):
    """The top of ``experiments.yaml``; defaults are merged into each experiment before it is read."""

    defaults: dict[str, Any] = Field(default_factory=dict)
    """Values for every experiment that has the key and gives no other value."""
    experiments: Annotated[
        dict[Annotated[str, AfterValidator(_folder_name)], dict[str, Any]], Field(min_length=1)
    ]
    """One entry for each experiment."""
    site: PlainPath | None = None
    """Path of the site file; the profile sets it."""
