"""The plan of a study that is one run, and the command that trains it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.paths import CLI

from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.plan_file import PLAN, Limits
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import SUMMARY

LIMITS = Limits(limit_seconds=1000.0, timeout_seconds=60)


def plan_one_run(
    path: Path,
    definition: str,
    dataset: Path | None,
    launch: SiteLaunch | None = None,
    **limits: Any,
) -> dict[str, str]:
    """Write the plan of one run; return the variable that names the file.

    Args:
        path: File to write.
        definition: ``RunDefinition.as_json()``.
        dataset: The prepared file; None for a program.
        launch: The site's way to start programs; None for this machine's.
        limits: Those that are not ``LIMITS``.
    """
    run = RunDefinition.model_validate_json(definition)
    job = {
        "definition": definition,
        "inputs": {"dataset": [] if dataset is None else str(dataset), "weights": []},
        "limits": asdict(LIMITS) | limits,
    }
    plan = {
        "sites": {"": {"launch": (launch or SiteLaunch()).model_dump(mode="json")}},
        "experiments": {run.experiment: {"partition": ""}},
        "runs": {run.experiment: {run.run: job}},
    }
    path.write_text(json.dumps(plan), encoding="utf-8")
    return {PLAN: str(path)}


def train_arguments(definition: str, folder: Path, attempt: int = 1) -> list[str]:
    """Return the arguments of cli.py for a run whose records go into a folder."""
    run = RunDefinition.model_validate_json(definition)
    return [
        *("train", "--log", str(folder / "train.log"), "--attempt", str(attempt)),
        *(run.experiment, run.run, str(folder / SUMMARY)),
    ]


def train_command(definition: str, folder: Path, attempt: int = 1) -> list[str]:
    """Return the command that trains a run whose records go into a folder."""
    return [sys.executable, str(CLI), *train_arguments(definition, folder, attempt)]


def plan_one_experiment(path: Path, folder: Path, **definitions: str) -> list[str]:
    """Write the plan of one experiment; return the options that name it.

    Args:
        path: File to write.
        folder: Results of the experiment.
        definitions: Parts of ``ExperimentFacts``.
    """
    sites = {"": {"launch": {"slurm": False}}}
    plan = {"experiments": {folder.name: {"partition": "", **definitions}}, "comparisons": {}, "sites": sites}
    path.write_text(json.dumps(plan), encoding="utf-8")
    return ["--plan", str(path)]
