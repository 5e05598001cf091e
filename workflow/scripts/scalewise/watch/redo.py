"""Remove the records of disturbed runs, so that the next snakemake makes these runs again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from scalewise.analysis.disturbed import disturbance
from scalewise.execution.lock import LockError, lock_run
from scalewise.plan.formatting import pluralize
from scalewise.plan.plan_file import Plan, runs_in_slurm
from scalewise.records import RECORD, RecordError, read_run

SNAKEMAKE_LOCKS = Path(".snakemake/locks")
"""Holds a file while Snakemake works in the folder, or after it was killed."""
REMOVED = ".removed-"
"""Begins the name of a run's folder whose records are deleted."""


class RedoError(Exception):
    """No records can be removed now."""


def redo_disturbed(
    plan: Plan, results: Path, experiments: Sequence[str] = (), *, dry_run: bool = False
) -> list[str]:
    """Remove the records of the disturbed runs of a study, except those of a run that is being made.

    The folder of a run is renamed while this process holds the run's lock: a run is there whole, or it is
    missing. Runs that the plan does not have are kept, because no study would make them again.

    Args:
        plan: The study.
        results: Folder of all experiments.
        experiments: Names of experiments, without partition for all of its partitions; by default all.
        dry_run: Remove nothing.

    Returns:
        A line for each disturbed run, what was done, and what to do next.

    Raises:
        RedoError: Snakemake works in this folder, or an experiment is not in the study.
    """
    if any(SNAKEMAKE_LOCKS.glob("*")) and not dry_run:
        raise RedoError(
            "Snakemake works in this folder. Wait for its end. If it was killed, run `snakemake --unlock`."
        )
    chosen = [name for name in plan["experiments"] if not experiments or _is_in(name, experiments)]
    if unknown := [name for name in experiments if not any(_is_in(each, [name]) for each in chosen)]:
        raise RedoError(f"{', '.join(unknown)}: not in the study. It has {', '.join(plan['experiments'])}.")
    runs = [results / name / "runs" / run for name in chosen for run in plan["runs"].get(name, {})]
    made = [run for run in runs if (run / RECORD).exists()]
    disturbed = {run: reason for run in made if (reason := _reason(run))}
    lines = [f"{run.parents[1].name}/{run.name}: {reason}" for run, reason in disturbed.items()]
    if not disturbed:
        return [f"None of {pluralize(str(len(made)), 'run')} was disturbed."]
    count = f"{len(disturbed)} of {pluralize(str(len(made)), 'run')}"
    if dry_run:
        return [
            *lines,
            f"{count} were disturbed. Nothing was removed: this is a dry run.",
        ]
    kept = [
        f"{run.parents[1].name}/{run.name} is being made, and was kept."
        for run in disturbed
        if not _remove(run)
    ]
    in_slurm = any(runs_in_slurm(plan, plan["experiments"][name]) for name in chosen)
    where = "with `slurm.exclusive: true` in the site file" if in_slurm else "on a quiet machine"
    return [
        *lines,
        *kept,
        f"{count} were disturbed; the records of {len(disturbed) - len(kept)} were removed.",
        f"Next: run the same snakemake command again, {where}. It makes only the missing runs.",
    ]


def _is_in(experiment: str, names: Sequence[str]) -> bool:
    return experiment in names or experiment.partition("@")[0] in names


def _reason(run: Path) -> str:
    """Return what disturbed a run that has completed; empty if nothing did, or if its record is damaged."""
    try:
        record = read_run(run, run.name)
    except RecordError:
        return ""
    if record.outcome != "completed" or record.measurements is None:
        return ""
    origin = record.provenance.model_dump() if record.provenance is not None else {}
    return disturbance(origin | record.measurements.model_dump())


def _remove(run: Path) -> bool:
    """Remove the folder of a run; return False if another process holds the run."""
    removed = run.with_name(f"{REMOVED}{run.name}")
    # left by a process that was killed here
    shutil.rmtree(removed, ignore_errors=True)
    try:
        with lock_run(run, 0.0, lambda _: None):
            # the lock goes with the folder
            run.rename(removed)
    except LockError:
        return False
    shutil.rmtree(removed)
    return True
