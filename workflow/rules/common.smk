# Contract: PLAN is the study as all rules read it. The main process makes it of `config` and the site file, or
# stops with every mistake in them, and writes it down; jobs read what it wrote, so they train what was planned.

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

from scalewise.plan.plan_file import question_definition, questions_of, read_plan
from scalewise.terminal import end_message

# The rules' commands find the scripts and this Python by the environment: in `params` a moved checkout would make
# everything again. An environment of Snakemake's own stands in front of this Python.
os.environ.update(
    SCALEWISE_SCRIPTS=str(SCRIPTS),
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    ),
)

if not workflow.is_main_process:
    PLAN = read_plan(os.environ)

    def begin():
        """Do nothing: the main process has checked where jobs go, and written the plan."""

else:

    include: "study.smk"


# experiments by the question that they answer: one, or the same on each partition
QUESTIONS = {name: list(parts.values()) for name, parts in questions_of(PLAN).items()}
EXPERIMENTS = PLAN["experiments"]
RUNS = {
    (experiment, run): job
    for experiment, runs in PLAN["runs"].items()
    for run, job in runs.items()
}


def of_run(wildcards):
    """Return the job of a run."""
    return RUNS[wildcards.experiment, wildcards.run]


def train_inputs(wildcards):
    """Return the inputs of a run."""
    if workflow.is_main_process:
        begin()
        record = f"results/{wildcards.experiment}/runs/{wildcards.run}/record.json"
        adapter.judge_record(
            workflow,
            record,
            is_valid=STUDY.has_record(
                wildcards.experiment, wildcards.run, Path("results")
            ),
        )
    return of_run(wildcards)["inputs"]


def analyzed_files(question):
    """Return the rounds and the records of an experiment, on all of its partitions."""
    files = []
    for name in QUESTIONS[question]:
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


def resources_of(jobs, job_of):
    """Return the resources of a rule by name, functions of the wildcards; None is one that a job does not have."""

    def resource(name):
        return lambda wildcards: job_of(wildcards)["resources"].get(name)

    return {name: resource(name) for job in jobs for name in job["resources"]}


wildcard_constraints:
    round="[1-9][0-9]*",
    experiment="[A-Za-z0-9][A-Za-z0-9_-]*(@[A-Za-z0-9_-]+)?",
    run="[A-Za-z0-9._-]+",
    dataset="[A-Za-z0-9_-]+",
