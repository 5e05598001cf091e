"""A report on whatever has finished of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.proposal.folder import write_proposal_of
from scalewise.analysis.report.drawing import draw
from scalewise.analysis.report.page import write_report
from scalewise.plan.terminal.card_lines import card_lines


def write_partial_report(labels: Mapping[str, Mapping[str, Any]], results: Path) -> list[str]:
    """Report on whatever has finished, and list the rest with reasons.

    Args:
        labels: the plan.
        results: Folder of all experiments; receives ``partial_report.html``, and its tables in ``partial``.

    Returns:
        Each experiment's card, what is measured next where counts are chosen, and the path of the report.
    """
    partial, output = results / "partial", results / "partial_report.html"
    experiments = []
    for name, facts in labels.items():
        compute(AnalysisSpec.from_json(facts["definition"]), results / name / "runs", partial / name)
        experiments.append(ExperimentResults.of_study(facts, partial / name))
        draw(experiments[-1])
        write_proposal_of(experiments[-1], facts)
    write_report(experiments, output, partial=True)
    lines: list[str] = []
    for each in experiments:
        lines += card_lines(each.decision)
        lines += [] if each.choice is None else [f"  {sentence}" for sentence in each.choice.sentences()]
    return [*lines, f"Report on what has finished: {output}"]
