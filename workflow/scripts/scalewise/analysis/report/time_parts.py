"""The parts of a step's time and of a start's: columns of the tables, and names for readers."""

from __future__ import annotations

from scalewise.analysis.analysis_spec import STARTUP

STEP_PARTS = {
    "compute_seconds": "compute",
    "communication_seconds": "exposed communication",
    "loader_seconds": "loader wait",
    "straggler_seconds": "stragglers",
    "jitter_seconds": "jitter",
}
"""A step is made of these, from the bottom of a bar to its top."""

START_PARTS = {column: column.removesuffix("_seconds").replace("_", " ") for column in STARTUP}
"""A start is made of these, in the order in which they come."""
