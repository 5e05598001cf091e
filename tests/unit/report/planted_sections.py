"""Sections with planted points, for figures and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from tests.unit.analysis.planted import analysis_of, make_runs, spread

from scalewise.analysis.answer import CandidateRow
from scalewise.analysis.options import OPTION_COLUMNS
from scalewise.analysis.runs import RUN_COLUMNS
from scalewise.report.section import Section

HOSTILE = "</script><script>alert(1)</script> & \"quoted\" <b>'bold'</b>"
STEP = {"step_seconds": 0.1, "compute_seconds": 0.08, "communication_seconds": 0.02, "loader_seconds": 0.0}


def runs_of(speedups: Mapping[str, Mapping[int, float]], repeats: int = 3) -> pd.DataFrame:
    """Return runs by their speedups, of each series and device count."""
    rates = {
        (name, n): spread(100 * each, 0.02, repeats)
        for name, of in speedups.items()
        for n, each in of.items()
    }
    return make_runs(rates, started_at=None, peak_memory_bytes=3e9, **STEP)


def points(speedups: Mapping[str, Mapping[int, float]], repeats: int = 3) -> pd.DataFrame:
    """Return the scaling table of such runs."""
    return analysis_of(runs_of(speedups, repeats)).scaling


ANSWER = replace(
    analysis_of(runs_of({"all runs": {1: 1.0, 2: 1.9, 4: 3.4}})).answer,
    reason="Add `repeats: 5`.",
    cautions=[(f"Caution {number}.", f"Action {number}.") for number in range(1, 6)],
    candidates=[CandidateRow("4 GPUs on a100", "10.0 s", "", "", "", "the best for time")],
)


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
