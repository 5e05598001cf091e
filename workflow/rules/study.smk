# Contract: the main process turns `config` into STUDY and PLAN, or stops with every mistake in it.

import atexit
import functools

from scalewise.main_process import begin_jobs, open_study, show_plan
from scalewise.plan.planned_study import make_plan
from scalewise.plan.rounds import (
    judged_rounds,
    known_rounds,
    part_prefix,
    required_rounds,
)
from scalewise.config.yaml_source import read_source
from scalewise.terminal import end_message

SHIPPED = "config/experiments.yaml"

# the shipped study, unless the command or another workflow names one
if "experiments" not in config:
    if not Path(SHIPPED).is_file():
        sys.exit(f"No {SHIPPED} in {Path.cwd()}: name a study by --configfile.")
    # Snakemake names no line
    read_source(Path(SHIPPED))

    configfile: SHIPPED


STUDY = open_study(workflow, config, checkout=SCRIPTS.resolve().parents[1])
PLAN = make_plan(STUDY)


@functools.cache
def begin():
    """Check where jobs go and write the plan, before the first job: functions of jobs call it."""
    begin_jobs(workflow, STUDY, PLAN, rules.train, OTHER_RESOURCES)


# a dry run ends with the plan, once: a workflow that changes a rule of its module reads this file twice
atexit.unregister(show_plan)
atexit.register(show_plan, workflow, STUDY, PLAN)
