"""The plan in a terminal of 80 columns: what is trained, what it may cost, and what it requests of Slurm."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scalewise.config.settings import Settings
from scalewise.config.shape import Shape, count_devices
from scalewise.plan.allocation import most_jobs
from scalewise.plan.formatting import counts_text, cut, format_3sig, listed, shortened
from scalewise.plan.planned_study import Part, Study
from scalewise.plan.rounds import known_rounds, requested_repeats
from scalewise.plan.run_definition import RunDefinition
from scalewise.records import RECORD, Failure, RecordError, read_run, seconds_between

WIDTH = 80
MAX_ROWS = 40
MAX_WARNINGS = 5
HEADINGS = ("", "runs", "shape", "batch", "length", "device-hours")
"""Shape is nodes x devices per node, batch that of one device."""

NOT_REQUESTED = re.compile(
    "_cores|_nodes|attempt|device_budget|disk.*|mem|mpi|shared_node|slurm_extra|tmpdir|.*_mib"
)
"""Resources that are Snakemake's own, or follow from others."""

Requests = Mapping[tuple[str, str], Mapping[str, Any]]
"""Resources of each run by experiment and run, with all that profiles add and replace."""


@dataclass(frozen=True)
class PlannedPoint:
    """One device count of one series, its repeats together.

    Args:
        part: Its experiment, on its partition.
        run: The first repeat.
        requested: Number of repeats that are requested.
        done: Those of them that have a result as they are defined now.
        hours: Device-hours of one run, as billed: of a finished one, else by the time limit.
        measured: Whether the hours are those of a finished run.
        warnings: On finished runs that are trained again, and on damaged records.
    """

    part: Part
    run: RunDefinition
    requested: int
    done: int
    hours: float
    measured: bool
    warnings: Sequence[str]

    @property
    def left(self) -> int:
        """Number of runs to make."""
        return self.requested - self.done

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        run, settings = self.run, self.run.settings
        micro_batches = settings.accumulation_steps
        length = f"{settings.epochs} epochs" if isinstance(settings, Settings) else "to its end"
        if settings.steps is not None:
            length = f"{settings.warmup_steps} + {settings.steps} steps"
        return (
            run.point,
            f"{self.done} of {self.requested}" if self.done else str(self.requested),
            str(run.shape),
            f"{run.batch_size_per_device}" + (f" x {micro_batches}" if micro_batches > 1 else ""),
            length,
            f"{'' if self.measured else '<= '}{self.requested * self.hours:.3f}",
        )


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
    points = [point for part in study.parts for point in _points(part, results)]
    rows = [point for point in points if point.requested]
    yield from _table(rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        yield f"... and {len(rows) - MAX_ROWS} more points"
    sentences = [
        *(text for part in study.parts for text in _choice(part, points)),
        f"{_to_do(rows)} {_devices(study)}",
        *_refused(refused),
        *_requests(requests, study),
        *_whole_nodes(rows),
        *_warnings(study, rows),
    ]
    for sentence in sentences:
        yield from textwrap.wrap(
            sentence, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )


def _points(part: Part, results: Path) -> Iterator[PlannedPoint]:
    spec, folder = part.experiment, results / part.name
    requested = requested_repeats(spec, known_rounds(spec, folder))
    for start in range(0, len(part.runs), spec.repeats.max):
        first = part.runs[start]
        warnings: list[str] = []
        seconds: list[float] = []
        for run in part.runs[start : start + requested[first.point]]:
            path = folder / "runs" / run.run
            if not (path / RECORD).exists():
                continue
            try:
                record = read_run(path, run.run)
            except RecordError as error:
                warnings.append(str(error))
                continue
            if change := _change(record.definition, run):
                warnings.append(f"{run.experiment}: finished runs are trained again, because {change}.")
            else:
                origin = record.provenance
                seconds.append(seconds_between(origin.started_at, origin.ended_at) if origin else 0.0)
        measured = next((each for each in seconds if each > 0), None)
        hours = part.site.held_devices(first.shape) * (measured or 60 * spec.runtime_minutes) / 3600
        yield PlannedPoint(
            part, first, requested[first.point], len(seconds), hours, measured is not None, warnings
        )


def _change(before: RunDefinition, now: RunDefinition) -> str:
    """Return the difference of two definitions, ``epochs changed from 2 to 3``; empty for equal ones."""
    old, new = before.values, now.values
    changed = [key for key in {**new, **old} if key != "options" and old.get(key) != new.get(key)]
    texts = [f"{key} changed from {old.get(key)} to {new.get(key)}" for key in changed]
    return ", ".join(shortened(texts, MAX_WARNINGS, "more keys"))


def _table(points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield a line for each point, below its experiment; a name is cut to the room for it."""
    rows = [HEADINGS, *(point.cells for point in points)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * len(widths))
    experiment = ""
    for point, (name, *others) in zip([None, *points], rows, strict=True):
        if point is not None and point.run.experiment != experiment:
            experiment = point.run.experiment
            yield experiment
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join(["", cut(name, widths[0]).ljust(widths[0]), *numbers])


def _choice(part: Part, points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield the counts that an experiment chooses among, and the most that this may cost."""
    spec = part.experiment
    if spec.chooses_devices:
        hours = sum(point.hours * spec.repeats.max for point in points if point.part is part)
        counts = counts_text(sorted({run.shape.world_size for run in part.runs}))
        where = f" on {part.partition}" if part.partition else ""
        limit = "`budget: {device_hours: ...}` sets a limit"
        if spec.budget is not None:
            hours, limit = spec.budget.device_hours, "its budget"
        most = f"at most {format_3sig(hours)} device-hours"
        yield f"{part.name} chooses among {counts} devices{where}: {most}, {limit}."


def _to_do(points: Sequence[PlannedPoint]) -> str:
    """Return how many runs are done, and the cost of the others."""
    runs, done = sum(point.requested for point in points), sum(point.done for point in points)
    left = [point for point in points if point.left]
    if not left:
        return "The run is done." if runs == 1 else f"All {runs} runs are done."
    bound = "about" if all(point.measured for point in left) else "at most"
    hours = sum(point.left * point.hours for point in left)
    cost = f"{count_devices(runs - done, 'run')}, {bound} {hours:.3f} device-hours."
    return f"{done} of {runs} runs are done. To do: {cost}" if done else cost


def _devices(study: Study) -> str:
    """Return what a device is, and how many a node has, on each partition."""
    kinds = {"cuda": "GPUs", "cpu": "CPU processes (no GPU in use)"}
    on: dict[str, list[str]] = {}
    for partition, site in study.partitions.items():
        on.setdefault(f"{kinds[site.accelerator]}, {site.devices_per_node} per node", []).append(partition)
    texts = [f"{kind} on {listed(names)}" if len(on) > 1 else kind for kind, names in on.items()]
    return f"Devices are {'; '.join(texts)}."


def _refused(refused: Mapping[tuple[str, str], Failure]) -> Iterator[str]:
    """Yield the runs that are not started, with the reason of the first."""
    if refused:
        (experiment, run), failure = next(iter(refused.items()))
        others = f" and {count_devices(len(refused) - 1, 'other run')}" if len(refused) > 1 else ""
        yield (
            f"Warning: {experiment}/{run}{others} would end as before, and {'are' if others else 'is'} not "
            f"started. {failure.outcome}: {failure.reason} `cli.py redo --failed` has it start all the same."
        )


def _requests(requests: Requests, study: Study) -> Iterator[str]:
    """Yield what jobs request of Slurm, with the profile's part: what all do, then a line for each shape."""
    if study.site.slurm is None:
        return
    runs = [(run, requests[key]) for key, run in study.runs.items() if key in requests]
    jobs = dict.fromkeys((run.partition, run.shape, _words(resources)) for run, resources in runs)
    common = set.intersection(*(set(words) for *_, words in jobs)) if jobs else set()
    # these make a shape
    common = {word for word in common if not word.startswith(("nodes=", "--ntasks-per-node="))}
    if common:
        yield f"Each job requests {' '.join(word for word in next(iter(jobs))[2] if word in common)}"
    by_shape: dict[tuple[str, Shape], dict[str, list[str]]] = {}
    for partition, shape, words in jobs:
        options = by_shape.setdefault((partition, shape), {})
        for word in (word for word in words if word not in common):
            name, equals, value = word.partition("=")
            values = options.setdefault(f"{name}{equals}", [])
            values += [value] if value not in values else []
    for (partition, shape), options in sorted(by_shape.items()):
        where = f" on {partition}" if partition else ""
        yield f"  {shape}{where}: {' '.join(name + '|'.join(values) for name, values in options.items())}"
    if shutil.which("sbatch") is None:
        yield "Warning: there is no sbatch on this machine, so the plan cannot be started here."
    for name, parts in study.experiments.items():
        most = max(most_jobs(part.experiment.runtime_minutes, part.site.longest_minutes) for part in parts)
        if most > 1:
            yield f"A run of {name} takes up to {most} jobs, each from the checkpoint of the one before."


def _words(resources: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the resources of a job, and its options of sbatch, as text of the shell."""
    words = [f"{name}={value}" for name, value in resources.items() if not NOT_REQUESTED.fullmatch(name)]
    return (*words, *map(shlex.quote, shlex.split(str(resources.get("slurm_extra", "")))))


def _whole_nodes(points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield the price of whole nodes for runs that leave a part free."""
    idle = 0.0
    for point in points:
        site, shape = point.part.site, point.run.shape
        idle += point.left * point.hours * (1 - site.billed_devices(shape) / site.held_devices(shape))
    if idle > 0:
        yield (
            f"Runs on a part of a node hold whole nodes: {idle:.3f} of these device-hours are idle. "
            "`exclusive: false` in the site file turns that off."
        )


def _warnings(study: Study, points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield what has finished runs trained again, damaged records, and the study's own warnings."""
    found = Counter(warning for point in points for warning in point.warnings)
    lines = [f"{text} ({count_devices(number, 'run')})" for text, number in found.items()]
    for warning in (*shortened(lines, MAX_WARNINGS, "more warnings"), *study.warnings):
        yield f"Warning: {warning}"
