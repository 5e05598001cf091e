"""Read what earlier starts left in a run's folder: inputs, checkpoints, failure, output.

The failure says whether another try can succeed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewise.config.program import ProgramSettings, program_files
from scalewise.config.settings import Settings
from scalewise.execution.rank_files import PROGRAM_FOLDER
from scalewise.plan.plan_file import Plan, TrainJob
from scalewise.plan.run_definition import RunDefinition, steps_per_epoch
from scalewise.records import RECORD, Failure, RecordError, read_failure

# ---- the input files that define a run, in addition to its settings: others need another training

SMALL_BYTES = 1_000_000
"""Largest file that counts by its content, as in Snakemake."""


def input_hashes(definition: RunDefinition, dataset: Path | None) -> dict[str, str]:
    """Return the hashes of the input files that define a run, by name.

    Args:
        definition: The run.
        dataset: The prepared file; None if a user's program trains.

    Raises:
        OSError: A file cannot be read.
    """
    program = definition.settings
    if not isinstance(program, ProgramSettings):
        assert dataset is not None, "the rule names the prepared file of a built-in training"
        with dataset.open("rb") as file:  # it begins with the checksum of its content
            return {"dataset": hashlib.sha256(file.read(SMALL_BYTES)).hexdigest()}
    files = {"program": program_files(program), "files": [Path(name) for name in program.files]}
    return {name: _hash_files(paths) for name, paths in files.items() if paths}


def _hash_files(paths: Sequence[Path]) -> str:
    """Hash small files by content; larger ones, and those of folders, by name, size and time."""
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file() and path.stat().st_size <= SMALL_BYTES:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
            continue
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not each.is_dir():
                status = each.stat()
                digest.update(os.fsencode(f"{each}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()


# ---- what train.py has saved

CHECKPOINTS = "checkpoints"
"""The folder for train.py's checkpoints, in that of the program."""

LEAST_STEPS = 10
"""Steps after the warm-up from which on the throughput of a start is known."""


def saved_epochs(folder: Path, run: RunDefinition) -> list[dict[str, Any]]:
    """Return the epochs in the newest checkpoint of train.py; none of a user's program."""
    if not isinstance(run.settings, Settings):
        return []
    return next((rows for _, rows in _checkpoints(folder)), [])


def prepare_to_train(folder: Path, run: RunDefinition, *, resumes: bool) -> list[dict[str, Any]]:
    """Make the folder that a program writes to; empty it unless the program resumes from its files.

    Checkpoints after which too few steps follow to measure are deleted: figures are those of the last start.

    Returns:
        The epochs in the checkpoint from which train.py resumes.

    Raises:
        OSError: It cannot be created or emptied.
    """
    program = folder / PROGRAM_FOLDER
    if not resumes and program.exists():
        shutil.rmtree(program)
    program.mkdir(parents=True, exist_ok=True)
    steps, settings = steps_per_epoch(run), run.settings
    if steps is None or not isinstance(settings, Settings):
        return []
    least = min(settings.warmup_steps + LEAST_STEPS, settings.epochs * steps)
    for checkpoint, rows in _checkpoints(folder):
        left = settings.epochs - len(rows)
        if (accuracy := settings.stop_at_accuracy) is not None:
            # the next epoch may be the last
            left = min(left, 0 if rows and rows[-1]["test_accuracy"] >= accuracy else 1)
        if left * steps >= least:
            return rows
        shutil.rmtree(checkpoint)
    return []


def _checkpoints(folder: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield the checkpoints and the epochs that they hold, the newest first."""
    for each in sorted((folder / PROGRAM_FOLDER / CHECKPOINTS).glob("epoch-*"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # train.py names a damaged one
            yield each, json.loads((each / "training.json").read_text(encoding="utf-8"))["rows"]


# ---- whether another try can succeed, before a job is submitted for it

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
    failure, limit_seconds = earlier_failure(folder, definition, inputs), job["limit_seconds"]
    if failure is None:
        return None
    again = attempt > 1 and failure.ended_at > began
    if limit_of_try(job, attempt if again else 1, failure) < LEAST_SECONDS:
        spent = f"its tries have taken the {limit_seconds:.0f} s that the budget counts for it."
        return failure.model_copy(update={"reason": f"{spent} The last one: {failure.reason}"})
    if failure.outcome == "timed-out":
        has_more_time = limit_seconds > failure.limit_seconds
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


def limit_of_try(job: TrainJob, attempt: int, failure: Failure | None, saved_seconds: float = 0.0) -> float:
    """Return the seconds that a try may take: the limit without the time of what is saved.

    In a budget, all tries so far share the limit once Snakemake tries again.
    """
    if failure is None or attempt == 1 or not job["limit_over_tries"]:
        return job["limit_seconds"] - saved_seconds
    return job["limit_seconds"] - failure.seconds


def dataset_path(job: TrainJob) -> Path | None:
    """Return the prepared file of a job's dataset; None if a user's program trains."""
    dataset = job["inputs"].get("dataset")
    return Path(dataset) if isinstance(dataset, str) else None


# ---- the output of the ranks, and the part of it that a terminal can show

OUTPUT = "train.log"
"""The file with all that the ranks print."""

TAIL_LINES = 30
"""Lines of a failed run's output that are kept with its reason, and shown."""

SHOWN_BYTES = 1 << 14
"""Most bytes of a failed run's output that reach the terminal."""

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that change what a terminal shows, but for tabs and ends of lines."""

_OF_SCALEWISE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\S* ")
"""The time before a command that Scalewise adds to the output."""

LONGEST_LINE = 200
"""Most characters of the last line of output in a reason."""


def printable(text: str) -> str:
    """Return the end of a program's output as a terminal can show it: bounded, control characters escaped."""
    lines = text[-SHOWN_BYTES:].replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), lines)


def log_tail(log: Path) -> list[str]:
    """Return the last lines of a log; none if it is missing."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - SHOWN_BYTES, 0))
            text = file.read(SHOWN_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    return printable(text).splitlines()[-TAIL_LINES:]


def last_line(log: Path) -> str:
    """Return the last line that the ranks printed; empty without one."""
    lines = [line.strip() for line in log_tail(log) if not _OF_SCALEWISE.match(line)]
    return next((line[:LONGEST_LINE] for line in reversed(lines) if line), "")
