"""The steps of the analysis, from records on disk to files on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from scalewise.analysis import figures
from scalewise.analysis.decision import decide
from scalewise.analysis.report import Section, render
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.analysis.tables import collect
from scalewise.analysis.utilization import flags
from scalewise.plan.config import Experiment
from scalewise.plan.settings import Settings
from scalewise.records import Provenance, write_text

RUNS, EPOCHS, SCALING, OPTIONS, DECISION, ORIGINS = (
    "runs.csv",
    "epochs.csv",
    "scaling.csv",
    "options.csv",
    "decision.json",
    "provenance.json",
)


@dataclass(frozen=True)
class Analysed:
    """An experiment as the plan defined it, for analysis.

    Args:
        name: of the experiment.
        spec: its settings.
    """

    name: str
    spec: Experiment

    @classmethod
    def from_json(cls, text: str) -> Analysed:
        """From ``PlannedExperiment.analysis_definition``."""
        values = json.loads(text)
        return cls(values["name"], Experiment.model_validate(values["spec"]))

    @property
    def target(self) -> float | None:
        """Test accuracy to reach."""
        return self.spec.target.accuracy if self.spec.target else None


def compute(experiment: Analysed, runs_folder: Path, folder: Path, *, tolerant: bool = False) -> None:
    """Write the tables and the decision of an experiment.

    Args:
        experiment: what was planned.
        runs_folder: holds a folder for each run.
        folder: receives the files.
        tolerant: list a damaged record with its reason instead of raising.

    Raises:
        RecordError: a record is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = collect(experiment.name, experiment.spec, runs_folder, tolerant=tolerant)
    scaling = scaling_table(tables.runs, experiment.spec.scaling)
    options = option_table(tables.runs, experiment.spec.swept)
    origins = distinct_origins(tables.origins, experiment.spec)
    differences = [
        f"The runs differ in {name} ({'; '.join(origins[name])}), and so do not differ in devices alone."
        for name in ("devices", "CPU", "operating system", "launcher", "versions")
        if len(origins[name]) > 1 and name not in experiment.spec.swept
    ]
    differences += [*_shared_nodes(tables.origins), *flags(scaling, tables.runs)]
    decision = decide(
        experiment.name,
        scaling,
        options,
        experiment.spec.decision.min_efficiency,
        target=experiment.target,
        differences=differences,
    )
    for name, table in (
        (RUNS, tables.runs),
        (EPOCHS, tables.epochs),
        (SCALING, scaling),
        (OPTIONS, options),
    ):
        write_text(folder / name, table.to_csv(index=False, lineterminator="\n"))
    write_text(folder / ORIGINS, json.dumps(origins, indent=2) + "\n")
    write_text(folder / DECISION, json.dumps(decision.as_dict(), indent=2) + "\n")


def draw(experiment: Analysed, folder: Path) -> None:
    """Write the figures from the tables in the folder."""
    figures.draw_all(
        pd.read_csv(folder / SCALING),
        pd.read_csv(folder / RUNS),
        pd.read_csv(folder / EPOCHS),
        experiment.spec.decision.min_efficiency,
        experiment.target,
        folder / "figures",
    )


def write_report(
    names: Iterable[str],
    results: Path,
    labels: Mapping[str, Mapping[str, str]],
    output: Path,
    *,
    partial: bool = False,
) -> None:
    """Write one HTML file on the named experiments.

    Args:
        names: of the experiments.
        results: holds a folder for each, with tables and figures.
        labels: title and description of each.
        output: file to write.
        partial: say that runs may be missing.
    """
    sections = [_section(name, results / name, labels[name]) for name in names]
    write_text(output, render(sections, partial=partial))


def gather_decisions(names: Iterable[str], results: Path, output: Path) -> None:
    """Write the decisions of the named experiments as one JSON list."""
    decisions = [json.loads((results / name / DECISION).read_text(encoding="utf-8")) for name in names]
    write_text(output, json.dumps(decisions, indent=2) + "\n")


def _section(name: str, folder: Path, label: Mapping[str, str]) -> Section:
    return Section(
        name=name,
        title=label["title"],
        description=label["description"],
        decision=json.loads((folder / DECISION).read_text(encoding="utf-8")),
        scaling=pd.read_csv(folder / SCALING),
        runs=pd.read_csv(folder / RUNS),
        options=pd.read_csv(folder / OPTIONS),
        origins=json.loads((folder / ORIGINS).read_text(encoding="utf-8")),
        figures=folder / "figures",
    )


def distinct_origins(origins: Sequence[Provenance], spec: Experiment) -> dict[str, list[str]]:
    """Every value that the runs' provenance takes, so that a difference between runs shows."""
    found: dict[str, list[str]] = {
        "settings": [_settings(spec)],
        "commit": _distinct(origin.commit or "unknown: not a git checkout" for origin in origins),
        "devices": _distinct(device for origin in origins for device in origin.devices),
        "hosts": _distinct(host for origin in origins for host in origin.hosts),
        "CPU": _distinct(origin.cpu_model for origin in origins),
        "operating system": _distinct(origin.operating_system for origin in origins),
        "launcher": _distinct(origin.launcher for origin in origins),
        "neighbours": _shared_nodes(origins) or ["no other job on the nodes, or unknown"],
        "versions": _distinct(
            ", ".join(f"{name} {version}" for name, version in origin.versions.items()) for origin in origins
        ),
    }
    if origins:
        first = min(origin.started_at for origin in origins)
        last = max(origin.ended_at for origin in origins)
        found["measured (UTC)"] = [f"{first} to {last}"]
    return found


def _shared_nodes(origins: Sequence[Provenance]) -> list[str]:
    """A sentence where other jobs may have disturbed the figures."""
    shared = sum(1 for origin in origins if origin.other_jobs)
    if not shared:
        return []
    return [
        f"{shared} of {len(origins)} runs began on nodes where other jobs ran, which may have slowed them. "
        "The site file's slurm.exclusive asks for whole nodes."
    ]


def _settings(spec: Experiment) -> str:
    """The experiment's training in one line, a swept key with all its values."""
    shown = {key: getattr(spec, key) for key in Settings.model_fields} | spec.swept
    return ", ".join(f"{key} {value}" for key, value in shown.items() if value is not None)


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
