"""A study of a training on 1 to 16 devices as its tables show it, with laws and predictions to 1,024."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scalewise.analysis.experiment_results import ExperimentResults

COUNTS = (1, 2, 4, 8, 16)
PROJECTED = (64, 256, 1024)
BATCH = 1024
COMPUTE_SECONDS = 0.25
ALL_REDUCE_SECONDS = 0.004
SIDES = (("low", -1), ("high", 1))
HIDDEN_SHARE = 0.15
"""Of the computing, in which an all-reduce can hide."""


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


def with_steps(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of a study with the parts of their steps, computing scaling without loss.

    Args:
        runs: with a throughput.
    """
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
    """Throughput of three repeats at each point, by the universal scalability law."""
    spread = (0.985, 1.0, 1.02)
    return {
        (name, count): [factor * rate(0.02 * (index + 1), count) for factor in spread]
        for index, name in enumerate(series)
        for count in counts
    }


def rate(serial: float, devices: int) -> float:
    """Samples per second."""
    return BATCH / COMPUTE_SECONDS * devices / (1 + serial * (devices - 1) + 5e-4 * devices * (devices - 1))


def laws(series: Sequence[str], counts: Sequence[int] = COUNTS) -> list[dict[str, Any]]:
    """Amdahl's law for each series, and a refused one."""
    found = []
    for index, name in enumerate(series):
        serial = 0.025 * (index + 1)
        curve = [
            {"devices": count}
            | {
                key: 1 / (share + (1 - share) / count)
                for key, share in (("speedup", serial), ("low", serial * 1.2), ("high", serial * 0.8))
            }
            for count in counts
        ]
        fraction = {"estimate": serial, "low": serial * 0.8, "high": serial * 1.2}
        found += [
            law(name, "amdahl", {"serial_fraction": fraction}, curve),
            law(name, "usl", {}, [], "5 device counts; the universal scalability law needs 6"),
        ]
    return found


def law(
    series: str, key: str, parameters: dict[str, Any], curve: list[dict[str, float]], refused: str = ""
) -> dict[str, Any]:
    """One entry of laws.json."""
    fit = {"parameters": parameters, "confidence": 0.95, "refused": refused, "curve": curve}
    return {"series": series, "law": key} | fit


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
