# Contract: turns `config` into STUDY, or stops with every mistake in it.

import gc
import os
import platform
import sys
import time
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod

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
# tenth off the planning of 10,000 runs, at equal memory (benchmarks/run.py plan).
if workflow.is_main_process:
    gc.set_threshold(200_000, 50, 1000)

STARTED = time.time()
DEFAULT_CONFIG = "config/experiments.yaml"
# jobs run no handlers
IS_MODULE = workflow.is_main_process and not workflow.modifier.is_main_snakefile()

from scalewise.analysis.report.figures import FIGURES
from scalewise.execution.finished_results import is_of_job, set_aside
from scalewise.plan.jobs.environment import rule_environment
from scalewise.plan.plan_file import read_plan, requested

os.environ.update(rule_environment(SCRIPTS, os.environ))

if not workflow.is_main_process:
    # a job checks nothing again
    PLAN = read_plan(os.environ)
else:
    from scalewise.plan.config.errors import StudyError
    from scalewise.plan.jobs.hand_over import make_plan, site_environment
    from scalewise.plan.jobs.handlers import check_handlers, join_handlers
    from scalewise.plan.jobs.submission import (
        check_environment,
        check_job_arrays,
        check_operating_system,
        check_site_is_given,
    )
    from scalewise.plan.runs.rounds import judged_rounds, required_rounds
    from scalewise.plan.study import check_results_folder, check_spelling, load_study
    from scalewise.watch.session import RuleNames, Session

    # an example given by --configfile replaces the shipped study, it does not add to it
    SHIPPED = not config.get("experiments") and not workflow.overwrite_configfiles
    try:
        check_operating_system(platform.system())
        if SHIPPED:
            check_spelling(DEFAULT_CONFIG)
    except StudyError as error:
        # a WorkflowError would add lines of this file before and after the mistakes
        sys.exit(str(error))
    if SHIPPED:

        configfile: DEFAULT_CONFIG

    try:
        # the budget comes from the profile of a cluster, and from nowhere else
        ON_CLUSTER = "device_budget" in workflow.global_resources
        check_site_is_given(config.get("site"), ON_CLUSTER)
        STUDY = load_study(
            config,
            workflow.configfiles,
            config.get("site"),
            own_environments=DeploymentMethod.CONDA
            in workflow.deployment_settings.deployment_method,
            checkout=SCRIPTS.resolve().parents[1],
        )
        check_results_folder(Path("results"))
        check_environment(
            STUDY.site,
            ON_CLUSTER,
            os.environ,
            [*workflow.configfiles, workflow.main_snakefile, Path.cwd()],
        )
        check_job_arrays(sys.argv[1:])
    except StudyError as error:
        sys.exit(str(error))
    os.environ.update(site_environment(STUDY.site))
    PLAN = make_plan(STUDY, config.get("site"))
    SESSION = Session(STUDY, PLAN, workflow)


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
    if IS_MODULE:
        try:
            check_handlers(workflow)
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
