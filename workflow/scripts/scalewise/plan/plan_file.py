"""The plan of a study as one file: jobs and commands read what the main process has checked.

Imports no large library: each job of a cluster parses the workflow twice before its ranks start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

PLAN = "SCALEWISE_PLAN"
"""Variable with the path of the file, in the main process and its child processes."""
PLAN_FOLDER = Path(".snakemake/scalewise")
"""Folder of the file, below the folder where Snakemake runs."""

Value = int | str


@dataclass(frozen=True)
class Limits:
    """Limits of a run that its job observes; Snakemake and Slurm do not get them.

    Args:
        limit_seconds: Most time of all starts of a run together, less than that of their jobs: a run that the
            scheduler ends leaves no reason.
        timeout_seconds: A rank waits this long for another.
        limit_over_tries: Whether the limit is for all of Snakemake's tries together, as in a budget.
    """

    limit_seconds: float
    timeout_seconds: int
    limit_over_tries: bool = False


class TrainJob(TypedDict):
    """The job of one run: what Snakemake requests for it, and what it trains.

    Args:
        limits: ``Limits`` of its command.
        definition: All that defines the run, as canonical JSON.
        inputs: Input files.
        priority: Snakemake starts the highest first.
    """

    threads: int
    resources: dict[str, Value]
    limits: dict[str, Any]
    definition: str
    inputs: dict[str, str | list[str]]
    priority: int


class SitePlan(TypedDict):
    """The site, or one of its partitions, as jobs read it.

    Args:
        launch: The way in which it starts ranks: ``SiteLaunch`` as JSON.
        preflight: The largest run there and the cluster's facts: ``Preflight`` as JSON.
    """

    launch: dict[str, Any]
    preflight: dict[str, Any]


class ExperimentFacts(TypedDict):
    """Facts of an experiment for its rules and the analysis.

    Args:
        partition: Key of ``Plan.sites``.
        definition: Definition of its tables and its decision, as canonical JSON.
        proposal: Definition of its proposal; empty if it requests none.
        job_script: Digest of the site's facts in its job script.
        rounds: Definition of its requested runs.
    """

    title: str
    partition: str
    definition: str
    proposal: str
    job_script: str
    rounds: str


class Comparison(TypedDict):
    """An experiment that compares partitions.

    Args:
        experiments: The experiment on each partition, in order: its name, a key of ``Plan.experiments``.
        definition: Prices, their unit, and the device counts that a partition cannot have, as canonical JSON.
    """

    title: str
    experiments: dict[str, str]
    definition: str


class Plan(TypedDict):
    """A study as its jobs and commands read it.

    Args:
        sites: Each partition that runs are made on; the site by an empty name without partitions.
        preparations: Commands that users' programs need before any job: ``Preparation.as_json``, by name.
        experiments: Experiments by name, in the order of the file.
        comparisons: Experiments that compare partitions, by their key in the file.
        runs: Runs by experiment and name.
    """

    sites: dict[str, SitePlan]
    preparations: dict[str, str]
    experiments: dict[str, ExperimentFacts]
    comparisons: dict[str, Comparison]
    runs: dict[str, dict[str, TrainJob]]


def questions_of(plan: Plan) -> dict[str, dict[str, str]]:
    """Return the experiments that answer each question, by partition.

    An experiment that compares partitions is one question: its runs on all of them have one answer.

    Returns:
        Names of experiments by partition, by the key in the file; without partitions by an empty name.
    """
    found: dict[str, dict[str, str]] = {}
    compared = {
        name: key for key, each in plan["comparisons"].items() for name in each["experiments"].values()
    }
    for name in plan["experiments"]:
        key = compared.get(name)
        if key is None:
            found[name] = {"": name}
        else:
            found[key] = dict(plan["comparisons"][key]["experiments"])
    return found


def question_definition(plan: Plan, question: str) -> str:
    """Return all that defines an answer but the runs, as canonical JSON of each of its experiments."""
    parts = [plan["experiments"][name]["definition"] for name in questions_of(plan)[question].values()]
    terms = plan["comparisons"].get(question)
    return json.dumps([*parts, *([] if terms is None else [terms["definition"]])])


def latest_plan(folder: Path = PLAN_FOLDER) -> str:
    """Return the path of the plan of the last session; each session writes its plan when it starts.

    Args:
        folder: Folder of the plans.

    Returns:
        The path; empty if no session has started.
    """
    return str(max(folder.glob("plan-*.json"), key=lambda path: path.stat().st_mtime_ns, default=""))


def runs_in_slurm(plan: Plan, facts: ExperimentFacts) -> bool:
    """Return whether an experiment's runs are jobs of Slurm."""
    return bool(plan["sites"][facts["partition"]]["launch"].get("slurm", False))


def read_plan(environ: Mapping[str, str]) -> Plan:
    """Read the plan of the main process; end this process if there is none.

    Args:
        environ: Variables, with the path of the file.
    """
    path = environ.get(PLAN)
    if not path:
        sys.exit(
            f"scalewise: {PLAN} is not set. Snakemake sets it when it starts to run jobs; a job gets it with "
            "the environment. Run snakemake instead of this command."
        )
    try:
        plan: Plan = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"scalewise: {path}: the plan of the study cannot be read ({error}). Run snakemake again.")
    return plan
