# Contract: PLAN is the study as all rules read it. The main process makes it of `config` and the site file, or
# stops with every mistake in them, and writes it down; jobs read what it wrote, so they train what was planned.

import os
import sys
from pathlib import Path

SCRIPTS = (
    Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parent / "scripts"
)
if not SCRIPTS.is_dir():
    sys.exit(
        f"{workflow.main_snakefile}: Scalewise's scripts are not in {SCRIPTS}. Clone Scalewise to a folder that all "
        "nodes see and give the path of its workflow/Snakefile."
    )
sys.path.insert(0, str(SCRIPTS))

from scalewise import snakemake_adapter as adapter
from scalewise.plan.plan_file import OF_DEVICES, read_plan

# The rules' commands find the scripts and this Python by the environment: in `params` a moved checkout would make
# everything again. An environment of Snakemake's own stands in front of this Python.
os.environ.update(
    SCALEWISE_SCRIPTS=str(SCRIPTS),
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    ),
)

if workflow.is_main_process:

    include: "study.smk"

else:
    PLAN = read_plan(os.environ)

    def begin():
        """Do nothing: the main process has checked where jobs go, and written the plan."""


EXPERIMENTS = PLAN["experiments"]
RUNS = {
    (experiment, run): job
    for experiment, runs in PLAN["runs"].items()
    for run, job in runs.items()
}
RECORD = "results/{experiment}/runs/{run}/record.json"
# part is the partition and a dot, in an experiment that compares several
ROUND = "results/{experiment}/repeats/{part}round{round}.json"


def of_run(wildcards):
    """Return the job of a run."""
    begin()
    key = wildcards.experiment, wildcards.run
    if key not in RUNS:
        sys.exit(f"{'/'.join(key)} is no run of the study. `snakemake -n` shows them.")
    return RUNS[key]


def part_of(wildcards):
    """Return the partition of a round; empty without partitions."""
    return wildcards.part.rstrip(".")


def train_inputs(wildcards):
    """Return the inputs of a run; a dataset is the same whenever it is prepared."""
    if workflow.is_main_process:
        is_valid = STUDY.has_record(
            wildcards.experiment, wildcards.run, Path("results")
        )
        adapter.judge_record(workflow, RECORD.format(**wildcards), is_valid=is_valid)
    inputs = of_run(wildcards)["inputs"]
    return inputs | {"dataset": ancient(inputs["dataset"])}


def records_of(experiment, part=None, before=None):
    """Return the records of the runs that an experiment, or a part of it, needs by the rounds before one."""
    found = []
    for each in STUDY.experiments[experiment]:
        spec = each.experiment
        if part in (None, part_prefix(spec)):
            rounds = judged_rounds(
                checkpoints.judge_round.get, experiment, spec, before
            )
            runs = each.requested_run_names(rounds)
            found += expand(RECORD, experiment=experiment, run=runs)
    return found


def rounds_of(experiment):
    """Return the rounds of an experiment, up to the next ones."""
    found = []
    for each in STUDY.experiments[experiment]:
        spec = each.experiment
        rounds = judged_rounds(checkpoints.judge_round.get, experiment, spec)
        found += expand(
            ROUND,
            experiment=experiment,
            part=part_prefix(spec),
            round=required_rounds(spec, rounds),
        )
    return found


def resource(name):
    """Return a resource of runs, a function of the wildcards; None is one that a run does not have."""
    return lambda wildcards: of_run(wildcards)["resources"].get(name)


wildcard_constraints:
    round="[1-9][0-9]*",
    experiment="|".join(EXPERIMENTS),
    part="([A-Za-z0-9_-]+[.])?",
    run="[A-Za-z0-9._-]+",
    dataset="[A-Za-z0-9_-]+",
