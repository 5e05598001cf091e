# Contract: PLAN is the study as all rules read it, EXPERIMENTS and TRAININGS are parts of it. The main
# process makes it and has STUDY, SESSION and SNAKEMAKE in addition (study.smk); a job reads it.

import gc
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

SCRIPTS = (
    Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parent / "scripts"
)
if not SCRIPTS.is_dir():
    sys.exit(
        f"{workflow.main_snakefile}: Scalewise's scripts are not in {SCRIPTS}. Clone Scalewise to a folder that all "
        "nodes see and give the path of its workflow/Snakefile."
    )
sys.path.insert(0, str(SCRIPTS))

# Snakemake makes hundreds of objects a job and drops few. Fewer garbage collections take a tenth off the planning of
# 10,000 runs, at equal memory: `python benchmarks/run.py plan` compares both.
if workflow.is_main_process:
    gc.set_threshold(200_000, 50, 1000)

from scalewise.plan.plan_file import (
    question_definition,
    questions_of,
    read_plan,
    requested,
)

# The rules' commands find the scripts and this Python by the environment: in `params` a moved checkout would make
# everything again. An environment of Snakemake's own stands in front of this Python.
os.environ.update(
    SCALEWISE_SCRIPTS=str(SCRIPTS),
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    ),
)

if not workflow.is_main_process:
    # a job checks nothing again
    PLAN = read_plan(os.environ)
else:

    include: "study.smk"


EXPERIMENTS = PLAN["experiments"]
# experiments by the question that they answer: one, or the same on each partition
QUESTIONS = {name: list(parts.values()) for name, parts in questions_of(PLAN).items()}
TRAININGS = {
    (experiment, run): job
    for experiment, runs in PLAN["runs"].items()
    for run, job in runs.items()
}


def train_inputs(wildcards):
    """Return the inputs of a run, or stop if handlers are missing that its session needs.

    Snakemake calls it after it has read the whole workflow, so all handlers are known. Jobs run none.
    """
    if workflow.is_main_process and SNAKEMAKE.is_module:
        try:
            check_handlers(SNAKEMAKE)
        except StudyError as error:
            raise WorkflowError(str(error)) from None
    return TRAININGS[wildcards.experiment, wildcards.run]["inputs"]


def analyzed_files(wildcards):
    """Return the rounds and the runs of an experiment, on all of its partitions."""
    files = []
    for name in QUESTIONS[wildcards.experiment]:
        planned = STUDY.experiments[name]
        judged = list(judged_rounds(checkpoints.judge_round.get, name))
        files += expand(
            "results/{experiment}/repeats/round{round}.json",
            experiment=name,
            round=required_rounds(planned.experiment, judged),
        )
        files += expand(
            "results/{experiment}/runs/{run}/record.json",
            experiment=name,
            run=planned.requested_run_names(judged),
        )
    return files


wildcard_constraints:
    round="[1-9][0-9]*",
    experiment="[A-Za-z0-9][A-Za-z0-9_-]*(@[A-Za-z0-9_-]+)?",
    run="[A-Za-z0-9._-]+",
    dataset="[A-Za-z0-9_-]+",
