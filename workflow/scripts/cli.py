"""Scalewise's commands. Those below are for users; workflow/rules calls further ones.

python workflow/scripts/cli.py --help
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scalewise.config.catalog import MIRROR_VARIABLE
from scalewise.config.errors import UserError
from scalewise.plan.plan_file import (
    PLAN,
    PLAN_FOLDER,
    Plan,
    latest_plan,
    read_plan,
    runs_in_slurm,
)
from scalewise.site.commands import ignore_variables

# ruff: noqa: PLC0415  each command loads only what it needs: torch and what draws take seconds

CHECKOUT = Path(__file__).resolve().parents[2]
RESULTS = Path("results")


# ---- commands of users


def site(options: Namespace) -> None:
    """Write the site file of this cluster from what Slurm reports."""
    from scalewise.plan.study import find_site_file
    from scalewise.site.places import find_places
    from scalewise.site.site_file import SITE_FILE, write_site_file

    places = find_places(options.partition, options.gpu_type, options.constraint, options.account)
    path = options.output or find_site_file(SITE_FILE, CHECKOUT)
    print(*write_site_file(places, path, CHECKOUT, force=options.force), sep="\n")


def status(options: Namespace) -> None:
    """Show what is done, what runs, what waits and why, and the answer so far."""
    from scalewise.status import status_lines

    print(*status_lines(user_plan(options), RESULTS, time.time()), sep="\n")


def report(options: Namespace) -> None:
    """Report on the runs that have finished, at any time; a study that runs is not disturbed."""
    from scalewise.report.finished import report_finished

    print(*report_finished(user_plan(options), RESULTS), sep="\n")


def redo(options: Namespace) -> None:
    """Remove the records of some runs, so that the next snakemake makes these runs again."""
    from scalewise.redo import redo

    lines = redo(
        user_plan(options),
        RESULTS,
        options.names,
        disturbed=options.disturbed,
        failed=options.failed,
        dry_run=options.dry_run,
    )
    print(*lines, sep="\n")


# ---- commands of the rules: preparation and jobs


def prepare_dataset(options: Namespace) -> None:
    """Download a dataset and prepare one file for all ranks, on a machine with internet access."""
    from scalewise.training.data import DatasetError
    from scalewise.training.prepare import prepare

    try:
        facts = prepare(options.dataset, options.output, mirror=os.environ.get(MIRROR_VARIABLE))
    except DatasetError as error:
        raise UserError(str(error)) from error
    print(f"{options.output}: {facts}")


def prepare_program(options: Namespace) -> int:
    """Run the command that a user's program needs before any job, on a machine with internet access."""
    from scalewise.config.site import Site
    from scalewise.execution.start import prepare_program

    plan = plan_of(options)
    # on the login node, which all partitions share
    site = Site.model_validate_json(next(iter(plan["sites"].values())))
    return prepare_program(json.loads(plan["preparations"][options.preparation]), site)


def train(options: Namespace) -> int:
    """Start the ranks of one run, watch them, and leave its records."""
    from scalewise.config.site import Site
    from scalewise.execution.job import RunJob, run_train_job
    from scalewise.execution.start import adopt_orphans, kill_descendants
    from scalewise.ranks.monitoring.environments import COMMIT, source_version

    # not the study's, which may have begun before the checkout changed
    if COMMIT not in os.environ:
        os.environ[COMMIT] = source_version(Path(__file__).parent)
    plan = plan_of(options)
    job = plan["runs"][options.experiment][options.run]
    site = Site.model_validate_json(plan["sites"][job["site"]])
    # a rank that was killed cannot end what its program has started
    adopt_orphans()
    try:
        return run_train_job(RunJob(job, site, options.attempt, options.record.parent, options.log))
    finally:
        kill_descendants()


def preflight(options: Namespace) -> int:
    """Check the site's facts, then start the ranks of the largest run once, on each partition."""
    from scalewise.execution.preflight_job import run_preflight

    return 0 if run_preflight(plan_of(options), options.plan, options.output, options.status_command) else 1


def hello(options: Namespace) -> int:
    """Start the ranks of a preflight inside its job."""
    from scalewise.execution.preflight_job import run_hello_ranks
    from scalewise.site.preflight import Preflight

    preflight = Preflight.of(plan_of(options), options.partition)
    return run_hello_ranks(preflight, options.output)


# ---- commands of the rules: analysis


def analyze(options: Namespace) -> None:
    """Make the tables and the answer of an experiment."""
    from scalewise.analysis.study import write
    from scalewise.report.proposal import analysis_of

    write(analysis_of(plan_of(options), options.folder.name, options.folder.parent), options.folder)


def judge(options: Namespace) -> None:
    """Decide which runs an experiment needs next."""
    from scalewise.analysis.judge_round import judge_round
    from scalewise.analysis.round_texts import round_line

    plan = plan_of(options)
    definition = plan["experiments"][options.folder.name]["definitions"][options.part]
    print(round_line(judge_round(definition, options.round, options.folder, in_slurm=runs_in_slurm(plan))))


def plot(options: Namespace) -> None:
    """Draw the figures of an experiment from its tables."""
    from scalewise.report.figures import draw
    from scalewise.report.section import read_section

    draw(read_section(plan_of(options), options.folder.name, options.folder))


def proposal(options: Namespace) -> None:
    """Write the computing-time proposal of an experiment."""
    from scalewise.report.proposal import analysis_of, write_proposal

    plan, name = plan_of(options), options.folder.name
    write_proposal(analysis_of(plan, name, options.folder.parent), plan, name, options.folder)


def write_report(options: Namespace) -> None:
    """Write the report on all experiments, from their tables and figures."""
    from scalewise.report.page import write_page
    from scalewise.report.section import read_section, write_decisions

    plan = plan_of(options)
    sections = [read_section(plan, name, options.results / name) for name in plan["experiments"]]
    # first, as `report` looks at its time
    write_page(sections, options.output)
    write_decisions(sections, options.decisions)


# ---- the command line

Arguments = Mapping[str, Any]
"""Options of argparse by the name of the argument."""

NAMES = {"action": "extend", "default": [], "type": lambda text: [name.strip() for name in text.split(",")]}
FLAG = {"action": "store_true"}
PATH = {"required": True, "type": Path}
FOLDER = {"type": Path, "help": "results of the experiment, named like it"}

COMMANDS: Mapping[Callable[[Namespace], int | None], Arguments] = {
    site: {
        "--partition": NAMES | {"help": "partition to describe, if there are several; some to compare: a,b"},
        "--gpu-type": NAMES | {"help": "GPU type, if the partition has several; some to compare: a,b"},
        "--account": {"help": "account that pays; your default one by default"},
        "--constraint": {"default": "", "help": "features that nodes must have, such as a100&ib"},
        "--output": {"type": Path, "help": "file to write; profiles/slurm/site.yaml by default"},
        "--force": FLAG | {"help": "replace a file that you have filled in"},
    },
    status: {},
    report: {},
    redo: {
        "--disturbed": FLAG | {"help": "runs that something disturbed"},
        "--failed": FLAG | {"help": "runs that have not completed"},
        "--dry-run": FLAG | {"help": "name them, and remove nothing"},
        "names": {"nargs": "*", "help": "runs, digits/d2.r1 or 'digits/d2.*', or experiments; default: all"},
    },
    prepare_dataset: {"--dataset": {"required": True}, "--output": PATH},
    prepare_program: {"preparation": {}},
    train: {
        "experiment": {},
        "run": {},
        "record": {"type": Path, "help": "record.json to write; the other records lie next to it"},
        "--attempt": {"type": int, "default": 1, "help": "number of Snakemake's try, from 1"},
        "--log": PATH,
    },
    preflight: {"--status-command": {"default": "squeue"}, "--output": PATH},
    hello: {"--partition": {"default": ""}, "--output": PATH},
    analyze: {"folder": FOLDER},
    judge: {"folder": FOLDER, "--part": {"default": ""}, "--round": {"type": int, "required": True}},
    plot: {"folder": FOLDER},
    proposal: {"folder": FOLDER},
    write_report: {"results": {"type": Path}, "--output": PATH, "--decisions": PATH},
}
OF_USERS = (site, status, report, redo)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands; its help lists those of users."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text = f"file of the study's plan; by default ${PLAN}, or else the newest in {PLAN_FOLDER}"
    parser.add_argument("--plan", default=os.environ.get(PLAN, ""), help=text)
    commands = parser.add_subparsers(metavar="command", required=True)
    for command, arguments in COMMANDS.items():
        shown: Arguments = {"help": command.__doc__} if command in OF_USERS else {}
        added = commands.add_parser(command.__name__.replace("_", "-"), description=command.__doc__, **shown)
        added.set_defaults(command=command)
        for name, options in arguments.items():
            added.add_argument(name, **options)
    return parser


def plan_of(options: Namespace) -> Plan:
    """Read the plan of the study; end this process with what to do if none has been started."""
    options.plan = options.plan or latest_plan()
    if not options.plan:
        sys.exit(
            f"No study has been started in {Path.cwd()}: there is no {PLAN_FOLDER}/plan-*.json. "
            "Run this where snakemake runs, once it has started."
        )
    return read_plan({PLAN: options.plan})


def user_plan(options: Namespace) -> Plan:
    """Read the plan as ``plan_of`` does, and check that this version of Scalewise has written it.

    Raises:
        UserError: The checkout has changed since, or the file is damaged.
    """
    from scalewise.analysis.study import parts_of

    plan = plan_of(options)
    try:
        runs_in_slurm(plan)
        for name, experiment in plan["experiments"].items():
            _ = parts_of(plan, name, RESULTS), plan["runs"][name].keys(), experiment["title"]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        cause = "the plan is damaged, or of another version of Scalewise"
        raise UserError(f"{options.plan}: {cause}. Give your snakemake command again.") from error
    return plan


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # each line at once, through the pipe to the log
        sys.stdout.reconfigure(line_buffering=True)
        if sys.stdout.encoding != "utf-8":
            # a character that the terminal lacks, as its code
            sys.stdout.reconfigure(errors="backslashreplace")
    options = make_parser().parse_args(arguments)
    ignore_variables(os.environ)
    # modules stay to the end: the collector need not look at each of their objects again and again
    gc.set_threshold(100_000, 50, 1000)
    try:
        return options.command(options) or 0
    except UserError as error:
        text = str(error)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if options.command not in OF_USERS:
            raise
        if isinstance(error, BrokenPipeError):
            # the reader has ended, such as `head`: the rest in the buffer is dropped
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        text = f"{error}. Correct this, and give the command again."
    print(f"scalewise: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
