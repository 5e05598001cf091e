"""The models of ``config/experiments.yaml``: every key, its type, its unit and its default.

The JSON Schema that completes the file in editors, and the table in config/README.md, are generated
from these models (schema.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from scalewise.config.errors import reject
from scalewise.config.program import ARGUMENT, ProgramSettings, ProgramSweep
from scalewise.config.settings import (
    SWEEPABLE,
    SWEEPABLE_WITH_DEFAULT,
    Count,
    Fraction,
    Memory,
    Rate,
    Settings,
    ShortForm,
    StrictModel,
    short_form,
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


class Repeats(ShortForm):
    """Jobs of every point: a fixed number, or more until the decision is clear."""

    min: Annotated[int, Field(ge=2, le=MAX_REPEATS)] = 6
    """Jobs of every point; of a study that chooses its device counts, of those that its answer rests on."""
    max: RepeatCount = 10
    """Most jobs of a point: more than `min` only where the decision is not clear."""

    @model_validator(mode="after")
    def _check_order(self) -> Repeats:
        if self.min > self.max:
            raise reject(
                f"requests at least {self.min} (min) and at most {self.max} (max) jobs of a point",
                f"Use a max of {self.min} or more, or a smaller min.",
            )
        return self

    @classmethod
    def exactly(cls, repeats: int) -> Repeats:
        """Make the form with a fixed number of jobs; a single job is possible, unlike in a mapping."""
        return cls.model_construct(min=repeats, max=repeats)

    @property
    def are_fixed(self) -> bool:
        """Whether every point has the same number of jobs, whatever their results."""
        return self.min == self.max

    @property
    def short(self) -> int | None:
        """The number of jobs; None if it depends on their results."""
        return self.max if self.are_fixed else None


RepeatsKey = Annotated[Repeats, short_form(RepeatCount, Repeats, Repeats.exactly)]


DeviceCount = int | str
"""A total, or nodes x devices per node, ``2x2``."""


class Devices(ShortForm):
    """Device counts: a list that is measured whole, or the most up to which the study chooses."""

    counts: SkipJsonSchema[list[DeviceCount]] = Field(default_factory=list)
    """The list; with ``up_to``, the counts that a site allows."""
    up_to: Count | None = None
    """Choose among all counts up to this one that fill nodes: even parts of one, and whole nodes. With strong
    scaling, those that divide the batch."""

    @model_validator(mode="after")
    def _check_is_given(self) -> Devices:
        if not (self.counts or self.up_to):
            raise reject("names no device counts", "Write {up_to: 64}.")
        return self

    @property
    def short(self) -> list[DeviceCount] | None:
        """The list; None if the study chooses."""
        return self.counts if self.up_to is None else None


DevicesKey = Annotated[
    Devices,
    short_form(
        Annotated[list[DeviceCount], Field(min_length=1)], Devices, lambda counts: Devices(counts=counts)
    ),
]


class Budget(StrictModel):
    """The most that a study may spend on its runs."""

    device_hours: Rate
    """Device-hours of all runs of the experiment together, as the site bills them. A run is made only if its
    runtime_minutes fit into what is left."""


if TYPE_CHECKING:
    Sweep = StrictModel
else:
    Sweep = sweep_model("Sweep", Settings, SWEEPABLE, SWEEPABLE_WITH_DEFAULT)


class Proposal(StrictModel):
    """The computing-time proposal that a study is for."""

    centre: str
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
    the site's default partition."""
    budget: Budget | None = None
    """The most that the study may spend; for devices that are chosen."""
    repeats: RepeatsKey = Field(3, validate_default=True)
    """Jobs per device count and option. 95 % intervals are wide with 3, narrower with 6. A mapping adds jobs
    only where the decision is not clear."""
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
    def device_counts(self) -> Sequence[int | str]:
        """The device counts that may be measured."""
        return self.devices.counts

    @property
    def chooses_devices(self) -> bool:
        """Whether the study measures only the device counts that its answer needs."""
        return self.devices.up_to is not None

    @property
    def has_rounds(self) -> bool:
        """Whether each round of runs decides which runs come next."""
        return self.chooses_devices or not self.repeats.are_fixed

    @property
    def min_repeats(self) -> int:
        """Jobs of every point."""
        return self.repeats.min

    @property
    def max_repeats(self) -> int:
        """Most jobs of a point."""
        return self.repeats.max


class Experiment(ExperimentKeys, Settings):
    """One question about one training: the device counts to compare and the options to combine."""

    sweep: Sweep = Field(default_factory=Sweep)
    """Every combination of these values is a series with its own baseline. Of image_size, stop_at_accuracy,
    bucket_cap_mb and launcher one value may be `default`: as without the key."""
    target: Target | None = None
    """What counts as trained."""

    @property
    def swept(self) -> dict[str, list[Any]]:
        """The swept keys with their values, in the order of the model's keys."""
        return self.sweep.model_dump(exclude_none=True)


class ProgramExperiment(ExperimentKeys, ProgramSettings):
    """One question about a user's program."""

    sweep: ProgramSweep = Field(default_factory=ProgramSweep)
    """Every combination of these values is a series with its own baseline: `argument.NAME`, or a key of this
    table."""

    @property
    def swept(self) -> dict[str, list[Any]]:
        """The swept keys with their values: custom values first, in their order in the file."""
        swept = self.sweep.model_dump(exclude_none=True)
        return {key: values for key, values in swept.items() if key.startswith(ARGUMENT)} | swept


AnyExperiment = Experiment | ProgramExperiment


def experiment_kind(values: Mapping[str, Any]) -> type[Experiment] | type[ProgramExperiment]:
    """Return the model of an experiment: the key ``program`` decides."""
    return ProgramExperiment if "program" in values else Experiment


def read_experiment(values: Mapping[str, Any]) -> AnyExperiment:
    """Read an experiment that the planner has checked, from its keys and values."""
    return experiment_kind(values).model_validate(values)


EXPERIMENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
MAX_EXPERIMENT_NAME = 100
