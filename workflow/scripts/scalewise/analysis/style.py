"""How the figures look: colour-blind safe, lines told apart by mark and dash too, equal data equal files."""

from __future__ import annotations

import seaborn as sns

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["", (4, 1.5), (1, 1), (3, 1, 1, 1), (6, 2), (2, 2), (5, 1, 1, 1, 1, 1), (1, 3)]


def set_style() -> None:
    """For all figures drawn from now on."""
    sns.set_theme(
        context="notebook",
        style="whitegrid",
        palette="colorblind",
        rc={
            "figure.figsize": (6.0, 4.0),
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.titlesize": 11,
            "legend.frameon": True,
            "svg.hashsalt": "scalewise",  # equal data, equal file
            "svg.fonttype": "path",  # needs no font where it is read
            "pdf.fonttype": 42,
        },
    )


def marks(count: int) -> dict[str, list[object]]:
    """Markers and dashes for so many lines; beyond eight, the same marker comes with another dash."""
    return {
        "markers": [MARKERS[index % 8] for index in range(count)],
        "dashes": [DASHES[(index + index // 8) % 8] for index in range(count)],
    }
