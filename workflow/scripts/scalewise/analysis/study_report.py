"""The report on experiments, from their tables, decisions and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import (
    DECISION,
    EPOCHS,
    LAWS,
    OPTIONS,
    ORIGINS,
    RUNS,
    SCALING,
    WHAT_IF,
    AnalysisSpec,
    read_json,
    read_prediction,
)
from scalewise.analysis.prediction.wording import beyond_sentences
from scalewise.analysis.report.page import Section, render
from scalewise.analysis.rounds.choice_summary import read_choice
from scalewise.plan.formatting import name_devices
from scalewise.plan.terminal.predictions import latest_prediction
from scalewise.records import write_text


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


def gather_decisions(names: Iterable[str], results: Path, output: Path) -> None:
    """Write the decisions of the named experiments as one JSON list."""
    decisions = [read_json(results / name / DECISION) for name in names]
    write_text(output, json.dumps(decisions, indent=2) + "\n")


def _section(name: str, folder: Path, label: Mapping[str, Any]) -> Section:
    prediction = read_prediction(folder) if label.get("predicted", True) else None
    decision = read_json(folder / DECISION)
    if prediction is not None:
        beyond = beyond_sentences(prediction, decision["series"])
        noun = decision.get("device", "device")
        decision["beyond"] += [name_devices(sentence, noun) for sentence in beyond]
    return Section(
        name=name,
        title=label["title"],
        description=label["description"],
        decision=decision,
        scaling=pd.read_csv(folder / SCALING),
        runs=pd.read_csv(folder / RUNS),
        options=pd.read_csv(folder / OPTIONS),
        origins=read_json(folder / ORIGINS),
        figures=folder / "figures",
        laws=read_json(folder / LAWS),
        prediction=prediction,
        prediction_notes=[] if prediction is None else _prediction_notes(folder),
        repeats=decision["repeats"],
        choice=read_choice(folder),
        epochs=_epochs(folder),
        min_efficiency=None if decision.get("measure") == "time to target" else _min_efficiency(label),
        what_if=_what_if(folder),
    )


def _epochs(folder: Path) -> pd.DataFrame | None:
    """The learning curves; None where no run has told one, which leaves a file without a column."""
    try:
        return pd.read_csv(folder / EPOCHS)
    except (FileNotFoundError, pd.errors.EmptyDataError):
        return None


def _min_efficiency(label: Mapping[str, Any]) -> float | None:
    """The least efficiency that the experiment asks for."""
    if "definition" not in label:
        return None
    return AnalysisSpec.from_json(label["definition"]).spec.decision.min_efficiency


def _what_if(folder: Path) -> dict[str, Any]:
    """The numbers with which the page decides again, or the reason why it cannot."""
    found: dict[str, Any] = read_json(folder / WHAT_IF)
    return found


def _prediction_notes(folder: Path) -> list[str]:
    notes = read_json(latest_prediction(folder)[1])
    return [*notes["notes"], *notes["refused"].values()]
