"""Decide whether another try at a run can succeed, before a job is submitted for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scalewise.execution.run_folder import input_hashes
from scalewise.plan.plan_file import Limits, Plan, TrainJob
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import RECORD, Failure, RecordError, read_failure

LEAST_SECONDS = 60.0
"""Least time in which a try at a run is worth a start."""


def failure_to_repeat(job: TrainJob, folder: Path, attempt: int = 1, began: str = "") -> Failure | None:
    """Return the failure that another try at a run would repeat; None if it may succeed.

    Args:
        job: The run as it is planned now.
        folder: Holds the run's records.
        attempt: Snakemake's count of its tries, from 1. The user requests the first, and may have removed the
            cause since: only a run that needs more time than it gets is then known to fail.
        began: When Snakemake's command began, as ``utc_now`` returns it. A try of this command may have left
            no failure, such as on a node that died: the failure is then of an earlier command.
    """
    try:
        if read_failure(folder) is None:
            return None  # most runs: their inputs need not be hashed
        definition = RunDefinition.model_validate_json(job["definition"])
        inputs = input_hashes(definition, dataset_path(job))
    except (OSError, RecordError):
        return None  # the job states it
    failure, limits = earlier_failure(folder, definition, inputs), Limits(**job["limits"])
    if failure is None:
        return None
    again = attempt > 1 and failure.ended_at > began
    if limit_of_try(limits, attempt if again else 1, failure) < LEAST_SECONDS:
        spent = f"its tries have taken the {limits.limit_seconds:.0f} s that the budget counts for it."
        return failure.model_copy(update={"reason": f"{spent} The last one: {failure.reason}"})
    if failure.outcome == "timed-out":
        has_more_time = limits.limit_seconds > failure.limit_seconds
        return failure if not has_more_time and (failure.permanent or again) else None
    return failure if failure.permanent and again else None


def is_refused(plan: Plan, results: Path, began: str, experiment: str, run: str, attempt: int) -> bool:
    """Return whether a try at a run would end as the one before it; arguments as above."""
    job, folder = plan["runs"][experiment][run], results / experiment / "runs" / run
    return failure_to_repeat(job, folder, attempt, began) is not None


def refused_runs(plan: Plan, results: Path) -> dict[tuple[str, str], Failure]:
    """Return the runs without a result that would fail as before, by experiment and run.

    Args:
        plan: The study.
        results: Folder of all experiments.
    """
    found = {}
    for experiment, runs in plan["runs"].items():
        for run, job in runs.items():
            folder = results / experiment / "runs" / run
            if not (folder / RECORD).exists() and (failure := failure_to_repeat(job, folder)):
                found[experiment, run] = failure
    return found


def earlier_failure(folder: Path, definition: RunDefinition, inputs: Mapping[str, str]) -> Failure | None:
    """Return the failure of the last try at a run; None if it was of another definition, or is damaged."""
    with suppress(RecordError):
        failure = read_failure(folder)
        if failure is not None and failure.definition == definition and failure.inputs == dict(inputs):
            return failure
    return None


def limit_of_try(limits: Limits, attempt: int, failure: Failure | None, saved_seconds: float = 0.0) -> float:
    """Return the seconds that a try may take: the limit without the time of what is saved.

    In a budget, all tries so far share the limit once Snakemake tries again.
    """
    if failure is None or attempt == 1 or not limits.limit_over_tries:
        return limits.limit_seconds - saved_seconds
    return limits.limit_seconds - failure.seconds


def dataset_path(job: TrainJob) -> Path | None:
    """Return the prepared file of a job's dataset; None if a user's program trains."""
    dataset = job["inputs"].get("dataset")
    return Path(dataset) if isinstance(dataset, str) else None
