"""Remove the records of some runs, so that the next snakemake makes these runs again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from scalewise.analysis.disturbed import disturbance
from scalewise.execution.lock import LockError, lock_run
from scalewise.execution.slurm import queued_jobs
from scalewise.plan.plan_file import Plan, runs_in_slurm
from scalewise.records import FAILURE, RECORD, RecordError, read_failure, read_run

SNAKEMAKE_LOCKS = Path(".snakemake/locks")
"""Holds a file while Snakemake works in the folder, or after it was killed."""
REMOVED = ".removed-"
"""Begins the name of a run's folder whose records are deleted."""


class RedoError(Exception):
    """No records can be removed now."""


def redo(
    plan: Plan,
    results: Path,
    names: Sequence[str] = (),
    *,
    disturbed: bool = False,
    failed: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """Remove the records of runs, except those of a run that is being made.

    The folder of a run is renamed while this process holds the run's lock: a run is there whole, or it is
    missing. Runs that the plan does not have are kept, because no study would make them again.

    Args:
        plan: The study.
        results: Folder of all experiments.
        names: Runs, ``digits/d2.r1``, or experiments; of these only runs that the next two choose.
        disturbed: Choose the runs that something disturbed.
        failed: Choose the runs that have not completed.
        dry_run: Remove nothing.

    Returns:
        A line for each run, what was done, and what to do next.

    Raises:
        RedoError: Snakemake works in this folder, or a name is not in the study.
    """
    if any(SNAKEMAKE_LOCKS.glob("*")) and not dry_run:
        raise RedoError(
            "Snakemake works in this folder. Wait for its end. If it was killed, run `snakemake --unlock`."
        )
    planned = [f"{experiment}/{run}" for experiment, runs in plan["runs"].items() for run in runs]
    if unknown := [name for name in names if not any(_is_in(run, name) for run in planned)]:
        raise RedoError(f"{', '.join(unknown)}: not in the study. It has {', '.join(plan['experiments'])}.")
    folders = {
        run: results / run.partition("/")[0] / "runs" / run.partition("/")[2]
        for run in planned
        if not names or any(_is_in(run, name) for name in names)
    }
    chosen = {
        run: reason
        for run, folder in folders.items()
        if folder.exists() and (reason := _reason(folder, disturbed=disturbed, failed=failed))
    }
    lines = [f"{run}: {reason}" for run, reason in chosen.items()]
    if not chosen:
        return ["There is no such run: nothing was removed."]
    if dry_run:
        return [*lines, "Nothing was removed: this is a dry run."]
    at_work = _in_slurm(plan)
    kept = [run for run in chosen if run.replace("/", "_", 1) in at_work or not _remove(folders[run])]
    return [
        *lines,
        *(f"{run} is being made, and was kept." for run in kept),
        f"The records of {len(chosen) - len(kept)} of {len(folders)} runs were removed. Next: give the same "
        "snakemake command again. It makes only the missing runs.",
    ]


def _is_in(run: str, name: str) -> bool:
    """Return whether a name is that of a run, of its experiment, or of that on all partitions."""
    experiment = run.partition("/")[0]
    return name in (run, experiment, experiment.partition("@")[0])


def _reason(folder: Path, *, disturbed: bool, failed: bool) -> str:
    """Return why a run is chosen; empty if it is not."""
    named = not (disturbed or failed)
    try:
        if not (folder / RECORD).exists():
            failure = read_failure(folder)
            return f"{failure.outcome}: {failure.reason}" if failure is not None and (failed or named) else ""
        record = read_run(folder, folder.name)
    except RecordError as error:
        return str(error) if failed or named else ""
    if record.outcome != "completed" or record.measurements is None:
        return f"{record.outcome}: {record.reason}" if failed or named else ""
    origin = record.provenance.model_dump() if record.provenance is not None else {}
    found = disturbance(origin | record.measurements.model_dump())
    if named:
        return found or "named"
    return found if disturbed else ""


def _in_slurm(plan: Plan) -> set[str]:
    """Return the wildcards of this folder's jobs that Slurm runs now, as in their comments."""
    if not any(runs_in_slurm(plan, facts) for facts in plan["experiments"].values()):
        return set()
    return {
        job.comment.partition("_wildcards_")[2]
        for job in queued_jobs()
        if job.folder == str(Path.cwd()) and job.state != "PENDING"
    }


def _remove(run: Path) -> bool:
    """Remove the folder of a run; return False if another process of this machine holds the run.

    Of a run without a result only the failure goes: what its program has saved is there to resume from.
    """
    if not (run / RECORD).exists():
        try:
            with lock_run(run, 0.0, lambda _: None):
                (run / FAILURE).unlink(missing_ok=True)
        except LockError:
            return False
        return True
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
