"""The plan for the terminal: a table of the runs, then what a user should know before they start."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from scalewise.config.program import AnySettings
from scalewise.config.settings import Settings
from scalewise.config.shape import count_devices
from scalewise.config.site import Site
from scalewise.plan.formatting import listed, shortened
from scalewise.plan.planned_study import Study
from scalewise.plan.terminal.choice_lines import choice_lines
from scalewise.plan.terminal.failure_lines import reason_lines
from scalewise.plan.terminal.final_message import DECISION, REPORT
from scalewise.plan.terminal.planned_points import PlannedPoint, planned_points
from scalewise.records import Start, read_regular

MAX_ROWS = 40
MAX_WARNINGS = 5


def plan_table(
    study: Study,
    results: Path = Path("results"),
    refused: Mapping[tuple[str, str], Start] = MappingProxyType({}),
) -> str:
    """Return the plan for a terminal.

    Device-hours are those of finished repeats if there are any, else the most that the time limit
    allows, marked ``<=``.

    Args:
        study: Checked.
        results: Folder of all experiments.
        refused: Failures of runs that are not started because they would fail again, by experiment and run.
    """
    points = list(planned_points(study, results))
    requested = [point for point in points if point.requested]
    chosen = {name for name, planned in study.experiments.items() if planned.experiment.chooses_devices}
    lines = [
        *_table(requested),
        f"{_to_do(requested, refused)} {_devices(study)}",
        *_refused(refused),
        *_most([point for point in points if point.run.experiment not in chosen]),
        *_parts_of_nodes(study, requested),
        *(line for planned in study.experiments.values() for line in choice_lines(planned, points, results)),
        *_jobs(study),
        *_trained_again(points),
        *_damaged(points),
        *_replaced(study, results),
        *(f"Warning: {warning}" for warning in study.warnings),
    ]
    return "\n".join(lines)


def _table(points: Sequence[PlannedPoint]) -> list[str]:
    """Return a line for each point, below headings; columns without a value are left out."""
    begun = any(point.done for point in points)
    rows = points[:MAX_ROWS]
    columns = {
        "run": [_name(point) for point in rows],
        "done": [f"{point.done} of {point.requested}" if begun else "" for point in rows],
        "nodes x devices": [str(point.run.shape) for point in rows],
        "batch/device": [_batch(point) for point in rows],
        "epochs": [_length(point.run.settings) for point in rows],
        "device-hours": [_cost(point) for point in rows],
        "sbatch": ["" if point.allocation is None else point.allocation.sbatch_args() for point in rows],
    }
    shown = [[heading, *cells] for heading, cells in columns.items() if any(cells)]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in shown]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    return [*lines, *([f"... and {len(points) - MAX_ROWS} more"] if len(points) > MAX_ROWS else [])]


def _name(point: PlannedPoint) -> str:
    """Return ``digits/d2.r1-3 (up to 10)``: a point with its requested repeats, and the most."""
    last = "" if point.requested == 1 else f"-{point.requested}"
    most = f" (up to {point.most})" if point.most > point.requested else ""
    return f"{point.run.experiment}/{point.run.point}.r1{last}{most}"


def _batch(point: PlannedPoint) -> str:
    passes = point.run.settings.accumulation_steps
    return f"{point.run.batch_size_per_device}" + (f" ({passes} passes)" if passes > 1 else "")


def _length(settings: AnySettings) -> str:
    """Return the length of a run, in epochs or steps."""
    if settings.steps is not None:
        up_to = "" if settings.steps.until_interval is None else "up to "
        return f"{settings.warmup_steps} + {up_to}{settings.steps.most} steps"
    return str(settings.epochs) if isinstance(settings, Settings) else "to its end"


def _cost(point: PlannedPoint) -> str:
    """Return the device-hours of the requested repeats: measured, or at most."""
    return f"{'<= ' if point.measured_hours is None else ''}{point.requested * point.hours:.3f}"


def _to_do(requested: Sequence[PlannedPoint], refused: Iterable[tuple[str, str]]) -> str:
    """Return how many runs are done, and the cost of the others that are started."""
    ended = Counter((experiment, run.rpartition(".r")[0]) for experiment, run in refused)
    runs, done = sum(point.requested for point in requested), sum(point.done for point in requested)
    to_do = [(point, point.to_do - ended[point.run.experiment, point.run.point]) for point in requested]
    left = [(point, number) for point, number in to_do if number > 0]
    if not left:
        if done < runs:
            return f"{done} of {runs} runs are done, and none is started."
        return f"All {runs} runs are done." if runs > 1 else "The run is done."
    hours = sum(number * point.hours for point, number in left)
    bound = "at most" if any(point.measured_hours is None for point, _ in left) else "about"
    cost = f"{count_devices(sum(number for _, number in left), 'run')}, {bound} {hours:.3f} device-hours."
    return f"{done} of {runs} runs are done. To do: {cost}" if done or ended else cost


def _refused(refused: Mapping[tuple[str, str], Start]) -> Iterator[str]:
    """Yield why runs are not started, and what has them started."""
    if refused:
        what = "A run is" if len(refused) == 1 else f"{len(refused)} runs are"
        yield (
            f"Warning: {what} not started: the time limit ended an earlier start, and would end another. "
            "Follow the advice, or delete the folder of a run to have it started from the beginning."
        )
        yield from reason_lines(("/".join(run), failure) for run, failure in refused.items())


def _devices(study: Study) -> str:
    """Return what a device is, and how many a node has, of each partition."""
    kinds = {"cuda": "GPUs", "cpu": "CPU processes (no GPU in use)"}
    on: dict[str, list[str]] = {}
    for partition, site in study.partitions.items():
        on.setdefault(f"{kinds[site.accelerator]}, {site.devices_per_node} per node", []).append(partition)
    if len(on) == 1:
        return f"Devices are {next(iter(on))}."
    return f"Devices are {'; '.join(f'{devices} on {listed(names)}' for devices, names in on.items())}."


def _most(points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield the cost if all repeats are requested that may be."""
    if any(point.most > point.requested for point in points):
        hours, runs = sum(point.most * point.hours for point in points), sum(point.most for point in points)
        yield f"Up to {hours:.3f} device-hours ({runs} runs) if all points need their most repeats."


def _parts_of_nodes(study: Study, requested: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield the price of whole nodes for runs that leave a part free, or say that such runs take turns."""
    whole, turns = [], 0
    for point in requested:
        slurm, allocation = study.experiments[point.run.experiment].site.slurm, point.allocation
        if slurm is None or allocation is None or not allocation.leaves_free or not point.to_do:
            continue
        if allocation.shares_nodes:
            turns += point.to_do
        # otherwise an answer counts whole nodes, too
        elif slurm.exclusive is None:
            whole.append(point)
    more = sum(
        point.to_do * point.hours * (1 - point.run.shape.world_size / point.billed_devices) for point in whole
    )
    if more > 0:
        runs = sum(point.to_do for point in whole)
        bound = "at most " if any(point.measured_hours is None for point in whole) else ""
        yield (
            f"{count_devices(runs, 'run')} on a part of a node {'holds' if runs == 1 else 'hold'} whole "
            f"nodes: {bound}{more:.3f} device-hours more. `exclusive: false` in the site file turns that off."
        )
    if turns > 1:
        yield f"{turns} runs on a part of a node run one at a time (`exclusive: false` in the site file)."


def _trained_again(points: Sequence[PlannedPoint]) -> Iterator[str]:
    """Yield the changes that have finished runs trained again; a key's default may be another version's."""
    changes = Counter(
        (point.run.experiment, each.change) for point in points for each in point.finished if each.change
    )
    lines = []
    for (experiment, change), number in changes.items():
        runs = "1 finished run is" if number == 1 else f"{number} finished runs are"
        keep = "; `launcher:` in the site file keeps it" if change.startswith("launcher changed") else ""
        lines.append(f"Warning: {experiment}: {runs} trained again, because {change}{keep}.")
    yield from shortened(lines, MAX_WARNINGS, "more changes of finished runs")


def _damaged(points: Sequence[PlannedPoint]) -> Iterator[str]:
    damages = [each.damage for point in points for each in point.finished if each.damage]
    lines = [f"Warning: a run is left out: {damage}" for damage in damages]
    yield from shortened(lines, MAX_WARNINGS, "more damaged records")


def _replaced(study: Study, results: Path) -> Iterator[str]:
    """Yield a warning that the report on another study is replaced."""
    try:
        answers = json.loads(read_regular(results / DECISION))
        names = {planned.key for planned in study.experiments.values()}
        others = [str(each["experiment"]) for each in answers if each["experiment"] not in names]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    if others:
        yield (
            f"Warning: {results / REPORT} is on {', '.join(others[:MAX_WARNINGS])}, not in this study. "
            "It is replaced; the tables of these experiments stay. `--directory` keeps two studies apart."
        )


def _place_of_jobs(study: Study, partition: str, site: Site) -> str:
    slurm, most = site.slurm, site.longest_minutes
    assert slurm is not None, "all partitions have Slurm, or none"
    longest = max(
        allocation.minutes
        for (experiment, _), allocation in study.allocations.items()
        if study.experiments[experiment].site.partition == partition
    )
    limit = f" of {most}" if most is not None else ""
    place = [
        f"account {slurm.account or 'by default'}",
        f"partition {slurm.partition or 'by default'}",
        *slurm.extra,
    ]
    where = f" on {partition}" if partition else ""
    return (
        f"Each run{where} is a separate job: {', '.join(place)}. The longest requests {longest}{limit} "
        "minutes."
    )


def _jobs(study: Study) -> Iterator[str]:
    """Yield the place and the length of the jobs on a cluster."""
    if study.site.slurm is None:
        return
    for partition, site in study.partitions.items():
        yield _place_of_jobs(study, partition, site)
    for name, planned in study.experiments.items():
        jobs = max(study.allocations[name, run.run].jobs for run in planned.runs)
        if jobs > 1:
            yield (
                f"A run of {name} takes up to {jobs} jobs one after the other, "
                f"{planned.experiment.runtime_minutes} minutes in jobs of at most "
                f"{planned.site.longest_minutes}: each resumes from the checkpoint of the one before."
            )
    if shutil.which("sbatch") is None:
        yield "Warning: there is no sbatch on this machine, so the plan cannot be started here."
