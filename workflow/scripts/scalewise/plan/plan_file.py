"""The plan of a study as one file: jobs and commands read what the main process has checked.

Imports no large library: each job of a cluster parses the workflow twice before its ranks start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

PLAN = "SCALEWISE_PLAN"
"""Variable with the path of the file, in the main process and its child processes."""
PLAN_FOLDER = Path(".snakemake/scalewise")
"""Folder of the file, below the folder where Snakemake runs."""

Value = int | str

OF_DEVICES = (
    *("nodes", "tasks", "tasks_per_node", "tasks_per_gpu", "mpi", "gres", "gpu", "gpus", "gpu_model"),
    *("cpus_per_task", "cpus_per_gpu", "slurm_extra"),
)
"""Resources that determine the devices on which a run is measured: no profile changes them."""


class TrainJob(TypedDict):
    """The job of one run: what Snakemake requests for it, what it trains, and limits that it observes itself.

    Args:
        site: Key of ``Plan.sites``.
        threads: All cores on one machine: runs must not overlap. On a cluster, the CPUs of a node's ranks.
        resources: As the executor plugin reads them.
        limit_seconds: Most time of all starts of a run together, less than that of their jobs: a run that the
            scheduler ends leaves no reason.
        limit_over_tries: Whether the limit is for all of Snakemake's tries together, as in a budget.
        timeout_seconds: A rank waits this long for another.
        definition: All that defines the run, as canonical JSON.
        inputs: Input files.
        priority: Snakemake starts the highest first.
    """

    site: str
    threads: int
    resources: dict[str, Value]
    limit_seconds: float
    limit_over_tries: bool
    timeout_seconds: int
    definition: str
    inputs: dict[str, str | list[str]]
    priority: int


class ExperimentPlan(TypedDict):
    """An experiment as its rules and the analysis read it.

    Args:
        definitions: All that defines its rounds and its answer, on each partition that it compares;
            without partitions by an empty name. Canonical JSON.
        proposal: Keys of its proposal; empty if it requests none.
        job_script: Digest of the site's facts in its job script.
    """

    title: str
    definitions: dict[str, str]
    proposal: dict[str, Any]
    job_script: str


class Plan(TypedDict):
    """A study as its jobs and commands read it.

    Args:
        sites: Each partition that runs are made on, ``Site`` as JSON; the site by an empty name without
            partitions.
        preparations: Commands that users' programs need before any job, as JSON, by name.
        experiments: Experiments by name, in the order of the file.
        runs: Runs by experiment and name.
    """

    sites: dict[str, str]
    preparations: dict[str, str]
    experiments: dict[str, ExperimentPlan]
    runs: dict[str, dict[str, TrainJob]]


def latest_plan(folder: Path = PLAN_FOLDER) -> str:
    """Return the path of the plan of the last session; each session writes its plan when it starts.

    Args:
        folder: Folder of the plans.

    Returns:
        The path; empty if no session has started.
    """
    return str(max(folder.glob("plan-*.json"), key=lambda path: path.stat().st_mtime_ns, default=""))


def runs_in_slurm(plan: Plan) -> bool:
    """Return whether the runs of a study are jobs of Slurm: on one partition they are on all."""
    return any(json.loads(site)["facts"]["slurm"] for site in plan["sites"].values())


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
