"""A report on the runs of a study that have finished, also while Snakemake makes others."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults, write_decisions
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.report.drawing import draw
from scalewise.analysis.report.page import read_comparisons, write_report
from scalewise.analysis.report.partition_page import report_partitions
from scalewise.plan.plan_file import Plan, runs_in_slurm
from scalewise.plan.terminal.card_lines import card_lines, partition_lines
from scalewise.plan.terminal.final_message import DECISION, REPORT, EarlierFiles
from scalewise.records import SUMMARY
from scalewise.report.proposal import write_proposal

PARTIAL = "partial"
"""Folder of its tables and figures: those of the experiments' folders are files of Snakemake."""


def report_finished(plan: Plan, results: Path) -> list[str]:
    """Report on the runs that have finished, and list the others with reasons.

    All is written into a temporary folder and then renamed. ``report.html`` and ``decision.json`` are also
    files of Snakemake. They get the time at which reading began, so they are older than every file that the
    study made since, and Snakemake makes them again. A report that the study made since is kept.

    Args:
        plan: The study.
        results: Folder of all experiments; receives ``report.html``, ``decision.json``, and ``partial`` with
            the tables, the figures and the proposals.

    Returns:
        Each experiment's card, what is measured next where counts are chosen, and the path of the report.
    """
    results.mkdir(exist_ok=True)
    earlier = EarlierFiles()
    earlier.look(results)
    with TemporaryDirectory(prefix=".report-", dir=results) as name:
        drafts = Path(name)
        # the clock of the file server, as for the study's files
        began = drafts.stat().st_mtime_ns
        partial = drafts / PARTIAL
        experiments = _analyze(plan, results, partial)
        comparisons = read_comparisons(plan["comparisons"], partial, f"{PARTIAL}/")
        unfinished = not all(_has_ended(each, results / each.name / "runs") for each in experiments)
        write_report(experiments, drafts / REPORT, partial=unfinished, comparisons=comparisons)
        write_decisions(partial, plan["experiments"], drafts / DECISION)
        if earlier.has_new(results / REPORT):
            return [f"The study has made its own report in the meantime: {results / REPORT}"]
        if (tables := results / PARTIAL).exists():
            tables.rename(drafts / "earlier")
        partial.rename(tables)
        for file in (DECISION, REPORT):
            os.utime(drafts / file, ns=(began, began))
            (drafts / file).replace(results / file)
    lines: list[str] = []
    for across in comparisons:
        lines += partition_lines(across.answer)
    for each in experiments:
        lines += card_lines(each.decision)
        lines += [] if each.choice is None else [f"  {sentence}" for sentence in each.choice.sentences()]
    return [*lines, f"Report on {'the finished' if unfinished else 'all'} runs: {results / REPORT}"]


def _analyze(plan: Plan, results: Path, partial: Path) -> list[ExperimentResults]:
    """Write tables, figures and proposals of all experiments, as the rules of the study do."""
    experiments = []
    for name, facts in plan["experiments"].items():
        spec, in_slurm = AnalysisSpec.from_json(facts["definition"]), runs_in_slurm(plan, facts)
        compute(spec, results / name / "runs", partial / name, in_slurm=in_slurm)
        experiments.append(ExperimentResults.of_study(facts, partial / name))
        draw(experiments[-1])
        if facts["proposal"]:
            write_proposal(experiments[-1], plan)
    for name, comparison in plan["comparisons"].items():
        report_partitions(comparison, plan["experiments"], partial / name)
    return experiments


def _has_ended(experiment: ExperimentResults, runs: Path) -> bool:
    """Return whether every requested run of an experiment has a result, and no more are requested."""
    if experiment.choice is not None and experiment.choice.next_runs:
        return False
    return all((runs / str(run) / SUMMARY).exists() for run in experiment.runs["run"])
