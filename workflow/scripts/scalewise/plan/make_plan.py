"""Make the plan of a study and write it for its jobs, in the main process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from scalewise.config.errors import StudyError
from scalewise.plan.launch import SiteLaunch
from scalewise.plan.plan_file import PLAN_FOLDER, Comparison, Plan, TrainJob
from scalewise.plan.planned_study import PlannedExperiment, Study
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.run_definition import RunDefinition, canonical_json
from scalewise.plan.runs.runs import input_files, priority
from scalewise.records import replaced_whole
from scalewise.site.preflight import Preflight


def make_plan(study: Study) -> Plan:
    """Make the plan of a checked study."""
    launches = {partition: SiteLaunch.of(site) for partition, site in study.partitions.items()}
    runs: dict[str, dict[str, TrainJob]] = {name: {} for name in study.experiments}
    for (experiment, name), run in study.runs.items():
        runs[experiment][name] = train_job(run, study.allocations[experiment, name])
    return {
        "sites": {
            partition: {
                "launch": launches[partition].model_dump(mode="json"),
                "preflight": Preflight.of(study, partition).model_dump(mode="json"),
            }
            for partition in study.partitions
        },
        "preparations": {name: each.as_json for name, each in study.preparations.items()},
        "experiments": {
            name: {
                "title": planned.experiment.title or name,
                "partition": planned.site.partition,
                "definition": planned.analysis_definition,
                "proposal": planned.proposal_definition,
                "job_script": site_digest(launches[planned.site.partition], runs[name]),
                "rounds": planned.rounds_definition,
            }
            for name, planned in study.experiments.items()
        },
        "comparisons": {
            key: make_comparison([study.experiments[name] for name in names])
            for key, names in study.comparisons.items()
        },
        "runs": runs,
    }


def make_comparison(planned: Sequence[PlannedExperiment]) -> Comparison:
    """Make the comparison of an experiment's partitions.

    Args:
        planned: The experiment on each partition.
    """
    first = planned[0]
    prices = {each.site.partition: each.site.facts.price_per_device_hour for each in planned}
    title = first.experiment.title.removesuffix(f" on {first.site.partition}")
    return {
        "title": title,
        "experiments": {each.site.partition: each.name for each in planned},
        "definition": canonical_json(
            {
                "unit": "price",
                "prices": prices,
                "left_out": [sentence for each in planned for sentence in each.left_out],
            }
        ),
    }


def train_job(run: RunDefinition, allocation: Allocation) -> TrainJob:
    """Make the job of a run."""
    return {
        "threads": allocation.threads,
        "resources": dict(allocation.resources),
        "limits": asdict(allocation.limits),
        "definition": run.as_json(),
        "inputs": input_files(run),
        "priority": priority(run),
    }


def site_digest(launch: SiteLaunch, runs: Mapping[str, TrainJob]) -> str:
    """Return a digest of the site's facts in a job script, which requests nothing without Slurm."""
    requests = {name: job["resources"] for name, job in runs.items()} if launch.slurm else {}
    facts = canonical_json([launch.model_dump(mode="json"), requests])
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
