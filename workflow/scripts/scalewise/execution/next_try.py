"""Decide whether another try at a run can succeed, before a job is submitted for it."""

from __future__ import annotations

from pathlib import Path

from scalewise.config.catalog.program_files import program_files
from scalewise.config.program import ProgramSettings
from scalewise.execution.history import load_history, seconds_of_earlier_tries, would_fail_again
from scalewise.execution.input_hashes import input_hashes, program_hashes
from scalewise.execution.rank_files import ATTEMPT, RankFiles
from scalewise.plan.plan_file import Limits, TrainJob
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import History, RecordError, Start, read_failure

LEAST_SECONDS = 60.0
"""Least time left for training in a job that has waited; with less, a new job is better."""


def failure_to_repeat(job: TrainJob, folder: Path, attempt: int) -> Start | None:
    """Return the failure that another try at a run would repeat; None if it may succeed.

    Args:
        job: The run as it is planned now.
        folder: Holds the run's records.
        attempt: Snakemake's count of its tries, from 1; the user requests the first.

    Raises:
        ValueError: Earlier tries have taken what a budget counts for the run.
    """
    try:
        if read_failure(folder) is None:
            return None  # most runs: their inputs need not be hashed
        definition = RunDefinition.model_validate_json(job["definition"])
        dataset, weights = (job["inputs"].get(name) for name in ("dataset", "weights"))
        inputs = hashes_of(
            definition,
            Path(dataset) if isinstance(dataset, str) else None,
            Path(weights) if isinstance(weights, str) else None,
        )
    except (OSError, RecordError):
        return None  # the job states it
    history, limits = (
        load_history(folder, definition, inputs, RankFiles(folder / ATTEMPT)),
        Limits(**job["limits"]),
    )
    failure = would_fail_again(history, limits.limit_seconds, by_user=attempt == 1)
    if failure is None:
        limit_of_this_try(limits, attempt, history)
    return failure


def hashes_of(definition: RunDefinition, dataset: Path | None, weights: Path | None) -> dict[str, str]:
    """Return the hashes of the input files that define a run, by name.

    Args:
        definition: The run.
        dataset: The prepared file; None if a user's program trains.
        weights: The file to begin from; None for random weights.

    Raises:
        OSError: A file cannot be read.
    """
    program = definition.settings
    if isinstance(program, ProgramSettings):
        files, inputs = map(Path, program.files), map(Path, program.inputs)
        return program_hashes(program_files(program), list(files), list(inputs))
    assert dataset is not None, "the rule names the prepared file of a built-in training"
    return input_hashes(dataset, weights)


def limit_of_this_try(limits: Limits, attempt: int, earlier: History) -> float:
    """Return the seconds that a try at a run may take.

    Raises:
        ValueError: Earlier tries have taken what a budget counts for the run.
    """
    limit = limits.limit_seconds
    if not limits.limit_over_tries or attempt == 1:
        return limit
    left = limit - seconds_of_earlier_tries(earlier, attempt)
    if left < LEAST_SECONDS:
        raise ValueError(
            f"not tried again: of the {limit:.0f} s that the budget counts for this run "
            f"{max(left, 0):.0f} s are left, less than {LEAST_SECONDS:.0f} s. Raise runtime_minutes, or fix "
            "the cause of the earlier failures."
        )
    return left
