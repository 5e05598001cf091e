"""Remove the records of some runs, so that the next snakemake makes these runs again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.disturbed import DISTURBED
from scalewise.analysis.runs import NOT_RUN, OUT_OF_DATE, collect
from scalewise.analysis.study import parts_of
from scalewise.config.errors import UserError, did_you_mean
from scalewise.execution.rank_files import ATTEMPT, RankFiles
from scalewise.execution.slurm import queued_runs
from scalewise.plan.plan_file import Plan
from scalewise.records import FAILURE, RECORD

SNAKEMAKE_LOCKS = Path(".snakemake/locks")
"""Holds a file while Snakemake works in the folder, or after it was killed."""
NOT_FAILED = {"completed", DISTURBED, OTHER_CONDITIONS, NOT_RUN, OUT_OF_DATE}


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

    Runs that the plan does not have are kept, because no study would make them again.

    Args:
        plan: The study.
        results: Folder of all experiments.
        names: Runs, ``digits/d2.r1``, patterns, ``digits/d2.*``, or experiments; of these only runs that the
            next two choose.
        disturbed: Choose the runs that something disturbed.
        failed: Choose the runs that have not completed.
        dry_run: Remove nothing.

    Returns:
        A line for each run, what was done, and what to do next.

    Raises:
        UserError: Snakemake works in this folder, nothing is chosen, or a name is not in the study.
    """
    if not (names or disturbed or failed):
        raise UserError("name runs or experiments, or give --disturbed or --failed")
    if snakemake_works_here() and not dry_run:
        raise UserError(
            "Snakemake works in this folder. Wait for its end. If it was killed, run `snakemake --unlock`."
        )
    planned = [f"{experiment}/{run}" for experiment, runs in plan["runs"].items() for run in runs]
    for name in names:
        if not any(_is_in(run, name) for run in planned):
            near = did_you_mean(name, [*plan["experiments"], *planned])
            raise UserError(f"{name}: not in the study. {near or '`snakemake -n` shows its runs.'}")
    chosen = {
        run: reason
        for run, reason in _reasons(plan, results, disturbed=disturbed, failed=failed)
        if not names or any(_is_in(run, name) for name in names)
    }
    if not chosen:
        return ["There is no such run: nothing was removed."]
    lines = [f"{run}: {reason}" for run, reason in chosen.items()]
    if dry_run:
        return [*lines, "Nothing was removed: this is a dry run."]
    at_work = {"/".join(run) for run, job in queued_runs(plan).items() if job.state != "PENDING"}
    kept = [run for run in chosen if run in at_work or not _remove(results / run.replace("/", "/runs/"))]
    return [
        *lines,
        *(f"{run} is being made, and was kept." for run in kept),
        f"The records of {len(chosen) - len(kept)} of {len(planned)} runs were removed. Next: give the same "
        "snakemake command again. It makes only the missing runs.",
    ]


def _is_in(run: str, name: str) -> bool:
    """Return whether a name is that of a run or of its experiment, or a pattern of runs."""
    return run.startswith(f"{name}/") or fnmatchcase(run, name)


def snakemake_works_here() -> bool:
    """Return whether Snakemake works in this folder, or was killed there."""
    return any(SNAKEMAKE_LOCKS.glob("*"))


def _reasons(plan: Plan, results: Path, *, disturbed: bool, failed: bool) -> Iterator[tuple[str, str]]:
    """Yield runs to remove, and why: by default, all that have left something."""
    for part in [part for name in plan["experiments"] for part in parts_of(plan, name, results)]:
        name = part.experiment.name
        for row in collect(name, part.experiment.spec, part.runs_folder).runs.to_dict("records"):
            run, has_failed = str(row["run"]), row["outcome"] not in NOT_FAILED
            chosen = (failed and has_failed) or (disturbed and row["disturbance"])
            if chosen or (not (disturbed or failed) and (part.runs_folder / run).exists()):
                reason = f"{row['outcome']}: {row['reason']}" if has_failed else row["disturbance"]
                yield f"{name}/{run}", str(reason or row["outcome"])


def _remove(run: Path) -> bool:
    """Remove the folder of a run; return False if a process of this machine trains the run.

    Of a run without a result only the failure goes: what its program has saved is there to resume from.
    """
    if RankFiles(run / ATTEMPT).is_training:
        return False
    (run / FAILURE).unlink(missing_ok=True)
    if (run / RECORD).exists():
        (run / RECORD).unlink()
        # without its record the run is made again, whatever else is left
        shutil.rmtree(run, ignore_errors=True)
    return True
