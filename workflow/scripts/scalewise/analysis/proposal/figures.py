"""The figures of the report that answer a centre's demands."""

from __future__ import annotations

from pathlib import Path

from scalewise.plan.config.centre import FigureName

FIGURES: dict[FigureName, tuple[str, str]] = {
    "time": ("time_cost", "time of a whole run against its cost"),
    "throughput": ("throughput", "throughput of the training steps against the number of devices"),
    "speedup": ("speedup", "speedup of the training steps against the number of devices"),
    "efficiency": ("efficiency", "parallel efficiency of the training steps against the number of devices"),
}
"""Name of the file in the folder of figures, and contents for a sentence."""


def missing_figures(folder: Path) -> dict[FigureName, str]:
    """Return the figures that have nothing to show, with the reason.

    Args:
        folder: The experiment's figures.
    """
    return {
        name: f"no run has a known {name}"
        for name, (file, _) in FIGURES.items()
        if not (folder / f"{file}.pdf").exists()
    }
