"""A study as it is planned, and the plan that its rules and jobs read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from scalewise.config.errors import StudyError
from scalewise.config.experiment import AnyExperiment
from scalewise.config.program import ProgramSettings
from scalewise.config.site import Site
from scalewise.plan.allocation import train_job
from scalewise.plan.plan_file import PLAN_FOLDER, Plan, TrainJob
from scalewise.plan.rounds import Round, requested_runs
from scalewise.plan.run_definition import RunDefinition, canonical_json, digest
from scalewise.plan.runs import partition_of, preparation
from scalewise.records import RecordError, read_run, replaced_whole

CHANGE_NO_NUMBER = {"proposal", "title", "runtime_minutes", "memory_gb", "timeout_seconds"}
"""Keys of an experiment on which no run and no answer depends."""


@dataclass(frozen=True)
class Part:
    """An experiment on one of the partitions that it compares, or on the site.

    Args:
        name: The experiment's key in the YAML.
        experiment: The experiment's keys, defaults merged in, as they are for this partition.
        runs: Every job, up to the most repeats.
        site: The site or partition that it runs on.
        left_out: Sentences on device counts that other partitions can have and this one cannot.
    """

    name: str
    experiment: AnyExperiment
    runs: Sequence[RunDefinition]
    site: Site
    left_out: Sequence[str] = ()

    @property
    def partition(self) -> str:
        """The partition, if the experiment compares several; else empty."""
        return partition_of(self.experiment)

    @property
    def definition(self) -> str:
        """All that defines its rounds and its answer, as canonical JSON; the site's terms decide, too."""
        experiment = self.experiment
        found: dict[str, Any] = {
            "name": self.name,
            "spec": experiment.model_dump(exclude=CHANGE_NO_NUMBER, exclude_none=True),
            **self.site.billing(dict.fromkeys(run.shape for run in self.runs)),
            "accelerator": self.runs[0].accelerator,
            "most_devices": self.site.most_devices,
        }
        if self.partition:
            found |= {"price": self.site.facts.price_per_device_hour, "left_out": self.left_out}
        if experiment.chooses_devices:
            found["choice"] = {
                "places": {run.point: (str(run.shape), run.launcher) for run in self.runs},
                # with a budget, a run is made only if its whole time is left
                "run_minutes": experiment.runtime_minutes if experiment.budget else None,
            }
        return canonical_json(found)

    @property
    def proposal(self) -> dict[str, Any]:
        """The keys of its proposal; empty without one."""
        if self.experiment.proposal is None:
            return {}
        keys = {"trainings", "samples_per_training"}
        return self.experiment.proposal.model_dump(mode="json") | self.experiment.model_dump(include=keys)

    def requested_run_names(self, rounds: Iterable[Round]) -> list[str]:
        """Return the names of the first runs, and of those that rounds have requested.

        Args:
            rounds: The rounds so far; not read if the experiment has none.
        """
        return [run.run for run in requested_runs(self.runs, self.experiment, rounds)]


@dataclass(frozen=True)
class Study:
    """All experiments of a configuration on a site.

    Args:
        parts: Each experiment, in the order of the file, on each partition that it compares.
        site: The site, or its default partition.
        warnings: Sentences about choices that are allowed but rarely intended.
    """

    parts: Sequence[Part]
    site: Site
    warnings: Sequence[str]

    @cached_property
    def runs(self) -> dict[tuple[str, str], RunDefinition]:
        """Every run of every experiment, by (experiment, run)."""
        return {(part.name, run.run): run for part in self.parts for run in part.runs}

    @property
    def experiments(self) -> dict[str, list[Part]]:
        """The parts of each experiment, by its name."""
        return {name: [*parts] for name, parts in groupby(self.parts, attrgetter("name"))}

    @property
    def partitions(self) -> dict[str, Site]:
        """Each partition that runs are made on, by its name; the site by an empty name without partitions."""
        return {part.site.partition: part.site for part in self.parts}

    def has_record(self, experiment: str, run: str, results: Path) -> bool:
        """Return whether a run has a result as it is defined now."""
        folder = results / experiment / "runs" / run
        try:
            return read_run(folder).definition.as_json() == self.runs[experiment, run].as_json()
        except RecordError:
            return False


def make_plan(study: Study) -> Plan:
    """Make the plan of a checked study."""
    runs: dict[str, dict[str, TrainJob]] = {name: {} for name in study.experiments}
    for part in study.parts:
        runs[part.name] |= {run.run: train_job(run, part.experiment, part.site) for run in part.runs}
    programs = [run.settings for run in study.runs.values() if isinstance(run.settings, ProgramSettings)]
    preparations = [preparation(program) for program in programs if program.prepare]
    return {
        "sites": {name: site.model_dump_json() for name, site in study.partitions.items()},
        "preparations": {digest(each): each for each in preparations},
        "experiments": {
            name: {
                "title": parts[0].experiment.title or name,
                "definitions": {part.partition: part.definition for part in parts},
                "proposal": parts[0].proposal,
                "job_script": site_digest([part.site for part in parts], runs[name]),
            }
            for name, parts in study.experiments.items()
        },
        "runs": runs,
    }


def site_digest(sites: Sequence[Site], runs: Mapping[str, TrainJob]) -> str:
    """Return a digest of the site's facts in a job script, which requests nothing without Slurm."""
    requests = {name: job["resources"] for name, job in runs.items()} if sites[0].slurm else {}
    return digest(canonical_json([[site.model_dump_json() for site in sites], requests]))


def write_plan(plan: Plan, folder: Path = PLAN_FOLDER) -> Path:
    """Write a plan for its jobs and return its absolute path.

    Its name is a hash of its content, so two workflows at once in one folder each read their own. Only the
    user may read it: a line of a site's prelude may hold a secret.

    Raises:
        StudyError: The file cannot be written.
    """
    text = json.dumps(plan)
    path = folder.absolute() / f"plan-{digest(text)}.json"
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
