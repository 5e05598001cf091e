"""The steps of the analysis, from records on disk to files on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.adaptive_repeats import repeat_sentences
from scalewise.analysis.bottlenecks.bottlenecks import bottleneck_sentences
from scalewise.analysis.bottlenecks.drift import drift_flags
from scalewise.analysis.bottlenecks.resumption import resumption_notes
from scalewise.analysis.bottlenecks.utilization import flags
from scalewise.analysis.comparison.comparability import origin_cautions
from scalewise.analysis.decision.criteria import as_billed
from scalewise.analysis.decision.decision import decide
from scalewise.analysis.laws import study_laws
from scalewise.analysis.prediction.experiment_prediction import beyond_sentences
from scalewise.analysis.report import figures
from scalewise.analysis.report.page import Section, render
from scalewise.analysis.report.proposal import write_proposal
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.repeats import known_rounds, requested_repeats
from scalewise.plan.terminal.predictions import PREDICTION, REMARKS
from scalewise.records import Provenance, write_text

RUNS, EPOCHS, SCALING, OPTIONS = "runs.csv", "epochs.csv", "scaling.csv", "options.csv"
LAWS, DECISION, ORIGINS, FINGERPRINTS = "laws.json", "decision.json", "provenance.json", "fingerprints.json"


@dataclass(frozen=True)
class AnalysisSpec:
    """An experiment as the plan defined it, for analysis.

    Args:
        queue_minutes: Usual wait in the queue by device count, where the site gives it.
        billed_devices: Devices that are paid, by device count, where they are more than it uses.
    """

    name: str
    spec: Experiment
    queue_minutes: Mapping[int, float] = field(default_factory=dict)
    billed_devices: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> AnalysisSpec:
        """Read ``PlannedExperiment.analysis_definition``."""
        values = json.loads(text)
        terms = (
            {int(devices): value for devices, value in values.get(key, {}).items()}
            for key in ("queue_minutes", "billed_devices")
        )
        return cls(values["name"], Experiment.model_validate(values["spec"]), *terms)

    @property
    def target(self) -> float | None:
        """Test accuracy to reach."""
        return self.spec.target.accuracy if self.spec.target else None


def compute(experiment: AnalysisSpec, runs_folder: Path, folder: Path, *, tolerant: bool = False) -> None:
    """Write the tables and the decision of an experiment.

    Args:
        experiment: The experiment, the way the plan defined it.
        runs_folder: Holds a folder for each run.
        folder: Receives the files.
        tolerant: List a damaged record with its reason instead of raising.

    Raises:
        RecordError: A record is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec, home = experiment.spec, runs_folder.parent
    rounds = known_rounds(spec.repeats, home)
    asked = requested_repeats(spec.repeats, rounds)
    tables = collect(experiment.name, spec, runs_folder, tolerant=tolerant, asked=asked)
    scaling = as_billed(
        scaling_table(tables.runs, spec.scaling, tables.conditions), experiment.billed_devices
    )
    options = option_table(tables.runs, spec.swept, tables.conditions)
    decision = decide(
        experiment.name,
        scaling,
        options,
        spec.decision,
        target=experiment.target,
        differences=[
            *origin_cautions(tables.origins),
            *_shared_nodes(tables.origins),
            *flags(scaling, tables.runs),
            *drift_flags(tables.runs),
            *resumption_notes(tables.runs),
        ],
        queue_minutes=experiment.queue_minutes,
        swept=spec.swept,
    )
    decided = scaling[scaling["series"] == decision.series] if decision.series is not None else scaling
    decision = replace(decision, limits=bottleneck_sentences(decided, tables.runs, spec.scaling))
    for name, table in (
        (RUNS, tables.runs),
        (EPOCHS, tables.epochs),
        (SCALING, scaling),
        (OPTIONS, options),
    ):
        write_text(folder / name, table.to_csv(index=False, lineterminator="\n"))
    laws = [law.as_dict() for law in study_laws(tables.runs, spec.scaling)]
    for name, values in (
        (LAWS, laws),
        (ORIGINS, distinct_origins(tables.origins, spec)),
        (FINGERPRINTS, dict(sorted(tables.conditions.items()))),
        (DECISION, decision.as_dict() | {"repeats": repeat_sentences(rounds)}),
    ):
        write_text(folder / name, json.dumps(values, indent=2) + "\n")
    write_proposal(scaling, decision, folder)
    if folder != home:
        # a report on what has finished stands in a folder of its own; what was predicted goes with it
        for name in (PREDICTION, REMARKS):
            (folder / name).unlink(missing_ok=True)
            if (home / name).exists():
                write_text(folder / name, (home / name).read_text(encoding="utf-8"))


def draw(experiment: AnalysisSpec, folder: Path, *, predicted: bool = True) -> None:
    """Write the figures from the tables in the folder.

    Args:
        experiment: The experiment, the way the plan defined it.
        folder: Results of the experiment.
        predicted: Show its prediction if there is one; an earlier configuration may have left it.
    """
    figures.draw_all(
        pd.read_csv(folder / SCALING),
        pd.read_csv(folder / RUNS),
        pd.read_csv(folder / EPOCHS),
        folder / "figures",
        min_efficiency=experiment.spec.decision.min_efficiency,
        target=experiment.target,
        laws=_read_json(folder / LAWS),
        prediction=_prediction(folder) if predicted else None,
    )


def write_report(
    names: Iterable[str],
    results: Path,
    labels: Mapping[str, Mapping[str, Any]],
    output: Path,
    *,
    partial: bool = False,
) -> None:
    """Write one HTML file on the named experiments.

    Args:
        names: Names of the experiments, in order.
        results: Holds a folder for each, with tables and figures.
        labels: Title and description of each, and whether its prediction is shown.
        output: File to write.
        partial: Say that runs may be missing.
    """
    sections = [_section(name, results / name, labels[name]) for name in names]
    write_text(output, render(sections, partial=partial))


def write_partial_report(labels: Mapping[str, Mapping[str, Any]], results: Path) -> list[str]:
    """Report on whatever has finished, and list the rest with reasons.

    Args:
        labels: ``Study.report_facts``.
        results: Folder of all experiments; receives ``partial_report.html``, and its tables in ``partial``.

    Returns:
        Each experiment's decision, and the path of the report.
    """
    partial, output = results / "partial", results / "partial_report.html"
    for name, facts in labels.items():
        experiment = AnalysisSpec.from_json(facts["definition"])
        compute(experiment, results / name / "runs", partial / name, tolerant=True)
        draw(experiment, partial / name, predicted=facts["predicted"])
    write_report(labels, partial, labels, output, partial=True)
    sentences = {name: _read_json(partial / name / DECISION)["sentence"] for name in labels}
    told = [f"{name}: {sentence}" for name, sentence in sentences.items()]
    return [*told, f"Report on what has finished: {output}"]


def gather_decisions(names: Iterable[str], results: Path, output: Path) -> None:
    """Write the decisions of the named experiments as one JSON list."""
    decisions = [_read_json(results / name / DECISION) for name in names]
    write_text(output, json.dumps(decisions, indent=2) + "\n")


def _section(name: str, folder: Path, label: Mapping[str, Any]) -> Section:
    prediction = _prediction(folder) if label.get("predicted", True) else None
    decision = _read_json(folder / DECISION)
    if prediction is not None:
        decision["beyond"] += beyond_sentences(prediction, decision["series"])
    return Section(
        name=name,
        title=label["title"],
        description=label["description"],
        decision=decision,
        scaling=pd.read_csv(folder / SCALING),
        runs=pd.read_csv(folder / RUNS),
        options=pd.read_csv(folder / OPTIONS),
        origins=_read_json(folder / ORIGINS),
        figures=folder / "figures",
        laws=_read_json(folder / LAWS),
        prediction=prediction,
        prediction_notes=[] if prediction is None else _prediction_notes(folder),
        repeats=decision["repeats"],
    )


def _prediction(folder: Path) -> pd.DataFrame | None:
    """The predictions of an experiment; None where nothing was predicted."""
    return pd.read_csv(folder / PREDICTION) if (folder / PREDICTION).exists() else None


def _prediction_notes(folder: Path) -> list[str]:
    notes = _read_json(folder / REMARKS)
    return [*notes["notes"], *notes["refused"].values()]


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


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
