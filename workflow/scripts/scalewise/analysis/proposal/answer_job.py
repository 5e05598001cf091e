"""Choose the run and the time limit of the job script that an experiment's answer amounts to."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.statistics import ENOUGH_REPEATS
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import duration_text, percent
from scalewise.plan.jobs.job_script import MISSING_JOB_SCRIPT, TimeLimit, job_script
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.plan_file import Plan
from scalewise.plan.runs.allocation import START_UP_MINUTES
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import write_text

FOLDER, JOB_SCRIPT = "proposal", "job.sh"

MARGIN = 0.2
"""Part of the measured time that a job requests in addition: not every day is like that of the study."""


def write_job_script(results: ExperimentResults, plan: Plan) -> None:
    """Write the job script into its folder."""
    folder = results.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JOB_SCRIPT, answer_job(results, plan) or MISSING_JOB_SCRIPT)


def answer_job(results: ExperimentResults, plan: Plan) -> str:
    """Return the job script of the recommended row; empty if the configuration has no run of such a row.

    Args:
        results: The experiment, with its answer.
        plan: The study's: has the runs and the facts of the site.
    """
    if results.devices is None or results.series is None:
        return ""
    runs = results.runs
    # a disturbed run has a result, too
    in_row = runs[
        (runs["series"] == results.series)
        & (runs["devices"] == results.devices)
        & runs["outcome"].isin(["completed", "disturbed"])
    ]
    planned = plan["runs"].get(results.name, {})
    names = [name for name in in_row["run"] if name in planned]
    if not names:
        return ""
    job, partition = planned[names[0]], plan["experiments"][results.name]["partition"]
    run = RunDefinition.model_validate_json(job["definition"])
    spec = AnalysisSpec.from_json(plan["experiments"][results.name]["definition"])
    held, billed = (each.get(results.devices) for each in (spec.held_devices, spec.billed_devices))
    devices = count_devices(results.devices, results.noun)
    folder = Path("results") / results.name
    return job_script(
        run,
        job,
        SiteLaunch.model_validate(plan["sites"][partition]["launch"]),
        time_limit(_row(results), int(job["resources"].get("runtime", 0))),
        folder / "runs" / run.run,
        folder / FOLDER / JOB_SCRIPT,
        f"{results.name} on {devices}, as {folder}/report.html recommends",
        whole_nodes=held is None or billed is not None,
    )


def time_limit(row: pd.Series, planned_minutes: int) -> TimeLimit:
    """Return the time that one more run of a row needs, with a margin.

    Args:
        row: The row in the scaling table.
        planned_minutes: Time of the study's jobs; used if no whole run was measured.
    """
    if math.isnan(row["wall_seconds_next"]):
        return TimeLimit(
            planned_minutes,
            "the time of the study's jobs: no whole run was measured, so set what a whole run needs",
        )
    walls = int(row["wall_n"])
    spread, took = "", "1 run took"
    if walls > 1:
        took = f"{walls} runs took on average"
    if walls >= ENOUGH_REPEATS:
        bounds = (duration_text(row[f"wall_seconds{bound}"]) for bound in ("_low", "_high"))
        spread = f" (95 % interval {' to '.join(bounds)})"
    seconds = row["wall_seconds_next"]
    return TimeLimit(
        math.ceil(seconds * (1 + MARGIN) / 60) + START_UP_MINUTES,
        f"{took} {duration_text(row['wall_seconds'])}{spread}; one more takes at most "
        f"{duration_text(seconds)} (95 % confidence); {percent(MARGIN, 0)} and {START_UP_MINUTES} min are "
        "added",
    )


def _row(results: ExperimentResults) -> pd.Series:
    """Return the recommended row of the scaling table."""
    points = results.scaling
    return points[(points["series"] == results.series) & (points["devices"] == results.devices)].iloc[0]
