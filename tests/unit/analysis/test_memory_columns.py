"""Peaks of memory in the tables: training and evaluation by name, or one for both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.memory import memory_gain
from scalewise.analysis.report import data_tables
from scalewise.analysis.report.data_tables import Table
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.analysis.tables import collect
from scalewise.records import read_summary

MB = 1_000_000
BY_PHASE = "RSS beyond that before the model"
ONE_FOR_BOTH = "process peak RSS, evaluation included"


def shown(table: Table, label: str) -> list[str]:
    """Return the cells of a column."""
    index = [column.label for column in table.columns].index(label)
    return [row.cells[index].value for row in table.rows]


def test_both_peaks_stand_in_every_table_by_their_names() -> None:
    tables = []
    for view, training in ((False, 300.0), (True, 202.0)):
        point: dict[tuple[str, int], list[float | str]] = {(f"view-{view}", 1): [100.0, 101.0, 99.0]}
        tables.append(
            make_runs(
                point,
                gradient_as_bucket_view=view,
                peak_memory_bytes=training * MB,
                evaluation_peak_memory_bytes=90.0 * MB,
                peak_memory_kind=BY_PHASE,
                parameters=25e6,
            )
        )
    runs = pd.concat(tables, ignore_index=True)
    assert shown(data_tables.runs(runs, with_accuracy=False), "in evaluation (MB)") == ["90"] * 6
    scaling = scaling_table(runs, "weak")
    assert list(scaling["peak_memory_bytes"]) == [300 * MB, 202 * MB]
    assert list(scaling["evaluation_peak_memory_bytes"]) == [90 * MB] * 2
    devices = data_tables.devices(scaling, kind=lambda _: "")
    assert shown(devices, "memory in training (MB)") == ["300", "202"]
    assert shown(devices, "in evaluation (MB)") == ["90", "90"]
    gains = option_table(runs, {"gradient_as_bucket_view": [False, True]})
    (gain,) = gains.to_dict("records")
    assert (gain["peak_memory_saved_bytes"], gain["saved_parameter_copies"]) == (98 * MB, 0.98)
    assert gain["evaluation_peak_memory_bytes"] == 90 * MB == gain["reference_evaluation_peak_memory_bytes"]
    options = data_tables.options(gains.assign(series="view-True"))
    assert shown(options, "saved (MB)") == ["98"]
    assert shown(options, "saved, in copies of the parameters") == ["0.98"]
    assert shown(options, "memory in evaluation (MB)") == ["90"]


def test_models_of_different_sizes_have_no_copies_to_count() -> None:
    small, large = (
        pd.DataFrame({"peak_memory_bytes": [peak], "parameters": [size]})
        for peak, size in ((1e9, 1), (3e9, 2))
    )
    gain = memory_gain(small, large)
    assert gain["peak_memory_saved_bytes"] == 2e9
    assert pd.isna(gain["saved_parameter_copies"])


@pytest.mark.parametrize("kind", ["process peak RSS", "CUDA allocator peak"])
def test_a_peak_that_holds_evaluation_says_so(tmp_path: Path, kind: str) -> None:
    folder = write_run(tmp_path, "d2.r1")
    path = folder / "summary.json"
    text = path.read_text(encoding="utf-8").replace("process peak RSS", kind)
    lacking = "\n".join(line for line in text.splitlines() if "evaluation_peak" not in line)
    path.write_text(lacking, encoding="utf-8")
    measured = read_summary(folder).measurements
    assert measured is not None
    assert measured.evaluation_peak_memory_bytes is None
    (row,) = collect("study", experiment(devices=[2], repeats=1), tmp_path).runs.to_dict("records")
    assert row["peak_memory_kind"] == f"{kind}, evaluation included"
    assert row["peak_memory_bytes"] == 700_000_002
    assert pd.isna(row["evaluation_peak_memory_bytes"])


def test_no_mean_joins_peaks_that_count_different_memory() -> None:
    runs = make_runs({("all runs", 1): [100.0] * 5})
    peaks: dict[str, list[Any]] = {
        "peak_memory_bytes": [2134.0 * MB, 2137.0 * MB, 1041.0 * MB, 1042.0 * MB, 1043.0 * MB],
        "peak_memory_kind": [ONE_FOR_BOTH] * 2 + [BY_PHASE] * 3,
        "evaluation_peak_memory_bytes": [None, None, 900.0 * MB, 900.0 * MB, 900.0 * MB],
    }
    (point,) = scaling_table(runs.assign(**peaks), "weak").to_dict("records")
    assert point["n"] == 5
    assert point["peak_memory_bytes"] == 1042 * MB
    assert point["peak_memory_bytes_high"] == pytest.approx((1042 + 4.302653 / math.sqrt(3)) * MB)
    assert point["evaluation_peak_memory_bytes"] == 900 * MB
