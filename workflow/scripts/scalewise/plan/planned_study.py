"""A study as it is planned: its experiments, their runs, and where these run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from scalewise.config.experiment import AnyExperiment, deciding_values
from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape
from scalewise.config.site import Site, Sites
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.rounds import Round, known_rounds, requested_runs
from scalewise.plan.runs.run_definition import RunDefinition, canonical_json
from scalewise.plan.runs.runs import Preparation, preparation
from scalewise.records import RecordError, read_run

PARTITION_MARK = "@"
"""Separates an experiment's key from the partition, in the name of one that compares partitions."""


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment with its runs.

    Args:
        name: The key in the YAML, ``digits``; with ``partitions`` that and the partition, ``digits@a100``.
        experiment: The experiment's keys, defaults merged in.
        shapes: The shape of each entry of ``experiment.device_counts``.
        runs: Every job, up to the most repeats.
        site: The site or partition that it runs on.
        left_out: Sentences on device counts that other partitions can have and this one cannot.
        sharing: Number of partitions that share its budget in equal parts.
    """

    name: str
    experiment: AnyExperiment
    shapes: Mapping[int | str, Shape]
    runs: Sequence[RunDefinition]
    site: Site
    left_out: Sequence[str] = ()
    sharing: int = 1

    @property
    def key(self) -> str:
        """The experiment's key in the YAML."""
        return self.name.partition(PARTITION_MARK)[0]

    @property
    def is_compared(self) -> bool:
        """Whether the experiment names the partitions that it runs on."""
        return self.experiment.partitions is not None

    @property
    def analysis_definition(self) -> str:
        """All that defines its tables and decision, as canonical JSON; the site's terms decide, too."""
        return canonical_json(self._defining("tables") | self._site_terms)

    @property
    def proposal_definition(self) -> str:
        """All that defines its proposal except for the tables, as canonical JSON; empty without one."""
        asked = self.experiment.proposal
        if asked is None:
            return ""
        keys = {"trainings", "samples_per_training"}
        return canonical_json(asked.model_dump(mode="json") | self.experiment.model_dump(include=keys))

    @property
    def rounds_definition(self) -> str:
        """All that defines which runs are requested, as canonical JSON."""
        found = self._defining("rounds") | self._site_terms
        if self.experiment.chooses_devices:
            found["choice"] = {
                "shapes": {str(devices): str(shape) for devices, shape in self.shapes.items()},
                "launchers": {run.point: run.launcher for run in self.runs if run.repeat == 1},
                "budget": self.budget,
                # with a budget, a run is made only if its whole time is left
                "run_minutes": self.experiment.runtime_minutes if self.experiment.budget else None,
            }
        return canonical_json(found)

    @property
    def budget(self) -> float | None:
        """The most device-hours that it may spend; None for no limit."""
        budget = self.experiment.budget
        return None if budget is None else budget.device_hours / self.sharing

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

    def _defining(self, product: Literal["tables", "rounds"]) -> dict[str, Any]:
        return {"name": self.name, "spec": deciding_values(self.experiment, product)}

    @property
    def _site_terms(self) -> dict[str, Any]:
        return {
            **self.site.queue_and_billing(self.shapes.values()),
            "accelerator": self.runs[0].accelerator,
            "most_devices": self.site.most_devices,
        }


@dataclass(frozen=True)
class Study:
    """All experiments of a configuration on a site.

    Args:
        experiments: Name and experiment, in the order of the file; one that names partitions is there once
            for each of them, as ``digits@a100``.
        sites: The site and its partitions.
        warnings: Sentences about choices that are allowed but rarely intended.
        runs: Every job of every experiment, by (experiment, run).
        allocations: The resources of every run, by the same keys.
    """

    experiments: Mapping[str, PlannedExperiment]
    sites: Sites
    warnings: Sequence[str]
    runs: Mapping[tuple[str, str], RunDefinition] = field(repr=False)
    allocations: Mapping[tuple[str, str], Allocation] = field(repr=False)

    @property
    def site(self) -> Site:
        """The site, or its default partition."""
        return self.sites.default

    @property
    def partitions(self) -> dict[str, Site]:
        """Each partition that runs are made on, by its name; the site by an empty name without partitions."""
        return {planned.site.partition: planned.site for planned in self.experiments.values()}

    @property
    def comparisons(self) -> dict[str, list[str]]:
        """Names of the experiments that compare partitions, by their key in the file."""
        found: dict[str, list[str]] = {}
        for name, planned in self.experiments.items():
            if planned.is_compared:
                found.setdefault(planned.key, []).append(name)
        return found

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
