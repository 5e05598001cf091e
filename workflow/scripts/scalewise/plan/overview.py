"""The plan as a table: what would run, where, and for how many device-hours."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from scalewise.plan.resources import Allocation
from scalewise.plan.runs import Run
from scalewise.plan.study import Study

MAX_ROWS = 40
_HEADINGS = ("run", "nodes x devices", "batch/device", "epochs", "device-hours")


@dataclass(frozen=True)
class Row:
    """One point of the plan, its repeats together.

    Args:
        runs: the repeats.
        limit_seconds: a run is ended after this long.
        measured_seconds: of a repeat that has finished; None before.
        billed_devices: of one run; more than it uses where a site bills whole nodes.
        allocation: what each of them asks of Slurm; None on one machine.
    """

    runs: Sequence[Run]
    limit_seconds: float
    measured_seconds: float | None
    billed_devices: int
    allocation: Allocation | None

    @property
    def device_hours(self) -> float:
        """Of all repeats: as measured, or at most, by the time limit."""
        seconds = self.limit_seconds if self.measured_seconds is None else self.measured_seconds
        return len(self.runs) * self.billed_devices * seconds / 3600

    def cells(self) -> tuple[str, ...]:
        """The row as text."""
        run = self.runs[0]
        stem = run.name.rsplit(".", 1)[0]
        repeats = "r1" if len(self.runs) == 1 else f"r1-{len(self.runs)}"
        bound = "" if self.measured_seconds is not None else "<= "
        passes = run.settings.accumulation_steps
        return (
            f"{run.experiment}/{stem}.{repeats}",
            str(run.shape),
            f"{run.batch_size_per_device}" + (f" ({passes} passes)" if passes > 1 else ""),
            str(run.settings.epochs),
            f"{bound}{self.device_hours:.3f}",
            *([] if self.allocation is None else [self.allocation.options()]),
        )


def rows(study: Study, results: Path) -> Iterator[Row]:
    """The points of a study, in the order of the configuration."""
    for planned in study.experiments.values():
        repeats = planned.spec.repeats
        for start in range(0, len(planned.runs), repeats):
            runs = planned.runs[start : start + repeats]
            folders = (results / planned.name / "runs" / run.name for run in runs)
            # of an earlier definition too: an estimate needs no more
            measured = next((s for s in map(_seconds_taken, folders) if s is not None), None)
            shape, slurm = runs[0].shape, study.site.slurm
            whole = slurm is not None and (slurm.exclusive or slurm.partial_nodes == "billed-whole")
            billed = shape.nodes * study.site.devices_per_node if whole else shape.world_size
            allocation = study.allocations[planned.name, runs[0].name] if slurm is not None else None
            yield Row(runs, planned.spec.runtime_minutes * 60, measured, billed, allocation)


def plan_table(study: Study, results: Path = Path("results")) -> str:
    """The plan for a terminal.

    Device-hours are those of finished repeats where there are any, else the most that the time limit
    allows, marked ``<=``.
    """
    planned = list(rows(study, results))
    body = [row.cells() for row in planned[:MAX_ROWS]]
    headings = _HEADINGS if study.site.slurm is None else (*_HEADINGS, "sbatch")
    widths = [max(map(len, column)) for column in zip(headings, *body, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (headings, *body)
    ]
    if len(planned) > MAX_ROWS:
        lines.append(f"... and {len(planned) - MAX_ROWS} more")
    hours = sum(row.device_hours for row in planned)
    bound = "at most " if any(row.measured_seconds is None for row in planned) else ""
    site = study.site
    kind = "GPUs" if site.accelerator == "cuda" else "CPU processes (no GPU in use)"
    lines += [
        f"{len(study.runs)} runs, {bound}{hours:.3f} device-hours. Devices are {kind}, "
        f"{site.devices_per_node} per node.",
        *_jobs(study),
        *(f"Warning: {warning}" for warning in study.warnings),
    ]
    return "\n".join(lines)


def _jobs(study: Study) -> Iterator[str]:
    """What the scheduler will see as a whole."""
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
    if shutil.which("sbatch") is None:
        yield "Warning: there is no sbatch on this machine, so the plan cannot be started here."


def _seconds_taken(folder: Path) -> float | None:
    """Wall time of a finished run; None where there is no whole record of one."""
    try:
        provenance = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["provenance"]
        started, ended = (datetime.fromisoformat(provenance[key]) for key in ("started_at", "ended_at"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return max((ended - started).total_seconds(), 1.0)
