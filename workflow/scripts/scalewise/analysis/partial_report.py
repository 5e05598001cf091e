"""A report on whatever has finished of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.analysis.analysis_spec import DECISION, AnalysisSpec, read_json
from scalewise.analysis.experiment_figures import draw
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.rounds.choice_summary import read_choice
from scalewise.analysis.study_report import write_report
from scalewise.plan.terminal.card_lines import card_lines


def write_partial_report(labels: Mapping[str, Mapping[str, Any]], results: Path) -> list[str]:
    """Report on whatever has finished, and list the rest with reasons.

    Args:
        labels: ``Study.report_facts``.
        results: Folder of all experiments; receives ``partial_report.html``, and its tables in ``partial``.

    Returns:
        Each experiment's card, what is measured next where counts are chosen, and the path of the report.
    """
    partial, output = results / "partial", results / "partial_report.html"
    for name, facts in labels.items():
        experiment = AnalysisSpec.from_json(facts["definition"])
        compute(experiment, results / name / "runs", partial / name)
        draw(experiment, partial / name, predicted=facts["predicted"])
    write_report(labels, partial, labels, output, partial=True)
    told: list[str] = []
    for name in labels:
        decision = read_json(partial / name / DECISION)
        told += card_lines(decision)
        choice = read_choice(partial / name)
        told += [] if choice is None else [f"  {sentence}" for sentence in choice.sentences()]
    return [*told, f"Report on what has finished: {output}"]
