"""Scalewise's commands, for the rules and for users.

python workflow/scripts/cli.py --help
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

from scalewise.config.catalog.datasets import MIRROR_VARIABLE
from scalewise.interpreter import imports_uncollected, quick_exit
from scalewise.plan.plan_file import (
    PLAN,
    PLAN_FOLDER,
    ExperimentFacts,
    Plan,
    latest_plan,
    questions_of,
    read_plan,
    runs_in_slurm,
)

# ruff: noqa: PLC0415  each command loads only what it needs: torch and what draws take seconds

Command = Callable[[argparse.Namespace], int | None]


# ---- the cluster


def site(options: argparse.Namespace) -> int:
    """Write the site file of this cluster from what Slurm reports."""
    from scalewise.config.paths import find_site_file
    from scalewise.site.cluster import ClusterError
    from scalewise.site.places import SiteOptions
    from scalewise.site.site_file import SITE_FILE, write_site_file

    checkout = Path(__file__).resolve().parents[2]
    output = options.output or find_site_file(SITE_FILE, checkout)
    command = shlex.join(["python", *sys.argv])
    chosen = SiteOptions(
        partitions=options.partition,
        account=options.account,
        gpu_types=options.gpu_type,
        constraint=options.constraint,
        output=output,
        force=options.force,
        command=command,
    )
    try:
        print(*write_site_file(chosen, checkout), sep="\n")
    except ClusterError as error:
        return _fail(error)
    return 0


# ---- preparation


def prepare_dataset(options: argparse.Namespace) -> int:
    """Download a dataset and prepare one file for all ranks, on a machine with internet access."""
    with imports_uncollected():
        from scalewise.training.data import DatasetError
        from scalewise.training.prepare import prepare

    try:
        mirror = os.environ.get(MIRROR_VARIABLE)
        facts = prepare(options.dataset, options.output, mirror=mirror, notify=_print_now)
    except DatasetError as error:
        return _fail(error)
    print(f"{options.output}: {facts}")
    return 0


def prepare_program(options: argparse.Namespace) -> int:
    """Run the command that a user's program needs before any job, on a machine with internet access."""
    from scalewise.execution.preparation import prepare_program
    from scalewise.plan.launch import SiteLaunch

    plan = _plan(options)
    return prepare_program(
        json.loads(plan["preparations"][options.preparation]),
        # on the login node, which all partitions share
        SiteLaunch.model_validate(next(iter(plan["sites"].values()))["launch"]),
        options.output,
    )


# ---- jobs


def train(options: argparse.Namespace) -> int:
    """Start the ranks of one run, watch them, and leave its records."""
    from scalewise.execution.job import RunJob, run_train_job
    from scalewise.plan.launch import SiteLaunch
    from scalewise.ranks.monitoring.environments import COMMIT, source_version

    # not the study's, which may have begun before the checkout changed
    if COMMIT not in os.environ:
        os.environ[COMMIT] = source_version(Path(__file__).parent)
    plan = _plan(options)
    job = plan["runs"][options.experiment][options.run]
    partition = plan["experiments"][options.experiment]["partition"]
    launch = SiteLaunch.model_validate(plan["sites"][partition]["launch"])
    return run_train_job(RunJob.of(job, options.log, options.record, options.attempt), launch)


def preflight(options: argparse.Namespace) -> int:
    """Check the site's facts, then start the ranks of the largest run once, on each partition."""
    from scalewise.execution.lock import LockError
    from scalewise.execution.preflight_job import run_preflight

    try:
        is_ok = run_preflight(
            _plan(options), options.plan, options.output, _print_now, options.status_command
        )
    except LockError as error:
        return _fail(error)
    return 0 if is_ok else 1


def hello(options: argparse.Namespace) -> int:
    """Start the ranks of a preflight inside its job."""
    from scalewise.execution.preflight_job import run_hello_ranks

    return run_hello_ranks(_plan(options)["sites"][options.partition], options.output, options.log)


# ---- analysis


def analyze(options: argparse.Namespace) -> None:
    """Make the tables and the answer of an experiment."""
    with imports_uncollected():
        from scalewise.analysis.study import analyze, parts_of
        from scalewise.report.proposal import demands_total_times

    plan, question = _plan(options), options.folder.name
    parts = parts_of(plan, question, options.folder.parent)
    analyze(question, parts, options.folder, total_times=demands_total_times(plan, question))


def judge(options: argparse.Namespace) -> None:
    """Decide which runs an experiment needs next."""
    with imports_uncollected():
        from scalewise.analysis.judge_round import judge_round
        from scalewise.analysis.round_texts import round_line

    plan = _plan(options)
    facts = _facts_in(plan, options)
    in_slurm = runs_in_slurm(plan, facts)
    judged = judge_round(facts["rounds"], options.round, options.folder, in_slurm=in_slurm)
    # in one piece, so that lines of two experiments do not mix in the terminal
    sys.stdout.write(f"{round_line(judged)}\n")


def plot(options: argparse.Namespace) -> None:
    """Draw the figures of an experiment from its tables."""
    with imports_uncollected():
        from scalewise.report.figures import draw
        from scalewise.report.section import read_section

    draw(read_section(_plan(options), options.folder.name, options.folder))


def proposal(options: argparse.Namespace) -> None:
    """Write the computing-time proposal of an experiment."""
    with imports_uncollected():
        from scalewise.analysis.study import parts_of, read_and_conclude
        from scalewise.report.proposal import demands_total_times, write_proposal

    plan, question = _plan(options), options.folder.name
    parts = parts_of(plan, question, options.folder.parent)
    found = read_and_conclude(question, parts, total_times=demands_total_times(plan, question))
    write_proposal(found, plan, question, options.folder)


def write_report(options: argparse.Namespace) -> None:
    """Write the report on all experiments, from their tables and figures."""
    with imports_uncollected():
        from scalewise.report.page import write_page
        from scalewise.report.section import read_section, write_decisions

    plan = _plan(options)
    sections = [read_section(plan, name, options.results / name) for name in questions_of(plan)]
    # first, as `report` looks at its time
    write_page(sections, options.output)
    write_decisions(sections, options.decisions)


def report(options: argparse.Namespace) -> int:
    """Report on the runs that have finished, at any time; a study that runs is not disturbed."""
    if not _is_started(options):
        return 1
    with imports_uncollected():
        from scalewise.report.finished import report_finished

    print(*report_finished(_plan(options), Path("results")), sep="\n")
    return 0


def status(options: argparse.Namespace) -> int:
    """Show what is done, what runs, what waits and why, and the answer so far."""
    if not _is_started(options):
        return 1
    with imports_uncollected():
        from scalewise.status import status_lines

    print(*status_lines(_plan(options), Path("results"), time.time()), sep="\n")
    return 0


def redo(options: argparse.Namespace) -> int:
    """Remove the records of some runs, so that the next snakemake makes these runs again."""
    from scalewise.redo import RedoError, redo

    if not (options.disturbed or options.failed or options.names):
        return _fail(RedoError("name runs or experiments, or give --disturbed or --failed"))
    if not _is_started(options):
        return 1
    chosen = {name: getattr(options, name) for name in ("disturbed", "failed", "dry_run")}
    try:
        lines = redo(_plan(options), Path("results"), options.names, **chosen)
    except RedoError as error:
        return _fail(error)
    print(*lines, sep="\n")
    return 0


def decisions(options: argparse.Namespace) -> None:
    """Print the decisions of a study and where its report is."""
    from scalewise.terminal import decision_lines

    print(*decision_lines(options.results), sep="\n")


# ---- the command line


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--plan",
        default=os.environ.get(PLAN, ""),
        help=f"file of the study's plan, which Snakemake writes; by default the one that {PLAN} names",
    )
    commands = parser.add_subparsers(metavar="command", required=True)

    def add(command: Command, *files: str) -> argparse.ArgumentParser:
        """Add a command by its function, with options that name files."""
        added = commands.add_parser(
            command.__name__.replace("_", "-"), help=command.__doc__, description=command.__doc__
        )
        added.set_defaults(command=command)
        for name in files:
            added.add_argument(f"--{name}", required=True, type=Path, help=FILES[name])
        return added

    of_site = add(site)
    for name, text in (
        ("--partition", "partition to describe, if there are several"),
        ("--gpu-type", "GPU type, if the partition has several"),
    ):
        compared = f"{text}; to compare some, a list such as a,b"
        of_site.add_argument(name, action="extend", default=[], type=_names, help=compared)
    of_site.add_argument("--account", help="account that pays; your default one by default")
    of_site.add_argument("--constraint", default="", help="features that nodes must have, such as a100&ib")
    of_site.add_argument("--output", type=Path, help="file to write; profiles/slurm/site.yaml by default")
    of_site.add_argument("--force", action="store_true", help="replace a file that you have filled in")

    add(prepare_dataset, "output").add_argument("--dataset", required=True, help="its name")
    add(prepare_program, "output").add_argument("--preparation", required=True, help="its name in the plan")

    of_run = add(train, "log")
    of_run.add_argument("experiment", help="name of the experiment")
    of_run.add_argument("run", help="name of the run in it")
    of_run.add_argument("--attempt", default=1, type=int, help="number of Snakemake's try at it, from 1")
    of_run.add_argument("record", type=Path, help="record.json to write; the other records lie next to it")

    add(preflight, "output").add_argument(
        "--status-command", default="squeue", help="command by which snakemake queries its jobs"
    )
    add(hello, "log", "output").add_argument("--partition", default="", help="its name in the site file")

    def add_for_experiment(command: Command) -> argparse.ArgumentParser:
        added = add(command)
        added.add_argument("folder", type=Path, help="results of the experiment, named like it")
        return added

    for command in (analyze, plot, proposal):
        add_for_experiment(command)
    add_for_experiment(judge).add_argument("--round", required=True, type=int, help="its number, from 1")

    add(report)
    add(status)
    of_redo = add(redo)
    of_redo.add_argument("--disturbed", action="store_true", help="runs that something disturbed")
    of_redo.add_argument("--failed", action="store_true", help="runs that have not completed")
    of_redo.add_argument("--dry-run", action="store_true", help="name them, and remove nothing")
    of_redo.add_argument("names", nargs="*", help="runs, digits/d2.r1, or experiments; default: all")
    written = add(write_report, "output", "decisions")
    for added in (written, add(decisions)):
        added.add_argument("results", type=Path, help="folder of all experiments")
    return parser


FILES = {
    "decisions": "JSON file to write, with all answers",
    "log": "file that receives what the ranks print",
    "output": "file to write",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
    from scalewise.records import RecordError
    from scalewise.site.commands import ignore_variables

    options = make_parser().parse_args(arguments)
    ignore_variables(os.environ)
    try:
        return options.command(options) or 0
    except RecordError as error:
        return _fail(error)


def _is_started(options: argparse.Namespace) -> bool:
    """Take the plan of the last session if none is given; print what to do if there is none."""
    options.plan = options.plan or latest_plan()
    if not options.plan:
        print(
            f"No study has been started in {Path.cwd()}: there is no {PLAN_FOLDER}/plan-*.json. "
            "Run this where snakemake runs.",
            file=sys.stderr,
        )
    return bool(options.plan)


def _plan(options: argparse.Namespace) -> Plan:
    return read_plan({PLAN: options.plan})


def _facts_in(plan: Plan, options: argparse.Namespace) -> ExperimentFacts:
    """Return that part of a plan that was read."""
    return plan["experiments"][options.folder.name]


_print_now = functools.partial(print, flush=True)
"""Print a line at once, through the pipe to the log."""


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _fail(error: Exception) -> int:
    print(f"scalewise: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    quick_exit(main())
