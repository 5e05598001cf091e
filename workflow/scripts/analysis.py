"""Turn the records of runs into tables, a decision, figures and a report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit
from scalewise.plan.plan_file import PLAN, ExperimentFacts, Plan, read_plan
from scalewise.records import RecordError, read_all_reduce, write_text

# ruff: noqa: PLC0415  each step loads what it needs alone: the libraries that draw take two seconds


def scaling(options: argparse.Namespace) -> None:
    """Make the tables and the decision of an experiment."""
    with imports_uncollected():
        from scalewise.analysis.analysis_spec import AnalysisSpec
        from scalewise.analysis.experiment_tables import compute

    spec = AnalysisSpec.from_json(_facts(options)["definition"])
    compute(spec, options.folder / "runs", options.folder)


def prediction(options: argparse.Namespace) -> None:
    """Predict the steps of an experiment from its runs on one device and the site's all-reduce."""
    with imports_uncollected():
        from scalewise.analysis.prediction.experiment_prediction import PredictionSpec, compute_prediction

    compute_prediction(
        PredictionSpec.from_json(_facts(options)["prediction"]),
        [read_all_reduce(path) for path in options.all_reduces],
        options.folder / "runs",
        options.folder,
        from_steps=options.from_steps,
    )


def judge(options: argparse.Namespace) -> None:
    """Judge what an experiment measures next."""
    with imports_uncollected():
        from scalewise.analysis.rounds.judge_round import judge_round
        from scalewise.analysis.rounds.sentences import round_lines

    all_reduces = [read_all_reduce(path) for path in options.all_reduces]
    judged = judge_round(_facts(options)["rounds"], options.round, options.folder, all_reduces)
    # in one piece, so that lines of two experiments do not mix in the terminal
    sys.stdout.write("".join(f"{line}\n" for line in round_lines(judged)))


def figures(options: argparse.Namespace) -> None:
    """Draw the figures of an experiment from its tables."""
    with imports_uncollected():
        from scalewise.analysis.experiment_results import ExperimentResults
        from scalewise.analysis.report.drawing import draw

    draw(ExperimentResults.of_study(_facts(options), options.folder))


def event_files(options: argparse.Namespace) -> None:
    """Write the runs of an experiment for TensorBoard."""
    with imports_uncollected():
        from scalewise.analysis.event_files import write_event_files

    write_event_files(options.runs, options.folder)


def report(options: argparse.Namespace) -> None:
    """Write the report on one experiment or on several."""
    with imports_uncollected():
        from scalewise.analysis.experiment_results import ExperimentResults
        from scalewise.analysis.report.page import write_report

    facts = options.plan["experiments"]
    names = options.experiments or list(facts)
    if options.decisions:
        texts = ((options.results / name / "decision.json").read_text(encoding="utf-8") for name in names)
        write_text(options.decisions, json.dumps([json.loads(text) for text in texts], indent=2) + "\n")
    experiments = [ExperimentResults.of_study(facts[name], options.results / name) for name in names]
    write_report(experiments, options.output)


def partial_report(options: argparse.Namespace) -> None:
    """Report on whatever has finished, and list the rest with reasons."""
    with imports_uncollected():
        from scalewise.analysis.partial_report import write_partial_report

    for line in write_partial_report(options.plan["experiments"], options.results):
        print(line)


def decisions(options: argparse.Namespace) -> None:
    """Print the decisions of a study and where its report stands."""
    from scalewise.plan.terminal import final_message

    print(final_message.decisions(options.results))


def main(arguments: list[str] | None = None) -> int:
    """Run one step of the analysis."""
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(metavar="step", required=True)
    commands = {}
    for step in (scaling, prediction, judge, figures, event_files, report, partial_report, decisions):
        name = step.__name__.replace("_", "-")
        commands[step] = steps.add_parser(name, help=step.__doc__, description=step.__doc__)
        commands[step].set_defaults(step=step)

    for step in (scaling, prediction, judge, figures):
        commands[step].add_argument("folder", type=Path, help="results of the experiment, named like it")
    commands[prediction].add_argument(
        "--all-reduces", required=True, nargs="*", type=Path, help="all-reduce of each shape"
    )
    commands[prediction].add_argument(
        "--from-steps", action="store_true", help="predict more nodes from steps measured on fewer"
    )
    commands[judge].add_argument("--round", required=True, type=int, help="number of the round, from 1")
    commands[judge].add_argument(
        "--all-reduces", default=[], nargs="*", type=Path, help="those whose cost a budget counts"
    )

    commands[event_files].add_argument("--runs", required=True, type=Path, help="table of the runs")
    commands[event_files].add_argument("folder", type=Path, help="results of the experiment")

    for step in (scaling, prediction, judge, figures, report, partial_report):
        commands[step].add_argument(
            "--plan", required=True, type=_plan, help="file of the plan, which Snakemake writes"
        )
    commands[report].add_argument("--output", required=True, type=Path, help="HTML file to write")
    commands[report].add_argument("--decisions", type=Path, help="JSON file to write, with all decisions")
    for step in (report, partial_report, decisions):
        commands[step].add_argument("results", type=Path, help="folder of all experiments")
    commands[report].add_argument("experiments", nargs="*", help="names, in order; all by default")

    options = parser.parse_args(arguments)
    try:
        options.step(options)
    except RecordError as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    return 0


def _plan(path: str) -> Plan:
    return read_plan({PLAN: path})


def _facts(options: argparse.Namespace) -> ExperimentFacts:
    facts: ExperimentFacts = options.plan["experiments"][options.folder.name]
    return facts


if __name__ == "__main__":
    quick_exit(main())
