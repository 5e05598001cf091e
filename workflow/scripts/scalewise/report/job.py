"""Write the recommended point as a job script that trains to the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.statistics import ENOUGH_REPEATS
from scalewise.config.shape import count_devices
from scalewise.config.site import Site
from scalewise.plan.allocation import START_UP_MINUTES
from scalewise.plan.formatting import duration_text, percent, pluralize
from scalewise.plan.job_script import job_script
from scalewise.plan.plan_file import Plan
from scalewise.plan.run_definition import RunDefinition
from scalewise.report.facts import Facts

MARGIN = 0.2
"""Part of the measured time that a job requests in addition: not every day is like that of the study."""

MISSING_JOB_SCRIPT = """\
#!/bin/bash
echo 'No row is recommended that this configuration has measured, so there is no job to submit.' >&2
exit 1
"""
"""The script of an experiment without an answer."""


def answer_job(facts: Facts, plan: Plan, path: Path) -> str:
    """Return the job script of the recommended point; one that only fails if there is none.

    Args:
        facts: The measurements.
        plan: The study's: has the runs and the facts of the site.
        path: The script's, relative to the folder of the study.
    """
    name, devices, runs = facts.name, facts.found.answer.devices, facts.runs
    # a disturbed run has a result, too
    done = runs[(runs["devices"] == devices) & runs["outcome"].isin(["completed", "disturbed"])]
    planned = plan["runs"][name]
    job = next((planned[run] for run in done["run"] if run in planned), None)
    if devices is None or job is None:
        return MISSING_JOB_SCRIPT
    run = RunDefinition.model_validate_json(job["definition"])
    place = f" on {run.partition}" if run.partition else ""
    spec = AnalysisSpec.from_json(plan["experiments"][name]["definitions"][run.partition])
    held, billed = (each.get(devices) for each in (spec.held_devices, spec.billed_devices))
    return job_script(
        job,
        Site.model_validate_json(plan["sites"][job["site"]]),
        time_limit(
            next(row for row in facts.rows if row["recommended"]), int(job["resources"].get("runtime", 0))
        ),
        path,
        f"{name} on {count_devices(devices, facts.noun)}{place}, as results/report.html recommends",
        whole_nodes=held is None or billed is not None,
    )


def time_limit(point: Mapping[str, Any], planned_minutes: int) -> tuple[int, str]:
    """Return the minutes that one more run of a point needs, with a margin, and what they follow from.

    Args:
        point: A row of the scaling table.
        planned_minutes: Time of the study's jobs; used if no whole run was measured.
    """
    seconds, n = point["wall_seconds_next"], point["wall_n"]
    if math.isnan(seconds):
        reason = "the time of the study's jobs: no whole run was measured, so set what a whole run needs"
        return planned_minutes, reason
    spread = ""
    if n >= ENOUGH_REPEATS:
        bounds = (duration_text(point[f"wall_seconds{end}"]) for end in ("_low", "_high"))
        spread = f" (95 % interval {' to '.join(bounds)})"
    return (
        math.ceil(seconds * (1 + MARGIN) / 60) + START_UP_MINUTES,
        f"mean of {pluralize(str(int(n)), 'run')}: {duration_text(point['wall_seconds'])}{spread}; one more "
        f"takes at most {duration_text(seconds)} (95 % confidence); {percent(MARGIN, 0)} and "
        f"{START_UP_MINUTES} min are added",
    )
