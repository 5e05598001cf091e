"""Tables of runs and epochs in the shape that the analysis makes, and what follows from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.card_figures import Figure
from scalewise.analysis.decision.criteria import as_billed
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.laws import study_laws
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import AnyExperiment, DecisionRule
from scalewise.plan.runs.run_definition import NO_OPTIONS

ONLY = NO_OPTIONS
"""Name of a series that is the only one."""
"""The series of a study without a sweep."""
PARTS = [
    "compute_seconds", "communication_seconds", "loader_seconds", "straggler_seconds", "jitter_seconds",
]  # fmt: skip

MEASURED: dict[str, Any] = {
    "nodes": 1.0, "throughput_samples_per_second": None, "train_seconds": 2.0,
    "time_to_accuracy_seconds": 1.0, "epochs_to_accuracy": 3.0, "final_accuracy": 0.98, "best_accuracy": 0.99,
    "peak_memory_bytes": 700e6, "peak_memory_kind": "process peak RSS", "loader": "resident",
    "loader_wait_fraction": 0.01, "communication_fraction": 0.1, "mean_utilization": 0.9, "throttled": None,
    "energy_joules": 5000.0, "samples_per_joule": 20.0, "monitor_note": "", "imports_seconds": 2.0,
    "process_group_seconds": 0.1, "data_seconds": 0.1, "model_seconds": 1.5, "first_step_seconds": 0.3,
    "device_hours": None,
}  # fmt: skip
"""Figures of a run that completed; unknown of any other."""

Point = tuple[str, int]
"""Series and devices."""


def spread(rate: float, by: float = 0.01, repeats: int = 3) -> list[float]:
    """Return repeats around a rate, one of them on it."""
    return [rate * (1 + by * (repeat - repeats // 2)) for repeat in range(repeats)]


def make_runs(points: Mapping[Point, Any], **columns: Any) -> pd.DataFrame:
    """Return the table of runs.

    Args:
        points: Samples per second of each repeat, or the outcome of one that has none.
    """
    rows = []
    for (series, devices), results in points.items():
        for repeat, result in enumerate(results, start=1):
            row: dict[str, Any] = {
                "experiment": "study",
                "run": f"d{devices}.{series}.r{repeat}",
                "series": series,
            }
            row |= {"devices": devices, "repeat": repeat, "cpus_per_device": 1}
            if isinstance(result, str):
                row |= {"outcome": result, "reason": f"why it is {result}"} | dict.fromkeys(MEASURED)
            else:
                rate = {"throughput_samples_per_second": float(result), "device_hours": 0.01 * devices}
                row |= {"outcome": "completed", "reason": ""} | MEASURED | rate
            rows.append(row)
    return pd.DataFrame(rows).assign(**columns)


def make_epochs(runs: pd.DataFrame, count: int = 4) -> pd.DataFrame:
    rows = [
        {key: run[key] for key in ("run", "series", "devices", "repeat", "cpus_per_device")}
        | {
            "epoch": epoch,
            "elapsed_train_seconds": 256.0 * epoch / run["throughput_samples_per_second"],
            "train_loss": 2.0 / epoch + 0.01 * run["repeat"],
            "test_loss": 2.2 / epoch + 0.01 * run["repeat"],
            "test_accuracy": 1 - 0.5 / epoch,
        }
        for _, run in runs.iterrows()
        if run["outcome"] == "completed"
        for epoch in range(1, count + 1)
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["run"])


def at(table: pd.DataFrame, devices: int, series: str = ONLY) -> pd.Series:
    """Return the only row of a point."""
    (row,) = (row for _, row in table.iterrows() if (row["series"], row["devices"]) == (series, devices))
    return row


def figure(decision: Decision, label: str) -> Figure:
    return next(each for each in decision.card.figures if each.label == label)


def decision_on(
    runs: pd.DataFrame,
    rule: DecisionRule | None = None,
    *,
    name: str = "study",
    scaling: str = "strong",
    swept: Mapping[str, Sequence[Any]] | None = None,
    billed: Mapping[int, float] | None = None,
    conditions: Mapping[str, Mapping[str, str]] | None = None,
    **others: Any,
) -> Decision:
    """The decision on a table of runs; ``others`` are further arguments of ``decide``."""
    known = known_columns(runs, conditions)
    compared = gains(known)
    table = as_billed(scaling_table(known, scaling, conditions, compared), billed or {})
    options = option_table(known, swept or {})
    return decide(
        name,
        table,
        options,
        rule or DecisionRule(),
        compared=compared,
        options_of={
            str(series): tuple((key, runs[key].iloc[0]) for key in swept or {})
            for series, runs in known.groupby("series", sort=False)
        },
        **others,
    )


def concluded(folder: Path, spec: AnyExperiment) -> dict[str, Any]:
    """Write the tables of a study from the records in its folder ``runs``; return its decision."""
    compute(AnalysisSpec("study", spec), folder / "runs", folder)
    return read_json(folder / "decision.json")


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def results(
    scaling: pd.DataFrame,
    runs: pd.DataFrame | None = None,
    *,
    folder: Path = Path(),
    name: str = "study",
    decision: Mapping[str, Any] | None = None,
    **fields: Any,
) -> ExperimentResults:
    """Results of tables, with no answer unless the decision has one."""
    nothing = {"device": "device", "measure": "throughput", "series": None, "devices": None, "cpus": None}
    runs = pd.DataFrame(columns=["run", "series", "outcome"]) if runs is None else runs
    return ExperimentResults(name, folder, nothing | dict(decision or {}), scaling, runs, **fields)


# --- a study of a training on 1 to 16 devices, with laws and predictions to 1,024 ----------------------

COUNTS = (1, 2, 4, 8, 16)
PROJECTED = (64, 256, 1024)
BATCH = 1024
COMPUTE_SECONDS = 0.25
ALL_REDUCE_SECONDS = 0.004
SIDES = (("low", -1), ("high", 1))
HIDDEN_SHARE = 0.15
"""Of the computing, in which an all-reduce can hide."""


def with_steps(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of a study with the parts of their steps, computing scaling without loss."""
    step = BATCH / runs["throughput_samples_per_second"]
    compute = np.minimum(step, COMPUTE_SECONDS / runs["devices"])
    lost = step - compute
    return runs.assign(
        step_seconds=step,
        compute_seconds=compute,
        communication_seconds=0.7 * lost,
        loader_seconds=0.2 * lost,
        straggler_seconds=0.1 * lost,
        jitter_seconds=0.0,
        crosscheck_communication_seconds=0.65 * lost,
        wall_seconds=100.0 / runs["devices"] + 20.0,
        fingerprint="0123456789ab",
    )


def points(series: Sequence[str], counts: Sequence[int] = COUNTS) -> dict[tuple[str, int], list[float]]:
    """Return the throughput of three repeats at each point, by Amdahl's law."""
    return {
        (name, count): [factor * rate(0.02 * (index + 1), count) for factor in (0.985, 1.0, 1.02)]
        for index, name in enumerate(series)
        for count in counts
    }


def rate(serial: float, devices: int) -> float:
    return BATCH / COMPUTE_SECONDS * devices / (1 + serial * (devices - 1))


def laws(series: Sequence[str], counts: Sequence[int] = COUNTS) -> list[dict[str, Any]]:
    """Return the laws of these points: Amdahl's, and the universal scalability law, which needs 6 counts."""
    return [law.as_dict() for law in study_laws(make_runs(points(series, counts)), "strong")]


def prediction(
    series: Sequence[str], planned: Sequence[int] = COUNTS, projected: Sequence[int] = PROJECTED
) -> pd.DataFrame:
    """Rows of prediction.csv; nodes have 4 devices."""
    return pd.DataFrame(
        [_predicted(name, count, count in planned) for name in series for count in (*planned, *projected)]
    )


def _predicted(series: str, devices: int, planned: bool) -> dict[str, Any]:
    compute = COMPUTE_SECONDS / devices
    all_reduce = 0.0 if devices == 1 else ALL_REDUCE_SECONDS * math.log2(devices)
    exposed = max(0.0, all_reduce - HIDDEN_SHARE * compute)
    step = compute + exposed
    band = 1 + 0.02 * math.log2(devices)
    speedup = COMPUTE_SECONDS / step
    values = {
        "throughput_samples_per_second": BATCH / step,
        "speedup": speedup,
        "parallel_efficiency": speedup / devices,
    }
    bounds = {
        f"{name}_{side}": value * band**power for name, value in values.items() for side, power in SIDES
    }
    return {
        "experiment": "study",
        "series": series,
        "devices": devices,
        "nodes": math.ceil(devices / 4),
        "shape": f"{math.ceil(devices / 4)}x{min(devices, 4)}",
        "measured_point": planned,
        "n": 3,
        "step_seconds": step,
        "step_seconds_low": step / band,
        "step_seconds_high": step * band,
        "compute_seconds": compute,
        "all_reduce_seconds": all_reduce,
        "exposed_seconds": exposed,
        "device_hours_per_epoch": devices * step * 100 / 3600,
        "hidden": exposed == 0,
        "extrapolated": devices > 8,
        **values,
        **bounds,
    }
