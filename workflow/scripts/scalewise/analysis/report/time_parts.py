"""The parts of a step's time and of a start's: columns of the tables, and names for readers."""

from __future__ import annotations

import pandas as pd

from scalewise.analysis.analysis_spec import STARTUP

STEP_PARTS = {
    "compute_seconds": "compute",
    "communication_seconds": "exposed communication",
    "loader_seconds": "loader wait",
    "straggler_seconds": "stragglers",
    "jitter_seconds": "jitter",
}
"""A step is made of these, from the bottom of a bar to its top."""

PREPARATION = "preparation_seconds"
START_PARTS = {column: column.removesuffix("_seconds").replace("_", " ") for column in STARTUP}
"""A start is made of these, in the order in which they come; a program has a preparation."""


def known_start_parts(runs: pd.DataFrame) -> dict[str, str]:
    """The parts of a start that runs can tell: those of a built-in training, or of programs.

    Args:
        runs: Contents of runs.csv.
    """
    known = [column for column in STARTUP if column in runs.columns and runs[column].notna().any()]
    if PREPARATION not in known:
        known = [column for column in STARTUP if column != PREPARATION]
    return {column: START_PARTS[column] for column in known}
