"""Sections with planted points, for figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.answer import Answer, CandidateRow, Figure
from scalewise.analysis.options import OPTION_COLUMNS
from scalewise.analysis.points import SCALING_COLUMNS
from scalewise.analysis.runs import RUN_COLUMNS
from scalewise.report.section import Section

HOSTILE = "</script><script>alert(1)</script> & \"quoted\" <b>'bold'</b>"

ANSWER = Answer(
    experiment="study",
    device="GPU",
    devices=4,
    series="all runs",
    partition="",
    at_a_time=1,
    clock="steps",
    verdict="Use 4 GPUs.",
    certainty="likely",
    reason="Add `repeats: 5`.",
    figures=[Figure("Speed", "3.40x (3.30 to 3.50)", "as fast as 1 GPU", 3.4, 3.3, 3.5)],
    basis="Decided by the rate of steps.",
    rule="The most GPUs with an efficiency of at least 0.7.",
    next_larger="",
    limit="",
    options=[],
    others=[],
    required=[("an efficiency of 0.9", "2 GPUs"), ("an efficiency of 0.5", "8 GPUs")],
    cautions=[(f"Caution {number}.", f"Action {number}.") for number in range(1, 6)],
    to_do="Run 2 more repeats.",
    command="repeats: 5",
    sentence="4 GPUs train 3.40x faster than 1.",
    candidates=[CandidateRow("4 GPUs on a100", "10.0 s", "", "", "", "the best for time")],
    min_efficiency=0.7,
)


def points(
    speedups: Mapping[str, Mapping[int, float]], spread: float | None = 0.05, recommended: int = 4
) -> pd.DataFrame:
    """Return a scaling table.

    Args:
        speedups: Speedup by series and device count.
        spread: Half width of every interval as a share; None for single runs.
        recommended: Device count of the answer, in the first series.
    """
    rows = []
    for series, by_count in speedups.items():
        for devices, speedup in by_count.items():
            values = {
                "throughput_samples_per_second": 100 * speedup,
                "speedup": speedup,
                "parallel_efficiency": speedup / devices,
                "wall_seconds": 600 / speedup,
                "seconds": 600 / speedup,
                "cost": devices / 6 / speedup,
                "peak_memory_bytes": 3e9,
            }
            ends = {
                f"{name}{end}": float("nan") if spread is None else value * (1 + sign * spread)
                for name, value in values.items()
                for end, sign in (("_low", -1), ("_high", 1))
            }
            parts = {"compute_seconds": 0.08, "communication_seconds": 0.02, "loader_seconds": 0.0}
            answer = series == next(iter(speedups)) and devices == recommended
            rows.append(
                {"series": series, "devices": devices, "n": 3, "recommended": answer, "baseline_devices": 1}
                | values | ends | parts | {"step_seconds": 0.1, "device_hours": devices / 6 / speedup}
            )  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=SCALING_COLUMNS)


def curves(
    counts: Sequence[int], repeats: int, epochs: int, series: Sequence[str] = ("all runs",)
) -> pd.DataFrame:
    """Return epochs whose accuracy rises, the first repeat lowest."""
    return pd.DataFrame(
        {
            "series": name, "devices": count, "run": f"{name}.d{count}.r{repeat}", "epoch": epoch,
            "test_accuracy": 1 - 0.5**epoch - 0.01 * (repeats - repeat), "test_loss": 0.5**epoch,
        }
        for name in series for count in counts for repeat in range(1, repeats + 1)
        for epoch in range(1, epochs + 1)
    )  # fmt: skip


def section(folder: Path, table: pd.DataFrame, **fields: Any) -> Section:
    """Return a section on a table of points."""
    usual: dict[str, Any] = {
        "name": "study", "title": "A study", "answer": ANSWER,
        "figures": folder / "figures", "points": table, "runs": pd.DataFrame(columns=RUN_COLUMNS),
        "epochs": pd.DataFrame(columns=["run"]), "options": pd.DataFrame(columns=OPTION_COLUMNS),
        "cost_unit": "GPU-hours", "law": "", "target_accuracy": None,
    }  # fmt: skip
    return Section(**usual | fields)
