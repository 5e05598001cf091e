# Contract: PLAN, what all rules know of the study.

import gc
import os
import sys
import time
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

# Snakemake makes hundreds of objects a job and drops few. Looking for dropped ones less often takes a
# tenth off the planning of 10,000 runs, at equal memory: `python benchmarks/run.py plan` compares both.
if workflow.is_main_process:
    gc.set_threshold(200_000, 50, 1000)

STARTED = time.time()

from scalewise.analysis.report.figures import FIGURES
from scalewise.execution.finished_results import is_of_job, set_aside
from scalewise.plan.jobs.environment import rule_environment
from scalewise.plan.plan_file import read_plan, requested

os.environ.update(rule_environment(SCRIPTS, os.environ))

if not workflow.is_main_process:
    # a job checks nothing again
    PLAN = read_plan(os.environ)
else:

    include: "study.smk"


EXPERIMENTS = PLAN["experiments"]
PREDICTED = [name for name, facts in EXPERIMENTS.items() if facts["predicted"]]
TRAININGS = {
    (experiment, run): job
    for experiment, runs in PLAN["runs"].items()
    for run, job in runs.items()
}


# Inside a job that Slurm has started anew. The job's first snakemake, which deletes outputs, sees the
# variable; the executor hides it from what that one starts.
STARTED_ANEW = (
    not workflow.is_main_process and os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
)


def train_inputs(wildcards):
    """The inputs of a run; asked for before snakemake deletes a result that this job may have left before."""
    # jobs run no handlers
    if workflow.is_main_process and SNAKEMAKE.is_module:
        try:
            check_handlers(SNAKEMAKE)
        except StudyError as error:
            raise WorkflowError(str(error)) from None
    if STARTED_ANEW:
        folder = Path(f"results/{wildcards.experiment}/runs/{wildcards.run}")
        set_aside(
            [folder] if is_of_job(folder, os.environ.get("SLURM_JOB_ID", "")) else [],
            [folder],
        )
    return TRAININGS[wildcards.experiment, wildcards.run]["inputs"]


wildcard_constraints:
    round="[1-9][0-9]*",
    experiment="[A-Za-z0-9][A-Za-z0-9_-]*",
    run="[A-Za-z0-9._-]+",
    dataset="[A-Za-z0-9_-]+",
