# Contract: puts the package on the path by the one mechanism that serves rules, scripts, other working
# directories and reuse of this workflow by another: every file of it is a source of the workflow.

import sys
from pathlib import Path

SOURCES = {
    "": "check_site collective_rank compute_prediction compute_scaling conclude_preflight hello hello_rank "
    "judge_repeats measure_collectives plot_figures prepare_dataset prepare_weights start_ranks train "
    "train_rank write_partial_report write_report",
    "scalewise/": "__init__ records",
    "scalewise/plan/": "__init__ allocation_checks answer batches checks collectives config dataset_catalog environment "
    "expectations launch model_catalog option_checks overview own_data own_model_files paths preflight problems projection "
    "raw_values repeats resources runs settings site site_questions slurm source study submission topology "
    "validation",
    "scalewise/training/": "__init__ agreement clock collectives loop memory monitor optim passes precision provenance recording replica "
    "sensors task throughput",
    "scalewise/training/data/": "__init__ augmentation datasets decoders download http_transfer loaders own_arrays pretrained "
    "published_files sampling sources storage weights_file worker_loader",
    "scalewise/training/models/": "__init__ builders own_model resnets transformer",
    "scalewise/training/checkpoints/": "__init__ manifest session state storage",
    "scalewise/training/ranks/": "__init__ distributed greetings hello messenger network nodes rank signals",
    "scalewise/training/supervision/": "__init__ attempt exclusive execution fingerprints notes orphan ownership "
    "relay slurm_job starting supervisor tries vigil",
    "scalewise/analysis/": "__init__ scaling study tables",
    "scalewise/analysis/statistics/": "__init__ bootstrap intervals law_models law_refusals laws significance",
    "scalewise/analysis/comparison/": "__init__ comparability reference_runs",
    "scalewise/analysis/causes/": "__init__ limits resumption steadiness steps utilization",
    "scalewise/analysis/prediction/": "__init__ communication step_time table",
    "scalewise/analysis/answer/": "__init__ cautions criteria decision proposal quantities repeats wording",
    "scalewise/analysis/report/": "__init__ captions curves efficiency_figures figures page page_tables panels scaling_figures "
    "series_lines step_figures style",
}
for folder, modules in SOURCES.items():
    for module in modules.split():
        workflow.source_path(f"../scripts/{folder}{module}.py")
workflow.source_path("../scripts/scalewise/analysis/report/report.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/methods.html.j2")
SCRIPT = workflow.source_path("../scripts/train.py")
sys.path.insert(0, str(Path(SCRIPT).parent))
