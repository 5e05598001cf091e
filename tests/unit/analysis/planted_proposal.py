"""A study of a GPU cluster for proposals: four counts of whole nodes, three repeats, all facts known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from tests.unit.analysis.planted_tables import ONLY, decision_on, make_runs, results, spread

from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.proposal.folder import write_proposal
from scalewise.analysis.proposal.proposal_spec import ProposalSpec
from scalewise.analysis.scaling import known_columns, scaling_table
from scalewise.plan.catalog.centres import read_centre
from scalewise.plan.config.centre import Proposal, Requirement
from scalewise.plan.config.experiment import DecisionRule, Experiment

RATES = {4: 400.0, 8: 740.0, 16: 1270.0, 32: 1800.0}
"""Samples per second by GPUs: doublings by 1.85, 1.72 and 1.42."""
SAMPLES = 600_000
ORIGINS = {
    "settings": ["dataset cifar10, model resnet18, scaling strong, global_batch_size 2048, epochs 12"],
    "commit": ["abcdef0"],
    "devices": ["NVIDIA GH200 120GB"],
    "hosts": ["gn01", "gn02", "gn03"],
    "CPU": ["Neoverse-V2"],
    "versions": ["python 3.12, torch 2.9"],
    "measured (UTC)": ["2026-11-02T08:00:00 to 2026-11-02T13:00:00"],
}


def experiment(**keys: Any) -> Experiment:
    given = {"dataset": "cifar10", "model": "resnet18", "global_batch_size": 2048, "epochs": 12}
    return Experiment.model_validate(given | {"devices": list(RATES)} | keys)


def planted_runs(rates: dict[int, float] | None = None, **columns: Any) -> pd.DataFrame:
    runs = make_runs({(ONLY, devices): spread(rate) for devices, rate in (rates or RATES).items()})
    runs["nodes"] = runs["devices"] / 4
    runs["wall_seconds"] = 20 + SAMPLES / runs["throughput_samples_per_second"]
    runs["train_seconds"] = runs["wall_seconds"] - 20
    runs["device_hours"] = runs["wall_seconds"] * runs["devices"] / 3600
    runs["launch_seconds"] = 1.0
    runs["peak_memory_bytes"] = 31e9
    runs["slurm_job_id"] = [str(4400 + index) for index in range(len(runs))]
    return runs.assign(**columns)


def planted_results(folder: Path, runs: pd.DataFrame | None = None, **fields: Any) -> ExperimentResults:
    """Return the results of the study with its answer."""
    runs = known_columns(planted_runs() if runs is None else runs)
    decision = decision_on(runs, DecisionRule(min_efficiency=0.7), name="resnet", noun="GPU").named("GPU")
    scaling = scaling_table(runs, "strong").assign(experiment="resnet")
    return results(
        scaling,
        runs,
        folder=folder,
        name="resnet",
        decision=decision.as_dict(),
        origins=ORIGINS,
        title="ResNet-18 on CIFAR-10",
        **fields,
    )


def spec_of(centre: str = "generic", requirement: dict[str, Any] | None = None, **keys: Any) -> ProposalSpec:
    """Return what the plan gives of a proposal for a known centre."""
    read, problems = read_centre(centre, ())
    assert read is not None, problems
    of_experiment = {key: keys.pop(key, None) for key in ("trainings", "samples_per_training")}
    proposal = Proposal.model_validate({"centre": centre} | keys)
    required = read.requirement if requirement is None else Requirement.model_validate(requirement)
    return ProposalSpec(centre=read, proposal=proposal, requirement=required, **of_experiment)


def write(
    folder: Path,
    spec: ProposalSpec | None = None,
    made: ExperimentResults | None = None,
    *,
    job_script: bool = True,
) -> Path:
    """Write the proposal of the study, with its job script."""
    (folder / "proposal").mkdir(parents=True, exist_ok=True)
    if job_script:
        (folder / "proposal/job.sh").write_text("#!/bin/bash\n", encoding="utf-8")
    write_proposal(made or planted_results(folder), experiment(), spec or spec_of())
    return folder / "proposal"
