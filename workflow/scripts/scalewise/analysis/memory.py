"""Peaks of memory between runs: those that may be joined, and what an option saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from scalewise.records import GpuLimits, Pass

TRAINING, EVALUATION = PEAKS = ("peak_memory_bytes", "evaluation_peak_memory_bytes")

MEMORY_GAINS = (
    "peak_memory_ratio", TRAINING, f"reference_{TRAINING}", "peak_memory_saved_bytes",
    EVALUATION, f"reference_{EVALUATION}",
)  # fmt: skip


def peaks_of_one_kind(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs without the peaks of memory that count other memory than most: no median joins the two.

    Args:
        runs: Rows of runs.csv; published figures may lack ``peak_memory_kind``.
    """
    kinds = runs.get("peak_memory_kind", pd.Series(dtype=str))
    counts = kinds.value_counts()
    if len(counts) < 2:
        return runs
    alike = kinds == counts.index[0]
    return runs.assign(**{name: runs[name].where(alike) for name in PEAKS if name in runs.columns})


def memory_gain(chosen: pd.DataFrame, reference: pd.DataFrame) -> dict[str, Any]:
    """The memory of training that a value of an option saves, and the peaks that this follows from.

    Args:
        chosen: Completed runs with the value, rows of runs.csv.
        reference: Those with the first value of the option, all else equal.
    """
    here, there = (_mean(runs, TRAINING) for runs in (chosen, reference))
    values = (
        here / there, here, there, there - here,
        _mean(chosen, EVALUATION), _mean(reference, EVALUATION),
    )  # fmt: skip
    return dict(zip(MEMORY_GAINS, values, strict=True))


def _mean(runs: pd.DataFrame, column: str) -> float:
    """Return the mean of what is known; NaN without anything."""
    return float(runs[column].astype(float).mean()) if column in runs.columns else float("nan")


def peaks(runs: pd.DataFrame) -> list[float]:
    """Return the peaks of memory of training that are known, in bytes.

    Args:
        runs: Rows of runs.csv.
    """
    return [float(peak) for peak in runs.get(TRAINING, pd.Series(dtype=float)).dropna() if peak > 0]


def device_memory_bytes(limits: Sequence[GpuLimits | None]) -> int | None:
    """Return the memory of the smallest GPU of a run; None if it is unknown or the run had none."""
    sizes = [limit.memory_bytes for limit in limits if limit is not None and limit.memory_bytes is not None]
    return min(sizes, default=None)


def smaller_batch_gain(passes: Sequence[Pass]) -> float | None:
    """Return the samples/s of the fastest smaller batch over those of a run's own, of passes by themselves.

    Above 1 a larger batch is slower, as it is for want of memory. None if no smaller batch was tried.

    Args:
        passes: The batches that were tried after the training, the run's own first.
    """
    rates = {
        each.batch_size: each.batch_size / (each.forward_seconds + each.backward_seconds) for each in passes
    }
    smaller = [rate for size, rate in rates.items() if size < passes[0].batch_size]
    return max(smaller) / rates[passes[0].batch_size] if smaller else None
