# Contract: the main process turns `config` into STUDY and PLAN, or stops with every mistake in it.

import atexit
import functools

from scalewise import snakemake_adapter as adapter
from scalewise.config.errors import StudyError
from scalewise.execution.next_try import Tries, refused_runs
from scalewise.execution.slurm import PreemptionWatch
from scalewise.plan.make_plan import make_plan, write_plan
from scalewise.plan.plan_file import PLAN as PLAN_VARIABLE
from scalewise.plan.plan_table import plan_lines
from scalewise.plan.study import check_results_folder, check_spelling
from scalewise.plan.runs.allocation import SHARED_NODE
from scalewise.plan.runs.rounds import judged_rounds, required_rounds
from scalewise.open_study import open_study
from scalewise.site.preflight import Preflight

SHIPPED = "config/experiments.yaml"

# the shipped study, unless the command or another workflow names one
if not (config.get("experiments") or adapter.names_config_files(workflow)):
    try:
        # Snakemake names no line
        check_spelling(SHIPPED)
    except StudyError as error:
        sys.exit(str(error))

    configfile: SHIPPED


try:
    adapter.check_prefix(workflow)
    adapter.check_site(workflow, config.get("site"))
    check_results_folder(Path("results"))
    STUDY = open_study(
        config,
        adapter.config_files(workflow),
        checkout=SCRIPTS.resolve().parents[1],
        snakefile=workflow.main_snakefile,
        starts_jobs=not adapter.is_dry_run(workflow),
        is_module=adapter.is_module(workflow),
    )
    PLAN = make_plan(STUDY)
    if STUDY.site.slurm is not None:
        # runs that could share a node with another of the study take turns
        adapter.limit(workflow, SHARED_NODE, 1)
except (StudyError, adapter.AdapterError) as error:
    # for an exception, Snakemake would print further lines
    sys.exit(str(error))


@functools.cache
def begin():
    """Check where jobs go, and write the plan for them, before the first job.

    Input functions call it: while the rules are read, Snakemake does not know yet whether and where it runs jobs.
    """
    try:
        adapter.check_executor(workflow, in_slurm=STUDY.site.slurm is not None)
        adapter.check_requests(workflow, rules.train.rule.name)
        if adapter.runs_jobs(workflow):
            replaced = adapter.profile_resources(workflow, rules.train.rule.name)
            for site in PLAN["sites"].values():
                of_profile = Preflight.model_validate(site["preflight"]).on_profile(
                    replaced
                )
                site["preflight"] = of_profile.model_dump(mode="json")
            # a dry run shows them below its plan
            for warning in STUDY.warnings:
                print(f"Warning: {warning}", file=sys.stderr)
            os.environ[PLAN_VARIABLE] = str(write_plan(PLAN))
            if STUDY.site.slurm is not None:
                PreemptionWatch(Path.cwd()).start()
            adapter.refuse_tries(Tries(PLAN, Path("results")).is_refused)
    except (StudyError, adapter.AdapterError) as error:
        raise WorkflowError(str(error)) from None


def show_plan():
    if adapter.is_dry_run(workflow) and adapter.has_planned(workflow):
        refused = refused_runs(PLAN, Path("results"))
        lines = plan_lines(STUDY, Path("results"), adapter.requests(workflow), refused)
        print(*lines, sep="\n", file=sys.stderr)


# a dry run ends with the plan
atexit.register(show_plan)
