"""The parts of a step's time and of a start's: columns of the tables, and names for readers."""

from __future__ import annotations

STEP_PARTS = {
    "compute_seconds": "compute",
    "communication_seconds": "exposed communication",
    "loader_seconds": "loader wait",
    "straggler_seconds": "stragglers",
}
"""A step is made of these, from the bottom of a bar to its top."""

START_PARTS = {
    "launch_seconds": "launch",
    "imports_seconds": "imports",
    "process_group_seconds": "process group",
    "data_seconds": "data",
    "model_seconds": "model",
    "first_step_seconds": "first step",
}
"""A start is made of these, in the order in which they come."""
