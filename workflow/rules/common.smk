# Contract: turns `config` into STUDY, or stops with every mistake in it.
# Puts the package on the path by the one mechanism that serves rules, scripts, other working
# directories and reuse of this workflow by another: every file of it is a source of the workflow.

import gc
import os
import sys
import time
from pathlib import Path

from snakemake.exceptions import WorkflowError

# Snakemake makes hundreds of objects a job and drops few. Looking for dropped ones less often takes a
# tenth off the planning of 10,000 runs, at equal memory (benchmarks/run.py plan).
if workflow.is_main_process:
    gc.set_threshold(200_000, 50, 1000)

STARTED = time.time()
DEFAULT_CONFIG = "config/experiments.yaml"

SOURCES = {
    "": "prepare_dataset train train_rank compute_scaling plot_figures write_report write_partial_report",
    "scalewise/": "__init__ records",
    "scalewise/plan/": "__init__ answer batches catalog checks config environment launch overview problems resources runs "
    "site source study topology validation",
    "scalewise/training/": "__init__ attempt clock datasets distributed exclusive loaders loop memory "
    "models optim orphan provenance rank recording sampling supervisor throughput",
    "scalewise/analysis/": "__init__ captions decision figures intervals report scaling study tables",
}
for folder, modules in SOURCES.items():
    for module in modules.split():
        workflow.source_path(f"../scripts/{folder}{module}.py")
workflow.source_path("../scripts/scalewise/analysis/report.html.j2")
SCRIPT = workflow.source_path("../scripts/train.py")
sys.path.insert(0, str(Path(SCRIPT).parent))

from scalewise.analysis.captions import CAPTIONS
from scalewise.plan.answer import decisions
from scalewise.plan.catalog import dataset_id
from scalewise.plan.environment import rule_environment
from scalewise.plan.overview import plan_table
from scalewise.plan.problems import StudyError
from scalewise.plan.resources import memory, runtime
from scalewise.plan.runs import priority
from scalewise.plan.study import check_results_folder, check_spelling, load_study

# an example given by --configfile replaces the shipped study, it does not add to it
SHIPPED = not config.get("experiments") and not workflow.overwrite_configfiles
try:
    if SHIPPED:
        check_spelling(DEFAULT_CONFIG)
except StudyError as error:
    raise WorkflowError(str(error)) from None

if SHIPPED:

    configfile: DEFAULT_CONFIG


try:
    STUDY = load_study(config, workflow.configfiles, config.get("site"))
    check_results_folder(Path("results"))
except StudyError as error:
    raise WorkflowError(str(error)) from None

# what the rules look up by wildcards
RUNS = STUDY.runs
SPECS = {name: planned.spec for name, planned in STUDY.experiments.items()}
DEFINITIONS = {
    name: planned.analysis_definition for name, planned in STUDY.experiments.items()
}
RUN_NAMES = {
    name: [run.name for run in planned.runs]
    for name, planned in STUDY.experiments.items()
}
DATASETS = {
    dataset_id(run.settings.dataset): run.settings.dataset for run in RUNS.values()
}
FIGURES = list(CAPTIONS)

os.environ.update(
    rule_environment(
        SCRIPT, SCRIPT.flags["sourcecache_entry"], STUDY.labels, os.environ
    )
)

ON_FAILURE = (
    "Not all steps were done; the reasons stand above, those of runs also in "
    "results/*/runs/*/failure.json.\n"
    "The same command tries them again; with `partial_report` behind it, it reports on what has "
    "finished."
)

# Every command shows the plan, `-n` and `plan` among them; jobs that parse this file again do not.
if workflow.is_main_process:
    print(plan_table(STUDY), file=sys.stderr)


wildcard_constraints:
    experiment="[A-Za-z0-9][A-Za-z0-9_-]*",
    run="[A-Za-z0-9._-]+",
    dataset="[A-Za-z0-9_-]+",
