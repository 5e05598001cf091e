"""The points of a study as the plan shows them: requested runs, finished runs, costs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.rounds import is_settled, known_rounds, requested_repeats
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import RECORD, RecordError, read_run, seconds_between

MAX_CHANGES = 5


@dataclass(frozen=True)
class FinishedRun:
    """The record of a repeat, compared with its definition now.

    Args:
        seconds: Wall time; None if unknown.
        change: The difference that has the run trained again.
        damage: The error of its record, with the fix.
    """

    seconds: float | None = None
    change: str = ""
    damage: str = ""

    @property
    def is_valid(self) -> bool:
        """Whether the run is done as it is defined now."""
        return not (self.change or self.damage)


@dataclass(frozen=True)
class PlannedPoint:
    """One device count of one series, its repeats together.

    Args:
        run: The first repeat, requested or not.
        requested: Number of repeats that are requested.
        most: Number of repeats that may be requested.
        limit_hours: Device-hours of one run by its time limit, as billed.
        finished: The requested repeats that have a record.
        billed_devices: Devices that one run is billed for; more than it uses if a site bills whole nodes.
        allocation: The request to Slurm for one run; None on one machine.
    """

    run: RunDefinition
    requested: int
    most: int
    limit_hours: float
    finished: Sequence[FinishedRun]
    billed_devices: int
    allocation: Allocation | None

    @property
    def done(self) -> int:
        """Requested repeats that are done as they are defined now."""
        return sum(each.is_valid for each in self.finished)

    @property
    def to_do(self) -> int:
        """Requested repeats that are not done."""
        return self.requested - self.done

    @property
    def measured_hours(self) -> float | None:
        """Device-hours of the first repeat that is done; None without one."""
        seconds = next((each.seconds for each in self.finished if each.seconds is not None), None)
        return None if seconds is None else self.billed_devices * seconds / 3600

    @property
    def hours(self) -> float:
        """Device-hours of one run: as measured, or at most, by the time limit."""
        return self.limit_hours if self.measured_hours is None else self.measured_hours


def planned_points(study: Study, results: Path) -> Iterator[PlannedPoint]:
    """Yield the points of a study in the order of the configuration.

    Args:
        study: Checked.
        results: Folder of all experiments.
    """
    for planned in study.experiments.values():
        site = planned.site
        spec, most, folder = planned.experiment, planned.experiment.max_repeats, results / planned.name
        rounds = known_rounds(spec, folder)
        requested, settled = requested_repeats(spec, rounds), is_settled(spec, rounds)
        for start in range(0, len(planned.runs), most):
            run = planned.runs[start]
            repeats = requested[run.point]
            records = (
                _finished(folder / "runs" / each.run, each) for each in planned.runs[start : start + repeats]
            )
            billed = site.held_devices(run.shape)
            yield PlannedPoint(
                run,
                requested=repeats,
                most=repeats if settled else most,
                limit_hours=billed * spec.runtime_minutes / 60,
                finished=[each for each in records if each is not None],
                billed_devices=billed,
                allocation=None if site.slurm is None else study.allocations[planned.name, run.run],
            )


def _finished(folder: Path, run: RunDefinition) -> FinishedRun | None:
    """Read a run's summary; None for a run that has not finished."""
    if not os.path.lexists(folder / RECORD):
        return None
    try:
        summary = read_run(folder, folder.name)
    except RecordError as error:
        return FinishedRun(damage=str(error))
    if change := _change(summary.definition, run):
        return FinishedRun(change=change)
    origin = summary.provenance
    if origin is None:
        return FinishedRun()
    return FinishedRun(max(seconds_between(origin.started_at, origin.ended_at), 1.0))


def _change(before: RunDefinition, now: RunDefinition) -> str:
    """Return the difference of two definitions, ``epochs changed from 2 to 3``; empty for equal ones."""
    old, new = before.values, now.values
    changed = [key for key in {**new, **old} if key != "options" and old.get(key) != new.get(key)]
    return ", ".join(f"{key} changed from {old.get(key)} to {new.get(key)}" for key in changed[:MAX_CHANGES])
