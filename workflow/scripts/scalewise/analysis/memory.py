"""Peaks of memory between runs: those that may be joined, and what an option saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from scalewise.records import GpuLimits

TRAINING = "peak_memory_bytes"

MEMORY_GAINS = ("peak_memory_ratio", TRAINING, f"reference_{TRAINING}", "peak_memory_saved_bytes")
"""Columns of options.csv on the memory of a value of an option."""


def peaks_of_one_kind(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs without the peaks that count other memory than most: no mean joins the two.

    Args:
        runs: Rows of runs.csv.
    """
    counts = runs["peak_memory_kind"].value_counts()
    if len(counts) < 2:
        return runs
    alike = runs["peak_memory_kind"] == counts.index[0]
    return runs.assign(**{TRAINING: runs[TRAINING].where(alike)})


def memory_gain(chosen: pd.DataFrame, reference: pd.DataFrame) -> dict[str, Any]:
    """Return the memory of training that a value of an option saves, and the peaks that show it.

    Args:
        chosen: Completed runs with the value, rows of runs.csv.
        reference: Those with the first value of the option, all else equal.
    """
    here, there = chosen[TRAINING].mean(), reference[TRAINING].mean()
    return dict(zip(MEMORY_GAINS, (here / there, here, there, there - here), strict=True))


def peaks(runs: pd.DataFrame) -> list[float]:
    """Return the peaks of memory of training that are known, in bytes.

    Args:
        runs: Rows of runs.csv.
    """
    return [float(peak) for peak in runs[TRAINING] if peak > 0]


def device_memory_bytes(limits: Sequence[GpuLimits | None]) -> int | None:
    """Return the memory of the smallest GPU of a run; None if it is unknown or the run had none."""
    sizes = [limit.memory_bytes for limit in limits if limit is not None and limit.memory_bytes is not None]
    return min(sizes, default=None)
