# Contract: puts the package on the path by the one mechanism that serves rules, scripts, other working
# directories and reuse of this workflow by another: every file of it is a source of the workflow.

import sys
from pathlib import Path

SOURCES = {
    "": "analysis check_site conclude_preflight hello measure_all_reduce prepare_dataset prepare_program "
    "prepare_weights program_rank rank start_ranks status train",
    "scalewise/": "__init__ interpreter records",
    "scalewise/watch/": "__init__ forecast jobs lines look points record run_files session slurm_queue speedups standing "
    "status terminal watcher words",
    "scalewise/plan/": "__init__ formatting study",
    "scalewise/plan/catalog/": "__init__ datasets imported_files models own_data own_model_files own_programs",
    "scalewise/plan/checks/": "__init__ allocation batch chosen_devices compilers experiment options packages program program_words projection",
    "scalewise/plan/config/": "__init__ errors experiment paths program pydantic_problems raw_values settings shape site slurm "
    "templates yaml_source",
    "scalewise/plan/jobs/": "__init__ all_reduce_jobs environment handlers launch preflight slurm_checks submission",
    "scalewise/plan/runs/": "__init__ all_reduce_shapes allocation batches rounds runs spending",
    "scalewise/plan/terminal/": "__init__ card_lines choice_lines failure_lines final_message plan_table predictions",
    "scalewise/execution/": "__init__ all_reduce_job checkpoint_files finished_results input_hashes job_times machine_lock "
    "messages outcome parent_death preemption_watch preflight_job preflight_report progress_reporter "
    "rank_command rank_files rank_processes requeue restarts run run_lock signals slurm_job "
    "supervisor train_job watchdog",
    "scalewise/training/": "__init__ all_reduce early_end gradient_buckets loop optim parallel_model pass_timing precision "
    "preflight_rank rank run_records train_log trainer",
    "scalewise/training/checkpoints/": "__init__ checkpointer restore state step_consensus storage",
    "scalewise/training/data/": "__init__ augmentation datasets decoders download http_transfer loaders own_arrays pretrained "
    "published_files sampling sources storage weights_file worker_loader",
    "scalewise/training/distributed/": "__init__ cpus devices identity network_interface node_launcher process_group",
    "scalewise/training/measure/": "__init__ device_timers environments interval_clock machine_load memory monitor provenance "
    "sensors step_clock throughput waiting",
    "scalewise/training/models/": "__init__ builders own_model resnets transformer",
    "scalewise/training/program/": "__init__ child end_request environment hints judgement merge probe_records rank records "
    "startup_files told_progress",
    "scalewise/training/program/probe/": "__init__ batches communication counted_optimizers discovery early_end ending guards hooks "
    "loader_passes losses measured_process memory origins probe_spec root_calls run_interval startup "
    "steps training_steps written",
    "scalewise/analysis/": "__init__ analysis_spec conclusion event_files experiment_figures experiment_tables "
    "laws memory origins partial_report program_facts scaling study_report tables",
    "scalewise/analysis/bottlenecks/": "__init__ bottlenecks disturbances drift losses resumption slow_places step_breakdown time_parts utilization",
    "scalewise/analysis/comparison/": "__init__ comparability comparable_runs confounding fingerprint gains own_intervals "
    "separate_conditions",
    "scalewise/analysis/decision/": "__init__ card cautions choice cpus criteria decision selection sentences terms walk wording",
    "scalewise/analysis/prediction/": "__init__ all_reduce_model experiment_prediction measured_exchange step_model wording",
    "scalewise/analysis/report/": "__init__ captions data_tables efficiency_figures epoch_figures figure_sentences figures "
    "inline_figures marks page page_files panels proposal scaling_figures sentence_parts "
    "series_lines step_figures style svg_file "
    "unmeasured_points what_if",
    "scalewise/analysis/rounds/": "__init__ choice_summary chosen_devices judge_round likely_answers overhead_model repeats "
    "sentences",
    "scalewise/analysis/statistics/": "__init__ intervals law_checks law_models ratios",
}
for folder, modules in SOURCES.items():
    for module in modules.split():
        workflow.source_path(f"../scripts/{folder}{module}.py")
workflow.source_path("../scripts/scalewise/analysis/report/answer.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/figure_files.js")
workflow.source_path("../scripts/scalewise/analysis/report/figures.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/figures.js")
workflow.source_path("../scripts/scalewise/analysis/report/macros.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/methods.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/page.js")
workflow.source_path("../scripts/scalewise/analysis/report/paper.js")
workflow.source_path("../scripts/scalewise/analysis/report/report.css")
workflow.source_path("../scripts/scalewise/analysis/report/report.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/report_data.js")
workflow.source_path("../scripts/scalewise/analysis/report/saving.js")
workflow.source_path("../scripts/scalewise/analysis/report/tables.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/toolbox.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/what_if.css")
workflow.source_path("../scripts/scalewise/analysis/report/what_if.html.j2")
workflow.source_path("../scripts/scalewise/analysis/report/what_if.js")
SCRIPT = workflow.source_path("../scripts/train.py")
sys.path.insert(0, str(Path(SCRIPT).parent))
