"""The plan in a terminal of 80 columns: what is trained, what it may cost, and what it asks of Slurm."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scalewise.config.program import AnySettings
from scalewise.config.settings import Settings
from scalewise.config.shape import count_devices
from scalewise.plan.formatting import counts_text, format_3sig, listed, shortened
from scalewise.plan.planned_study import PlannedExperiment, Study
from scalewise.plan.runs.rounds import known_rounds, requested_repeats
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import RECORD, Failure, RecordError, read_regular, read_run, seconds_between

WIDTH = 80
MAX_ROWS = 40
MAX_WARNINGS = 5
HEADINGS = ("", "runs", "shape", "batch", "length", "device-hours")
"""Shape is nodes x devices per node, batch that of one device."""

NOT_REQUESTED = ("_cores", "_nodes", "attempt", "device_budget", "mem", "mpi", "shared_node", "tmpdir")
"""Resources that are Snakemake's own, or follow from others."""

Requests = Mapping[tuple[str, str], Mapping[str, Any]]
"""Resources of each run by experiment and run, with all that profiles add and replace."""


@dataclass(frozen=True)
class PlannedPoint:
    """One device count of one series, its repeats together.

    Args:
        run: The first repeat.
        requested: Number of repeats that are requested.
        done: Those of them that have a result as they are defined now.
        hours: Device-hours of one run, as billed: of a finished one, else by the time limit.
        measured: Whether the hours are those of a finished run.
        changes: Difference of each finished run that is trained again.
        damages: Errors of records, with the fix.
    """

    run: RunDefinition
    requested: int
    done: int
    hours: float
    measured: bool
    changes: Sequence[str]
    damages: Sequence[str]


def plan_lines(
    study: Study,
    results: Path,
    requests: Requests = MappingProxyType({}),
    refused: Mapping[tuple[str, str], Failure] = MappingProxyType({}),
) -> Iterator[str]:
    """Yield the plan: a row for each point, the cost, and what a user should know before runs start.

    Args:
        study: Checked.
        results: Folder of all experiments.
        requests: Resources of the runs that are to be made.
        refused: Failures of runs that are not started, as they would fail again.
    """
    points = {planned.name: _points(planned, results) for planned in study.experiments.values()}
    rows = [point for of_one in points.values() for point in of_one if point.requested]
    yield from _table(rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        yield f"... and {len(rows) - MAX_ROWS} more points"
    for name, of_one in points.items():
        yield from _choice(study.experiments[name], of_one, results)
    sentences = [
        f"{_to_do(rows)} {_devices(study)}",
        *_refused(refused),
        *_requests(requests, study),
        *_whole_nodes(study, rows),
        *_long_runs(study),
        *_warnings(study, rows, results),
    ]
    for sentence in sentences:
        yield from textwrap.wrap(
            sentence, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )


def _points(planned: PlannedExperiment, results: Path) -> list[PlannedPoint]:
    spec, folder = planned.experiment, results / planned.name
    requested = requested_repeats(spec, known_rounds(spec, folder))
    found = []
    for start in range(0, len(planned.runs), spec.max_repeats):
        run = planned.runs[start]
        number = requested[run.point]
        billed = planned.site.held_devices(run.shape)
        changes: list[str] = []
        damages: list[str] = []
        seconds: list[float] = []
        for each in planned.runs[start : start + number]:
            path = folder / "runs" / each.run
            if not (path / RECORD).exists():
                continue
            try:
                record = read_run(path, each.run)
            except RecordError as error:
                damages.append(str(error))
                continue
            if change := _change(record.definition, each):
                changes.append(change)
            else:
                origin = record.provenance
                seconds.append(seconds_between(origin.started_at, origin.ended_at) if origin else 0.0)
        measured = [each for each in seconds if each > 0]
        hours = billed * (measured[0] / 3600 if measured else spec.runtime_minutes / 60)
        found.append(PlannedPoint(run, number, len(seconds), hours, bool(measured), changes, damages))
    return found


def _change(before: RunDefinition, now: RunDefinition) -> str:
    """Return the difference of two definitions, ``epochs changed from 2 to 3``; empty for equal ones."""
    old, new = before.values, now.values
    changed = [key for key in {**new, **old} if key != "options" and old.get(key) != new.get(key)]
    texts = [f"{key} changed from {old.get(key)} to {new.get(key)}" for key in changed]
    return ", ".join(shortened(texts, MAX_WARNINGS, "more keys"))


def _table(points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield a line for each point, below its experiment; a name is cut to the room for it."""
    cells = [HEADINGS, *((each.run.point, *_cells(each)) for each in points)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * len(widths))
    experiment = ""
    for point, (name, *others) in zip([None, *points], cells, strict=True):
        if point is not None and point.run.experiment != experiment:
            experiment = point.run.experiment
            yield experiment
        cut = name if len(name) <= widths[0] else f"{name[: widths[0] - 2]}.."
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join(["", cut.ljust(widths[0]), *numbers])


def _cells(point: PlannedPoint) -> tuple[str, ...]:
    run = point.run
    passes = run.settings.accumulation_steps
    return (
        f"{point.done} of {point.requested}" if point.done else str(point.requested),
        str(run.shape),
        f"{run.batch_size_per_device}" + (f" x {passes}" if passes > 1 else ""),
        _length(run.settings),
        f"{'' if point.measured else '<= '}{point.requested * point.hours:.3f}",
    )


def _length(settings: AnySettings) -> str:
    """Return the length of a run, in epochs or steps."""
    if settings.steps is not None:
        return f"{settings.warmup_steps} + {settings.steps} steps"
    return f"{settings.epochs} epochs" if isinstance(settings, Settings) else "to its end"


def _to_do(points: Sequence[PlannedPoint]) -> str:
    """Return how many runs are done, and the cost of the others."""
    runs, done = sum(point.requested for point in points), sum(point.done for point in points)
    left = [point for point in points if point.done < point.requested]
    if not left:
        return f"All {count_devices(runs, 'run')} are done."
    hours = sum((point.requested - point.done) * point.hours for point in left)
    bound = "about" if all(point.measured for point in left) else "at most"
    cost = f"{count_devices(runs - done, 'run')}, {bound} {hours:.3f} device-hours."
    return f"{done} of {runs} runs are done. To do: {cost}" if done else cost


def _refused(refused: Mapping[tuple[str, str], Failure]) -> Iterator[str]:
    """Yield the runs that are not started, with the reason of the first."""
    if refused:
        (experiment, run), failure = next(iter(refused.items()))
        others = f" and {count_devices(len(refused) - 1, 'other run')}" if len(refused) > 1 else ""
        yield (
            f"Warning: {experiment}/{run}{others} would end as before, and {'are' if others else 'is'} not "
            f"started. {failure.outcome}: {failure.reason} `cli.py redo --failed` has it start all the same."
        )


def _devices(study: Study) -> str:
    """Return what a device is, and how many a node has, of each partition."""
    kinds = {"cuda": "GPUs", "cpu": "CPU processes (no GPU in use)"}
    on: dict[str, list[str]] = {}
    for partition, site in study.partitions.items():
        on.setdefault(f"{kinds[site.accelerator]}, {site.devices_per_node} per node", []).append(partition)
    if len(on) == 1:
        return f"Devices are {next(iter(on))}."
    return f"Devices are {'; '.join(f'{devices} on {listed(names)}' for devices, names in on.items())}."


def _choice(planned: PlannedExperiment, points: Sequence[PlannedPoint], results: Path) -> Iterator[str]:
    """Yield the counts that an experiment chooses among, and the most that this may cost."""
    spec = planned.experiment
    if not spec.chooses_devices:
        return
    counts = sorted({run.shape.world_size for run in planned.runs})
    yield f"{planned.name} chooses among {len(counts)} device counts: {counts_text(counts)}"
    if planned.budget is None:
        most = sum(each.hours * spec.max_repeats for each in points)
        yield f"  at most {format_3sig(most)} device-hours; `budget: {{device_hours: ...}}` sets a limit"
        return
    rounds = known_rounds(spec, results / planned.name)
    spent = (rounds[-1].spent_device_hours or 0.0) if rounds else 0.0
    yield f"  at most {planned.budget:.4g} device-hours by its budget, {format_3sig(spent)} are spent"


def _requests(requests: Requests, study: Study) -> Iterator[str]:
    """Yield what runs ask of Slurm, each different request once; profiles are part of it."""
    if study.site.slurm is None:
        return
    alike: dict[str, set[str]] = {}
    for (experiment, run), resources in requests.items():
        planned = study.runs.get((experiment, run))
        if planned is not None:
            requested = (f"{name}={value}" for name, value in resources.items() if _is_shown(name))
            alike.setdefault(" ".join(requested), set()).add(str(planned.shape))
    for words, shapes in sorted(alike.items()):
        yield f"A run on {listed(sorted(shapes))} requests {words}"
    if shutil.which("sbatch") is None:
        yield "Warning: there is no sbatch on this machine, so the plan cannot be started here."


def _is_shown(name: str) -> bool:
    return name not in NOT_REQUESTED and not name.endswith("_mib") and not name.startswith("disk")


def _whole_nodes(study: Study, points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield the price of whole nodes for runs that leave a part free, or say that such runs take turns."""
    more, turns = 0.0, 0
    for point in points:
        planned, left = study.experiments[point.run.experiment], point.requested - point.done
        allocation = study.allocations[point.run.experiment, point.run.run]
        if planned.site.slurm is None or not allocation.leaves_free:
            continue
        if allocation.shares_nodes:
            turns += left
        else:
            held = planned.site.held_devices(point.run.shape)
            more += left * point.hours * (1 - planned.site.billed_devices(point.run.shape) / held)
    if more > 0:
        yield (
            f"Runs on a part of a node hold whole nodes: at most {more:.3f} device-hours more. "
            "`exclusive: false` in the site file turns that off."
        )
    if turns > 1:
        yield f"{turns} runs on a part of a node run one at a time (`exclusive: false` in the site file)."


def _long_runs(study: Study) -> Iterator[str]:
    for name, planned in study.experiments.items():
        jobs = max(study.allocations[name, run.run].jobs for run in planned.runs)
        if jobs > 1:
            yield (
                f"A run of {name} takes up to {jobs} jobs one after the other: "
                f"{planned.experiment.runtime_minutes} minutes in jobs of at most "
                f"{planned.site.longest_minutes}, each from the checkpoint of the one before."
            )


def _warnings(study: Study, points: Sequence[PlannedPoint], results: Path) -> Iterator[str]:
    """Yield what has finished runs trained again, damaged records, and the study's own warnings."""
    changes = Counter((point.run.experiment, change) for point in points for change in point.changes)
    lines = [
        f"Warning: {experiment}: {count_devices(number, 'finished run')} trained again, because {change}."
        for (experiment, change), number in changes.items()
    ]
    yield from shortened(lines, MAX_WARNINGS, "more changes of finished runs")
    damages = [f"Warning: {damage}" for point in points for damage in point.damages]
    yield from shortened(damages, MAX_WARNINGS, "more damaged records")
    yield from _replaced(study, results)
    yield from (f"Warning: {warning}" for warning in study.warnings)


def _replaced(study: Study, results: Path) -> Iterator[str]:
    """Yield a warning that the report on another study is replaced."""
    try:
        answers = json.loads(read_regular(results / "decision.json"))
        names = {planned.key for planned in study.experiments.values()}
        others = [str(each["experiment"]) for each in answers if each["experiment"] not in names]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if others:
        yield (
            f"Warning: {results / 'report.html'} is on {listed(others[:MAX_WARNINGS])}, not in this study. "
            "It is replaced; the tables of these experiments stay. `--directory` keeps two studies apart."
        )
