"""What a study must be once it has come through a soak: every run there once, and right to the bit.

Pure: reads a folder of results, starts nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, MODEL, RecordError, Resumption, RunRecord, read_summary

TIMINGS = frozenset({"train_seconds", "evaluation_seconds", "samples_per_second"})
"""Columns of epochs.csv that no two runs share."""

LEFTOVERS = frozenset({"attempt", "checkpoints", "lock"})
"""In the folder of a run while it goes on, or after it failed; a run that has completed has none of them."""


@dataclass(frozen=True)
class Likeness:
    """What two runs of equal settings and seed share to the bit.

    Args:
        epochs: epochs.csv without its timings.
        model: sha256 of the trained weights.
    """

    epochs: str
    model: str

    @classmethod
    def of(cls, folder: Path) -> Likeness:
        """Of a run's folder.

        Raises:
            OSError: a file is missing.
        """
        epochs = (folder / EPOCHS).read_text(encoding="utf-8")
        return cls(without_timings(epochs), hashlib.sha256((folder / MODEL).read_bytes()).hexdigest())


@dataclass
class Findings:
    """What the checks found.

    Args:
        runs: that were planned.
        right: runs present once, completed and equal to their undisturbed likeness.
        resumptions: of the runs that are there.
        restarts: of Slurm's jobs, of all runs that are there.
        problems: a sentence each, with the place.
    """

    runs: int = 0
    right: int = 0
    resumptions: list[Resumption] = field(default_factory=list)
    restarts: int = 0
    problems: list[str] = field(default_factory=list)


def without_timings(epochs: str) -> str:
    """The text of an epochs.csv without the columns that only say how long things took."""
    rows = list(csv.DictReader(io.StringIO(epochs)))
    return "\n".join(
        ",".join(f"{name}={value}" for name, value in row.items() if name not in TIMINGS) for row in rows
    )


def planned_runs(study: Mapping[str, Any], site_file: Path) -> dict[tuple[str, str], RunDefinition]:
    """Return the definition of each run of a study."""
    return dict(load_study(study, site_file=site_file).runs)


def judge(results: Path, planned: Mapping[tuple[str, str], RunDefinition], undisturbed: str) -> Findings:
    """Hold the results of a study against its plan and against its undisturbed experiment.

    Args:
        results: its folder.
        planned: the definition of each run, by experiment and name.
        undisturbed: the experiment that was trained before the faults began; the others have its settings.
    """
    findings = Findings(runs=sum(experiment != undisturbed for experiment, _ in planned))
    for (experiment, name), definition in planned.items():
        folder = results / experiment / "runs" / name
        problems = run_problems(folder, definition, results / undisturbed / "runs" / name)
        findings.problems += problems
        if experiment == undisturbed:
            continue
        findings.right += not problems
        if not problems:
            summary = read_summary(folder)
            assert summary.measurements is not None, "a run without problems has completed"
            findings.resumptions.append(summary.measurements.resumption)
            findings.restarts += summary.provenance.restart_count if summary.provenance else 0
    experiments = {experiment for experiment, _ in planned}
    findings.problems += [problem for each in sorted(experiments) for problem in rows(results, each, planned)]
    findings.problems += list(leftovers(results, planned))
    return findings


def run_problems(folder: Path, definition: RunDefinition, likeness: Path) -> list[str]:
    """What is wrong with one run; nothing where it is right.

    Args:
        folder: of the run.
        definition: that it was planned with.
        likeness: folder of an undisturbed run of equal settings and seed.
    """
    try:
        summary = read_summary(folder)
    except RecordError as error:
        return [str(error)]
    problems = list(_summary_problems(folder, summary, definition))
    if problems:
        return problems
    try:
        mine, other = Likeness.of(folder), Likeness.of(likeness)
    except OSError as error:
        return [f"{error.filename}: {error.strerror}"]
    if mine.epochs != other.epochs:
        problems.append(f"{folder / EPOCHS}: not the epochs of the undisturbed {likeness}")
    if mine.model != other.model:
        problems.append(
            f"{folder / MODEL}: sha256 {mine.model[:12]}, but {other.model[:12]} in the undisturbed "
            f"{likeness}"
        )
    return problems


def _summary_problems(folder: Path, summary: RunRecord, definition: RunDefinition) -> Iterator[str]:
    if summary.definition != definition:
        yield f"{folder}: trained {summary.definition}, planned was {definition}"
    if summary.outcome != "completed":
        yield f"{folder}: {summary.outcome} ({summary.reason}), not completed"
    elif summary.measurements is None:
        yield f"{folder}: completed without measurements"
    elif summary.measurements.epochs_completed != definition.values["epochs"]:
        done, asked = summary.measurements.epochs_completed, definition.values["epochs"]
        yield f"{folder}: {done} epochs done, {asked} were planned"


def rows(results: Path, experiment: str, planned: Mapping[tuple[str, str], RunDefinition]) -> list[str]:
    """What is wrong with an experiment's runs.csv: each run stands there once, and nothing else does."""
    path = results / experiment / "runs.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = Counter(row["run"] for row in csv.DictReader(file))
    except OSError as error:
        return [f"{path}: {error.strerror}"]
    expected = Counter(name for owner, name in planned if owner == experiment)
    names = sorted(name for name in {*found, *expected} if found[name] != expected[name])
    return [f"{path}: {name} stands there {found[name]} times, not {expected[name]}" for name in names]


def leftovers(results: Path, planned: Mapping[tuple[str, str], RunDefinition]) -> Iterator[str]:
    """Half-written files, what a run keeps only while it goes on, and runs that nobody planned."""
    for path, folders, files in os.walk(results):
        for name in (*folders, *files):
            if name.startswith(".") or name.endswith((".part", ".tmp")):
                yield f"{Path(path) / name}: left half written"
            elif name in LEFTOVERS:
                yield f"{Path(path) / name}: left by a run that has ended"
    for folder in sorted(results.glob("*/runs/*")):
        if (folder.parts[-3], folder.name) not in planned:
            yield f"{folder}: a run that was not planned"


def resumed(findingss: Sequence[Findings]) -> tuple[int, int, int]:
    """Runs that went on from a checkpoint, how often they did so, and the steps that were done again."""
    found = [resumption for findings in findingss for resumption in findings.resumptions]
    runs = sum(bool(resumption.resumed_at_steps) for resumption in found)
    times = sum(len(resumption.resumed_at_steps) for resumption in found)
    return runs, times, sum(resumption.lost_steps for resumption in found)
