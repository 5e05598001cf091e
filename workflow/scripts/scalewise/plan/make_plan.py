"""Make the plan of a study and write it for its jobs, in the main process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from scalewise.config.errors import StudyError
from scalewise.plan.launch import SiteLaunch
from scalewise.plan.plan_file import PLAN_FOLDER, Plan, TrainJob
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.run_definition import RunDefinition, canonical_json
from scalewise.plan.runs.runs import input_files, priority
from scalewise.records import replaced_whole
from scalewise.site.preflight import Preflight


def make_plan(study: Study) -> Plan:
    """Make the plan of a checked study."""
    launches = {partition: SiteLaunch.of(site) for partition, site in study.partitions.items()}
    runs: dict[str, dict[str, TrainJob]] = {name: {} for name in study.experiments}
    for part in study.parts:
        for run in part.runs:
            allocation = study.allocations[run.experiment, run.run]
            runs[part.name][run.run] = train_job(run, allocation, part.site.partition)
    return {
        "sites": {
            partition: {
                "launch": launch.model_dump(mode="json"),
                "preflight": Preflight.of(study, partition).model_dump(mode="json"),
            }
            for partition, launch in launches.items()
        },
        "preparations": {name: each.as_json for name, each in study.preparations.items()},
        "experiments": {
            name: {
                "title": parts[0].experiment.title or name,
                "definitions": {part.partition: part.definition for part in parts},
                "proposal": parts[0].proposal,
                "job_script": site_digest([launches[part.site.partition] for part in parts], runs[name]),
            }
            for name, parts in study.experiments.items()
        },
        "runs": runs,
    }


def train_job(run: RunDefinition, allocation: Allocation, site: str) -> TrainJob:
    """Make the job of a run.

    Args:
        run: The run.
        allocation: Its resources.
        site: Key of the plan's sites.
    """
    return {
        "site": site,
        "threads": allocation.threads,
        "resources": dict(allocation.resources),
        "limits": asdict(allocation.limits),
        "definition": run.as_json(),
        "inputs": input_files(run),
        "priority": priority(run),
    }


def site_digest(launches: Sequence[SiteLaunch], runs: Mapping[str, TrainJob]) -> str:
    """Return a digest of the site's facts in a job script, which requests nothing without Slurm."""
    requests = {name: job["resources"] for name, job in runs.items()} if launches[0].slurm else {}
    facts = canonical_json([[launch.model_dump(mode="json") for launch in launches], requests])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def write_plan(plan: Plan, folder: Path = PLAN_FOLDER) -> Path:
    """Write a plan for its jobs and return its absolute path.

    Its name is a hash of its content, so two workflows at once in one folder each read their own. Only the
    user may read it: a line of a site's prelude may hold a secret.

    Raises:
        StudyError: The file cannot be written.
    """
    text = json.dumps(plan)
    path = folder.absolute() / f"plan-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_whole(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StudyError(
            [f"{path}: cannot be written ({error.strerror}). Make room or change permissions there."]
        ) from error
    return path
