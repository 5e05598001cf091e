"""A report on whatever has finished of a study."""

from __future__ import annotations

from pathlib import Path

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.proposal.folder import write_proposal_of
from scalewise.analysis.report.drawing import draw
from scalewise.analysis.report.page import read_comparisons, write_report
from scalewise.analysis.report.partition_page import report_partitions
from scalewise.plan.plan_file import Plan
from scalewise.plan.terminal.card_lines import card_lines, partition_lines


def write_partial_report(plan: Plan, results: Path) -> list[str]:
    """Report on whatever has finished, and list the rest with reasons.

    Args:
        plan: The study.
        results: Folder of all experiments; receives ``partial_report.html``, and its tables in ``partial``.

    Returns:
        Each experiment's card, what is measured next where counts are chosen, and the path of the report.
    """
    partial, output = results / "partial", results / "partial_report.html"
    experiments = []
    for name, facts in plan["experiments"].items():
        compute(AnalysisSpec.from_json(facts["definition"]), results / name / "runs", partial / name)
        experiments.append(ExperimentResults.of_study(facts, partial / name))
        draw(experiments[-1])
        write_proposal_of(experiments[-1], facts)
    for name, comparison in plan["comparisons"].items():
        report_partitions(comparison, plan["experiments"], partial / name)
    comparisons = read_comparisons(plan["comparisons"], partial, f"{partial.name}/")
    write_report(experiments, output, partial=True, comparisons=comparisons)
    lines: list[str] = []
    for across in comparisons:
        lines += partition_lines(across.answer)
    for each in experiments:
        lines += card_lines(each.decision)
        lines += [] if each.choice is None else [f"  {sentence}" for sentence in each.choice.sentences()]
    return [*lines, f"Report on what has finished: {output}"]
