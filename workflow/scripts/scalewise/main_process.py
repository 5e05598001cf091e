"""Do what Snakemake's main process does around its jobs: check the study, write its plan, and show it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scalewise import snakemake_adapter as adapter
from scalewise.config.settings import plain_path
from scalewise.execution.run_folder import is_refused, refused_runs
from scalewise.execution.slurm import requeue_preempted
from scalewise.plan.allocation import SHARED_NODE
from scalewise.plan.plan_file import OF_DEVICES, PLAN, Plan
from scalewise.plan.plan_table import plan_lines
from scalewise.plan.planned_study import Study, write_plan
from scalewise.plan.study import check_results_folder, load_study
from scalewise.records import utc_now
from scalewise.site.commands import SUBMISSION_COMMANDS, ignore_variables, missing_commands

RESULTS = Path("results")

LOST_SITE = (
    "The runs would go to a cluster, but no site file describes it: a --config on the command line replaces "
    "the profile's own. Add site=profiles/slurm/site.yaml to it."
)
LOGIN_NODE = (
    "The site file describes a Slurm cluster, but the runs would start here, on the login node. "
    "Use --profile profiles/slurm, or --profile profiles/local for this machine."
)


def open_study(workflow: Any, config: Mapping[str, Any], checkout: Path) -> Study:
    """Check the configuration and where snakemake was started, and make the runs of the study.

    Every mistake ends the process with its message: for an exception Snakemake would print further lines.

    Args:
        workflow: Snakemake's.
        config: Keys and values of all configuration files and of the command.
        checkout: Scalewise's folder.

    Raises:
        StudyError: Names all mistakes.
    """
    site, files = config.get("site"), adapter.config_files(workflow)
    if site is None and adapter.names_cluster(workflow):
        sys.exit(LOST_SITE)
    check_results_folder(RESULTS)
    command, is_module = adapter.command_config(workflow), adapter.is_module(workflow)
    study = load_study(config, files, site, checkout=checkout, command=command, is_module=is_module)
    if study.site.slurm is None:
        return study
    if job := os.environ.get("SLURM_JOB_ID"):
        sys.exit(
            f"snakemake was started inside Slurm job {job}, whose settings its own jobs would inherit. Start "
            "it on a login node; if the site wants it inside a job, as `env -u SLURM_JOB_ID snakemake ...`."
        )
    for path in (*files, workflow.main_snakefile, str(Path.cwd())):
        try:
            plain_path(path)
        except ValueError as error:
            sys.exit(f"the name of a file or folder {error}")
    # runs that could share a node with another of the study take turns
    adapter.limit(workflow, SHARED_NODE, 1)
    ignored = ", ".join(ignore_variables(os.environ))
    if study.site.slurm.partition is None:
        # the executor plugin would request sinfo's default; now sinfo shows none, and Slurm chooses
        os.environ["SINFO_PARTITION"] = "none"
    if ignored:
        warning = f"{ignored} of the environment: ignored, as the study decides what its jobs request."
        return replace(study, warnings=[*study.warnings, warning])
    return study


def begin_jobs(workflow: Any, study: Study, plan: Plan, train: Any, taken: Mapping[str, object]) -> None:
    """Check where jobs go, and write the plan for them.

    Args:
        workflow: Snakemake's, once it plans jobs: before, it does not know where they run.
        study: Checked.
        plan: The study's; its jobs get what a profile requests.
        train: Snakemake's proxy of the rule that trains.
        taken: Resources that another workflow gives this rule.
    """
    in_slurm = study.site.slurm is not None
    if not in_slurm and (adapter.uses_cluster(workflow) or adapter.names_cluster(workflow)):
        sys.exit(LOST_SITE)
    replaced = adapter.replaced_resources(workflow, train, taken)
    if changed := sorted({*OF_DEVICES, "threads"} & replaced.keys()):
        sys.exit(
            f"A profile, the command or another workflow sets {', '.join(changed)} of the runs, which "
            "follows from `devices`, `cpus_per_device` and the site file. Remove it there."
        )
    if not adapter.runs_jobs(workflow):
        return
    if in_slurm and not adapter.uses_cluster(workflow):
        sys.exit(LOGIN_NODE)
    if in_slurm and (missing := missing_commands(*SUBMISSION_COMMANDS)):
        sys.exit(
            f"{', '.join(missing)} not on PATH, so no job can be sent. Go to a login node, or load the Slurm "
            "module."
        )
    known = {name: value for name, value in replaced.items() if isinstance(value, int | str)}
    for job in (job for runs in plan["runs"].values() for job in runs.values()):
        job["resources"].update(known)
    # a dry run shows them below its plan
    for warning in study.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    os.environ[PLAN] = str(write_plan(plan))
    if not adapter.is_module(workflow):  # rules of another workflow may read its own
        adapter.forget_config_files(workflow)
    if in_slurm:
        requeue_preempted(Path.cwd())
    adapter.refuse_tries(partial(is_refused, plan, RESULTS, utc_now()))


def show_plan(workflow: Any, study: Study, plan: Plan) -> None:
    """Print the plan, if this was a dry run that has planned its jobs."""
    if (requests := adapter.planned_requests(workflow)) is not None:
        lines = plan_lines(study, RESULTS, requests, refused_runs(plan, RESULTS))
        print(*lines, sep="\n", file=sys.stderr)
        if again := sum(study.has_record(*run, RESULTS) for run in requests):
            reason = "The reason is --forcerun, --forceall or a missing dataset."
            print(f"Warning: finished runs are trained again: {again}. {reason}", file=sys.stderr)
