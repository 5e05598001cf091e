"""A study as it is planned: the parts of its experiments, their runs, and where these run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewise.config.experiment import AnyExperiment
from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape
from scalewise.config.site import Site, Sites
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.rounds import Round, known_rounds, requested_runs
from scalewise.plan.runs.run_definition import RunDefinition, canonical_json
from scalewise.plan.runs.runs import Preparation, partition_of, preparation
from scalewise.records import RecordError, read_run

CHANGE_NO_NUMBER = {"proposal", "title", "runtime_minutes", "memory_gb", "timeout_seconds"}
"""Keys of an experiment on which no run and no answer depends."""


@dataclass(frozen=True)
class Part:
    """An experiment on one of the partitions that it compares, or on the site.

    Args:
        name: The experiment's key in the YAML.
        experiment: The experiment's keys, defaults merged in, as they are for this partition.
        shapes: The shape of each entry of ``experiment.device_counts``.
        runs: Every job, up to the most repeats.
        site: The site or partition that it runs on.
        left_out: Sentences on device counts that other partitions can have and this one cannot.
    """

    name: str
    experiment: AnyExperiment
    shapes: Mapping[int | str, Shape]
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
            **self.site.queue_and_billing(self.shapes.values()),
            "accelerator": self.runs[0].accelerator,
            "most_devices": self.site.most_devices,
        }
        if self.partition:
            found |= {"price": self.site.facts.price_per_device_hour, "left_out": self.left_out}
        if experiment.chooses_devices:
            found["choice"] = {
                "shapes": {str(devices): str(shape) for devices, shape in self.shapes.items()},
                "launchers": {run.point: run.launcher for run in self.runs if run.repeat == 1},
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

    def known_run_names(self, folder: Path) -> list[str]:
        """Return the names of the runs that are requested by the rounds on disk.

        Args:
            folder: Results of the experiment.
        """
        return self.requested_run_names(known_rounds(self.experiment, folder))


@dataclass(frozen=True)
class Study:
    """All experiments of a configuration on a site.

    Args:
        parts: Each experiment, in the order of the file, on each partition that it compares.
        sites: The site and its partitions.
        warnings: Sentences about choices that are allowed but rarely intended.
        runs: Every job of every experiment, by (experiment, run).
        allocations: The resources of every run, by the same keys.
    """

    parts: Sequence[Part]
    sites: Sites
    warnings: Sequence[str]
    runs: Mapping[tuple[str, str], RunDefinition] = field(repr=False)
    allocations: Mapping[tuple[str, str], Allocation] = field(repr=False)

    @property
    def experiments(self) -> dict[str, list[Part]]:
        """The parts of each experiment, by its name."""
        found: dict[str, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part.name, []).append(part)
        return found

    @property
    def site(self) -> Site:
        """The site, or its default partition."""
        return self.sites.default

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

    @property
    def datasets(self) -> list[str]:
        """Names of the prepared datasets."""
        return list(
            dict.fromkeys(
                run.settings.dataset for run in self.runs.values() if isinstance(run.settings, Settings)
            )
        )

    @property
    def preparations(self) -> dict[str, Preparation]:
        """Commands that users' programs need before any job, by name."""
        needed = (
            preparation(run.settings)
            for run in self.runs.values()
            if isinstance(run.settings, ProgramSettings) and run.settings.prepare
        )
        return {each.name: each for each in needed}
