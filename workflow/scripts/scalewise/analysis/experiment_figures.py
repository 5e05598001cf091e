"""The figures of an experiment, from its tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from scalewise.analysis.analysis_spec import (
    DECISION,
    EPOCHS,
    LAWS,
    RUNS,
    SCALING,
    AnalysisSpec,
    read_json,
    read_prediction,
)
from scalewise.analysis.report import figures
from scalewise.analysis.report.unmeasured_points import expected_throughput, without_bounds_of_single_runs


def draw(experiment: AnalysisSpec, folder: Path, *, predicted: bool = True) -> None:
    """Write the figures from the tables in the folder.

    Args:
        experiment: The experiment, the way the plan defined it.
        folder: Results of the experiment.
        predicted: Show its prediction if there is one; an earlier configuration may have left it.
    """
    scaling = pd.read_csv(folder / SCALING)
    expected = None
    if experiment.spec.chooses_devices:
        expected = expected_throughput(folder, scaling)
        scaling = without_bounds_of_single_runs(scaling)
    figures.draw_all(
        scaling,
        pd.read_csv(folder / RUNS),
        pd.read_csv(folder / EPOCHS),
        folder / "figures",
        min_efficiency=experiment.spec.decision.min_efficiency,
        to_target=read_json(folder / DECISION).get("measure") == "time to target",
        target=experiment.target,
        laws=read_json(folder / LAWS),
        prediction=read_prediction(folder) if predicted else None,
        expected=expected,
        noun=experiment.noun,
    )
