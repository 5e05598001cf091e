"""The plan as a table: what would run, where, and for how many device-hours."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.plan.config.program import AnySettings
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import significant
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.rounds import is_settled, known_rounds, requested_repeats
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.study import Study
from scalewise.plan.terminal.choice_lines import choice_lines
from scalewise.plan.terminal.final_message import DECISION, REPORT, EarlierFiles
from scalewise.plan.terminal.predictions import (
    PREDICTION,
    PredictedPoint,
    read_predictions,
    read_remarks,
)
from scalewise.records import SUMMARY, RecordError, read_regular, read_summary, seconds_between

MAX_ROWS = 40
MAX_PROJECTED = 20
MAX_WARNINGS = 5
_HEADINGS = ("run", "nodes x devices", "batch/device", "epochs", "device-hours")
_LEGEND = (
    "Expected speedups, and device-hours marked ~, are predicted from 1-device runs and the measured "
    "all-reduce. They are of training only: start-up and evaluation are not included."
)


@dataclass(frozen=True)
class Row:
    """One point of the plan, its repeats together.

    Args:
        run: The first repeat, asked for or not.
        runs: The repeats that are asked for.
        most_runs: Repeats that may be asked for.
        limit_seconds: A run is ended after this long.
        measured_seconds: Wall time of a repeat that has finished as it is defined now; None before.
        billed_devices: Devices that one run is billed for; more than it uses where a site bills whole nodes.
        allocation: The request to Slurm for one run; None on one machine.
        expected: The point's prediction, where there is one.
        done: Repeats that have finished as they are defined now.
        changes: A reason for each finished repeat that is trained again.
        damaged: Errors of its runs' records, with the fix.
    """

    run: RunDefinition
    runs: Sequence[RunDefinition]
    most_runs: int
    limit_seconds: float
    measured_seconds: float | None
    billed_devices: int
    allocation: Allocation | None
    expected: PredictedPoint | None = None
    done: int = 0
    changes: Sequence[str] = ()
    damaged: Sequence[str] = ()

    @property
    def to_do(self) -> int:
        """Repeats asked for that have not finished."""
        return len(self.runs) - self.done

    @property
    def device_hours_per_run(self) -> float:
        """Device-hours of one run: as measured, or at most, by the time limit."""
        seconds = self.limit_seconds if self.measured_seconds is None else self.measured_seconds
        return self.billed_devices * seconds / 3600

    def cells(self, *, predicted: bool = False, begun: bool = False) -> tuple[str, ...]:
        """The row as text.

        Args:
            predicted: The table has a column for the expected speedup.
            begun: The table has a column for the repeats that are done.
        """
        run = self.run
        repeats = "r1" if len(self.runs) == 1 else f"r1-{len(self.runs)}" if self.runs else "r0"
        repeats += f" (up to {self.most_runs})" if self.most_runs > len(self.runs) else ""
        passes = run.settings.accumulation_steps
        return (
            f"{run.experiment}/{run.point}.{repeats}",
            *([f"{self.done} of {len(self.runs)}"] if begun else []),
            str(run.shape),
            f"{run.batch_size_per_device}" + (f" ({passes} passes)" if passes > 1 else ""),
            _length(run.settings),
            *([self.expected.band if self.expected is not None else ""] if predicted else []),
            self._cost(),
            *([] if self.allocation is None else [self.allocation.sbatch_args()]),
        )

    def _cost(self) -> str:
        if self.measured_seconds is not None:
            return f"{len(self.runs) * self.device_hours_per_run:.3f}"
        run, paid = self.run, self.billed_devices / self.run.shape.world_size
        hours = _expected_hours(run, self.expected)
        if hours is None:
            return f"<= {len(self.runs) * self.device_hours_per_run:.3f}"
        return f"~{significant(hours * paid * len(self.runs), 2)}"


def _length(settings: AnySettings) -> str:
    """The length of a run, as it was asked for."""
    if settings.steps is not None:
        up_to = "" if settings.steps.until_interval is None else "up to "
        return f"{settings.warmup_steps} + {up_to}{settings.steps.most} steps"
    return str(settings.epochs) if isinstance(settings, Settings) else "to its end"


def _expected_hours(run: RunDefinition, expected: PredictedPoint | None) -> float | None:
    """Device-hours of a run that trains whole epochs, as predicted; None where that is not known."""
    if expected is None or expected.device_hours_per_epoch is None or run.settings.steps is not None:
        return None
    if not isinstance(run.settings, Settings):
        return None
    return expected.device_hours_per_epoch * run.settings.epochs


def rows(study: Study, results: Path) -> Iterator[Row]:
    """The points of a study, in the order of the configuration."""
    for planned in study.experiments.values():
        spec, most = planned.spec, planned.spec.max_repeats
        rounds = known_rounds(spec, results / planned.name)
        asked, settled = requested_repeats(spec, rounds), is_settled(spec, rounds)
        expectations = read_predictions(results / planned.name) if planned.is_predicted else {}
        for start in range(0, len(planned.runs), most):
            first = planned.runs[start]
            point = first.point
            runs = planned.runs[start : start + asked[point]]
            possible = len(runs) if settled else most
            found = [_finished(results / planned.name / "runs" / run.run, run) for run in runs]
            seconds = next((each.seconds for each in found if each.seconds is not None), None)
            done = sum(each.is_done for each in found)
            changes = [each.change for each in found if each.change]
            damaged = [each.damage for each in found if each.damage]
            shape, slurm = first.shape, study.site.slurm
            billed = study.site.billed_devices(shape)
            allocation = study.allocations[planned.name, first.run] if slurm is not None else None
            expected = expectations.get((first.series, shape))
            limit = planned.spec.runtime_minutes * 60
            yield Row(
                first, runs, possible, limit, seconds, billed, allocation, expected, done, changes, damaged
            )


def plan_table(study: Study, results: Path = Path("results")) -> str:
    """The plan for a terminal.

    Device-hours are those of finished repeats where there are any, else the most that the time limit
    allows, marked ``<=``, or what was predicted, marked ``~``.
    """
    planned = list(rows(study, results))
    predicted = any(row.expected is not None for row in planned)
    asked = [row for row in planned if row.runs]
    begun = any(row.done for row in asked)
    body = [row.cells(predicted=predicted, begun=begun) for row in asked[:MAX_ROWS]]
    headings = (
        _HEADINGS[0],
        *(["done"] if begun else []),
        *(*_HEADINGS[1:-1], *(["expected speedup"] if predicted else []), _HEADINGS[-1]),
        *([] if study.site.slurm is None else ["sbatch"]),
    )
    widths = [max(map(len, column)) for column in zip(headings, *body, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (headings, *body)
    ]
    if len(asked) > MAX_ROWS:
        lines.append(f"... and {len(asked) - MAX_ROWS} more")
    site = study.site
    kind = "GPUs" if site.accelerator == "cuda" else "CPU processes (no GPU in use)"
    lines += [
        f"{_to_do(asked)} Devices are {kind}, {site.devices_per_node} per node.",
        *_most([row for row in planned if not study.experiments[row.run.experiment].spec.chooses_devices]),
        *(line for each in study.experiments.values() for line in choice_lines(each, site, results)),
        *([_LEGEND] if predicted else []),
        *_projected(study, planned, results),
        *_jobs(study),
        *_trained_again(planned),
        *_damaged(planned),
        *_replaced(study, results),
        *(f"Warning: {warning}" for warning in study.warnings),
    ]
    return "\n".join(lines)


def _to_do(asked: Sequence[Row]) -> str:
    """Return how many runs are done, and what the others cost."""
    runs, done = sum(len(row.runs) for row in asked), sum(row.done for row in asked)
    left = [row for row in asked if row.to_do]
    if not left:
        return f"All {runs} runs are done." if runs > 1 else "The run is done."
    hours = sum(row.to_do * row.device_hours_per_run for row in left)
    bound = "at most" if any(row.measured_seconds is None for row in left) else "about"
    cost = f"{count_devices(runs - done, 'run')}, {bound} {hours:.3f} device-hours."
    return f"{done} of {runs} runs are done. To do: {cost}" if done else cost


def predicted_plan(study: Study, results: Path, earlier: EarlierFiles) -> str:
    """The plan and what is to be said of its predictions, where one was made in this session; else nothing.

    Args:
        study: Checked.
        results: Folder of all experiments.
        earlier: Files from before the session, which are left out.
    """
    paths = {name: results / name / PREDICTION for name in study.experiments}
    made = [name for name, path in paths.items() if earlier.has_new(path)]
    if not made:
        return ""
    remarks = (f"{name}: {remark}" for name in made for remark in read_remarks(results / name))
    return "\n".join([plan_table(study, results), *remarks])


def _most(planned: Sequence[Row]) -> Iterator[str]:
    """Say what repeats that are not asked for yet may come to."""
    if any(row.most_runs > len(row.runs) for row in planned):
        hours = sum(row.most_runs * row.device_hours_per_run for row in planned)
        runs = sum(row.most_runs for row in planned)
        yield f"Up to {hours:.3f} device-hours ({runs} runs) if all points need their most repeats."


def _trained_again(planned: Sequence[Row]) -> Iterator[str]:
    """Finished runs whose definition has changed, and how; the default of a key may be another version's."""
    changed = Counter((row.run.experiment, change) for row in planned for change in row.changes)
    for (experiment, change), runs in list(changed.items())[:MAX_WARNINGS]:
        them = "1 finished run is" if runs == 1 else f"{runs} finished runs are"
        keep = "; `launcher:` in the site file keeps it" if change.startswith("launcher changed") else ""
        yield f"Warning: {experiment}: {them} trained again, because {change}{keep}."
    if len(changed) > MAX_WARNINGS:
        yield f"... and {len(changed) - MAX_WARNINGS} more changes of finished runs"


def _damaged(planned: Sequence[Row]) -> Iterator[str]:
    damaged = [damage for row in planned for damage in row.damaged]
    yield from (f"Warning: a run is left out: {damage}" for damage in damaged[:MAX_WARNINGS])
    if len(damaged) > MAX_WARNINGS:
        yield f"... and {len(damaged) - MAX_WARNINGS} more damaged records"


def _replaced(study: Study, results: Path) -> Iterator[str]:
    """Say that the report on another study is replaced."""
    try:
        answers = json.loads(read_regular(results / DECISION))
        others = [str(each["experiment"]) for each in answers if each["experiment"] not in study.experiments]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if others:
        yield (
            f"Warning: {results / REPORT} is on {', '.join(others[:MAX_WARNINGS])}, not in this study. "
            "It is replaced; the reports in the folders of these experiments stay. `--directory` keeps two "
            "studies apart."
        )


def _projected(study: Study, planned: Sequence[Row], results: Path) -> Iterator[str]:
    """Tell the predictions beyond the runs: a line for each device count of each series."""
    first = {(row.run.experiment, row.run.series): row.run for row in planned}
    lines = []
    for name, experiment in study.experiments.items():
        if not experiment.is_predicted:
            continue  # what an earlier configuration left
        for (series, shape), expected in read_predictions(results / name).items():
            run = first.get((name, series))
            if run is None or shape not in experiment.projected:
                continue
            hours = _expected_hours(run, expected)
            cost = "" if hours is None else f", ~{significant(hours, 2)} device-hours a run"
            which = f"{name} ({series})" if run.options else name
            lines.append(
                f"{which} on {shape.world_size} devices ({shape}): {expected.band} times the speed, "
                f"efficiency {expected.efficiency:.2f}{cost}: predicted, not measured."
            )
    yield from lines[:MAX_PROJECTED]
    if len(lines) > MAX_PROJECTED:
        yield f"... and {len(lines) - MAX_PROJECTED} more in results/*/prediction.csv"


def _jobs(study: Study) -> Iterator[str]:
    """Tell the jobs as the scheduler will see them as a whole."""
    slurm = study.site.slurm
    if slurm is None:
        return
    longest = max(allocation.minutes for allocation in study.allocations.values())
    limit = f" of {study.site.longest_minutes}" if study.site.longest_minutes is not None else ""
    where = [
        f"account {slurm.account or 'by default'}",
        f"partition {slurm.partition or 'by default'}",
        *(f"{key} {value}" for key in ("qos", "constraint") if (value := getattr(slurm, key))),
    ]
    yield f"Each run is a job of its own: {', '.join(where)}. The longest asks for {longest}{limit} minutes."
    for name, planned in study.experiments.items():
        jobs = max(study.allocations[name, run.run].jobs for run in planned.runs)
        if jobs > 1:
            yield (
                f"A run of {name} takes up to {jobs} jobs one after the other, "
                f"{planned.spec.runtime_minutes} minutes in jobs of at most {study.site.longest_minutes}: "
                "each resumes from the checkpoint of the one before."
            )
    if shutil.which("sbatch") is None:
        yield "Warning: there is no sbatch on this machine, so the plan cannot be started here."


@dataclass(frozen=True)
class _Finished:
    """The records of a run, for the plan.

    Args:
        seconds: Wall time, of a run that was made as it is defined now.
        is_done: The run was made as it is defined now.
        change: The reason that it is trained again.
        damage: The error of its record, with the fix.
    """

    seconds: float | None = None
    is_done: bool = False
    change: str = ""
    damage: str = ""


def _finished(folder: Path, run: RunDefinition) -> _Finished:
    """Read a run's summary; nothing is set for a run that has not finished."""
    if not os.path.lexists(folder / SUMMARY):
        return _Finished()
    try:
        summary = read_summary(folder, folder.name)
    except RecordError as error:
        return _Finished(damage=str(error))
    if change := _change(summary.definition, run):
        return _Finished(change=change)
    origin = summary.provenance
    return _Finished(
        None if origin is None else max(seconds_between(origin.started_at, origin.ended_at), 1.0),
        is_done=True,
    )


def _change(before: RunDefinition, now: RunDefinition) -> str:
    """``epochs changed from 2 to 3``; empty for two equal definitions."""
    old, new = before.values, now.values
    changed = [key for key in {**new, **old} if key != "options" and old.get(key) != new.get(key)]
    return ", ".join(f"{key} changed from {old.get(key)} to {new.get(key)}" for key in changed[:MAX_WARNINGS])
