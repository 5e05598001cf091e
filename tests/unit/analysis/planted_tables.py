"""Tables of runs and epochs, in the shape that the analysis makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

ALONE = "all runs"
"""The series of a study without a sweep."""
PARTS = [
    "compute_seconds", "communication_seconds", "loader_seconds", "straggler_seconds", "jitter_seconds",
]  # fmt: skip

Point = tuple[str, int]
"""Series and devices."""


def spread(rate: float, by: float = 0.01, repeats: int = 3) -> list[float]:
    """Return repeats around a rate, one of them on it."""
    return [rate * (1 + by * (repeat - repeats // 2)) for repeat in range(repeats)]


def make_runs(points: Mapping[Point, Any], **columns: Any) -> pd.DataFrame:
    """Return the table of runs.

    Args:
        points: Samples per second of each repeat, or the outcome of one that has none.
        columns: Replace columns.
    """
    rows = []
    for (series, devices), results in points.items():
        for repeat, result in enumerate(results, start=1):
            done = not isinstance(result, str)
            rows.append(
                {
                    "experiment": "study",
                    "run": f"d{devices}.{series}.r{repeat}",
                    "series": series,
                    "devices": devices,
                    "nodes": 1.0 if done else None,
                    "repeat": repeat,
                    "cpus_per_device": 1,
                    "outcome": "completed" if done else result,
                    "reason": "" if done else f"why it is {result}",
                    "throughput_samples_per_second": float(result) if done else None,
                    "train_seconds": 2.0 if done else None,
                    "time_to_accuracy_seconds": 1.0 if done else None,
                    "epochs_to_accuracy": 3.0 if done else None,
                    "final_accuracy": 0.98 if done else None,
                    "best_accuracy": 0.99 if done else None,
                    "peak_memory_bytes": 700e6 if done else None,
                    "peak_memory_kind": "process peak RSS" if done else None,
                    "loader": "resident" if done else None,
                    "loader_wait_fraction": 0.01 if done else None,
                    "communication_fraction": 0.1 if done else None,
                    "mean_utilization": 0.9 if done else None,
                    "throttled": None,
                    "energy_joules": 5000.0 if done else None,
                    "samples_per_joule": 20.0 if done else None,
                    "monitor_note": "" if done else None,
                    "imports_seconds": 2.0 if done else None,
                    "process_group_seconds": 0.1 if done else None,
                    "data_seconds": 0.1 if done else None,
                    "model_seconds": 1.5 if done else None,
                    "first_step_seconds": 0.3 if done else None,
                    "device_hours": 0.01 * devices if done else None,
                }
            )
    return pd.DataFrame(rows).assign(**columns)


def make_epochs(runs: pd.DataFrame, count: int = 4) -> pd.DataFrame:
    """Return the curves of the runs that completed."""
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


def at(table: pd.DataFrame, devices: int, series: str = ALONE) -> pd.Series:
    """Return the only row of a point."""
    (row,) = (row for _, row in table.iterrows() if (row["series"], row["devices"]) == (series, devices))
    return row
