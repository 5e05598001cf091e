"""The points of a study as far as watching needs them, small enough to be handed on in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.plan.config.experiment import AnyExperiment, Experiment
from scalewise.plan.config.shape import count_devices, device_noun
from scalewise.plan.runs.rounds import is_settled, known_rounds, requested_repeats
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.plan.study import Study
from scalewise.plan.terminal.choice_lines import answer_text
from scalewise.records import RecordError

RunKey = tuple[str, str]
"""Experiment and run."""


class WatchedPoint(BaseModel):
    """One device count of one series.

    Args:
        series: Empty where an experiment has one alone.
        name: ``d2.bucket-view-on``; runs are called ``d2.bucket-view-on.r1``.
        most: Repeats that may ever be asked for.
        billed_devices: Devices that one run is paid for.
        noun: ``GPU`` or ``CPU process``.
    """

    model_config = ConfigDict(frozen=True)

    experiment: str
    series: str
    devices: int
    name: str
    most: int
    billed_devices: float
    noun: str = "device"

    def run(self, repeat: int) -> RunKey:
        """A repeat of it, counted from 1."""
        return self.experiment, f"{self.name}.r{repeat}"

    @property
    def label(self) -> str:
        """``digits-strong, 2 GPUs, bucket-view-on``."""
        return ", ".join(filter(None, (self.experiment, self.count(self.devices), self.series)))

    def count(self, devices: int) -> str:
        """Return a number of devices with what they are, such as ``4 GPUs``."""
        return count_devices(devices, self.noun)


class Criterion(BaseModel):
    """Criteria of an experiment, as far as they are known while its runs are made.

    Args:
        min_efficiency: Least parallel efficiency; None where something else decides.
    """

    model_config = ConfigDict(frozen=True)

    min_efficiency: float | None = None

    @classmethod
    def of(cls, spec: AnyExperiment) -> Criterion:
        """The criterion of an experiment; with a goal the efficiency asked for is that of the time to it."""
        goal = spec.target if isinstance(spec, Experiment) else spec.metric
        return cls(min_efficiency=None if goal else spec.decision.min_efficiency)


class WatchedStudy(BaseModel):
    """All points, in the order of the configuration.

    Args:
        criteria: Criteria by experiment.
        device_budget: Devices that jobs in the queue or running may ask for together; None on one machine,
            where one run follows the other.
    """

    model_config = ConfigDict(frozen=True)

    points: tuple[WatchedPoint, ...]
    criteria: dict[str, Criterion]
    device_budget: int | None = None

    @classmethod
    def of(cls, study: Study, device_budget: int | None) -> WatchedStudy:
        """The points of a configuration."""
        points, criteria = [], {}
        for name, planned in study.experiments.items():
            most = planned.spec.max_repeats
            for run in planned.runs[::most]:
                points.append(
                    WatchedPoint(
                        experiment=name,
                        series="" if run.series == NO_OPTIONS else run.series,
                        devices=run.shape.world_size,
                        name=run.point,
                        most=most,
                        billed_devices=float(study.site.billed_devices(run.shape)),
                        noun=device_noun(run.accelerator),
                    )
                )
            criteria[name] = Criterion.of(planned.spec)
        return cls(points=tuple(points), criteria=criteria, device_budget=device_budget)


class Rounds(BaseModel):
    """Results of the rounds of a study so far.

    Args:
        asked: Repeats that are asked for, by experiment and the name of the point.
        lines: Findings on the answer of a study that chooses its device counts.
        may_ask_for_more: Whether more runs than those may follow.
    """

    model_config = ConfigDict(frozen=True)

    asked: dict[str, dict[str, int]]
    lines: tuple[str, ...] = ()
    may_ask_for_more: bool = False

    def asked_of(self, point: WatchedPoint) -> int:
        """Repeats that are asked for."""
        return self.asked.get(point.experiment, {}).get(point.name, point.most)


def read_rounds(specs: Mapping[str, AnyExperiment], results: Path) -> Rounds:
    """Read the rounds as far as they have been judged.

    Args:
        specs: Every experiment's keys, by name.
        results: Folder of all experiments.
    """
    asked, lines, settled = {}, [], True
    for name, spec in specs.items():
        try:
            rounds = known_rounds(spec, results / name)
        except (OSError, RecordError):
            rounds = []
        asked[name] = requested_repeats(spec, rounds)
        settled = settled and is_settled(spec, rounds)
        for choice in rounds[-1].choices if rounds else ():
            which = "" if choice.series == NO_OPTIONS else f" ({choice.series})"
            if told := answer_text(rounds[-1], choice):
                lines.append(f"{name}{which}, round {rounds[-1].number}: {told}")
    return Rounds(asked=asked, lines=tuple(lines), may_ask_for_more=not settled)


RunState = Literal["later", "waiting", "queued", "starting", "running", "done", "failed"]
"""A run's state. Later: this session does not make it. Waiting: not handed to Slurm or to this machine."""
