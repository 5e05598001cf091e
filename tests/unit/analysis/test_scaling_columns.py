"""The columns of scaling.csv: what each is of the runs, and that the guide explains all of them."""

from __future__ import annotations

import math
import re
from statistics import geometric_mean

import pandas as pd
import pytest
from scipy import stats
from tests.paths import ROOT
from tests.unit.analysis.planted import ONLY, analysis_of, at, make_runs, spread
from tests.unit.analysis.reference import next_bound

from scalewise.analysis.analysis_spec import THROUGHPUT as RATE
from scalewise.analysis.points import SCALING_COLUMNS

NAN = math.nan


def test_each_column_is_explained_and_its_interval_follows_it() -> None:
    named = [column for column in SCALING_COLUMNS if not column.endswith(("_low", "_high"))]
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8").split("## Columns of scaling.csv")[1]
    rows = re.findall(r"^\| (`.*?`) \| (\S.*) \|$", text, re.MULTILINE)
    explained = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert explained == list(dict.fromkeys(explained))
    assert set(explained) == set(named)
    bounded = [column for column in named if f"{column}_low" in SCALING_COLUMNS]
    said = [
        name for names, value in rows if "with interval" in value for name in re.findall(r"`(\w+)`", names)
    ]
    assert set(said) == set(bounded)
    for column in bounded:
        place = SCALING_COLUMNS.index(column)
        assert SCALING_COLUMNS[place + 1 : place + 3] == [f"{column}_low", f"{column}_high"]


def test_columns_are_means_or_medians_of_the_runs_that_know_them() -> None:
    known = {
        "final_accuracy": [0.95, 0.99, 0.97],
        "time_to_accuracy_seconds": [5.0, NAN, 3.0],
        "epochs_to_accuracy": [4.0, NAN, 2.0],
        "peak_memory_bytes": [1e6, 3e6, 2e6],
        "wall_seconds": [40.0, 42.0, 41.0],
        "step_seconds": [0.1, 0.15, 0.2],
        "loader_wait_fraction": [0.1, 0.2, 0.6],
    }
    (row,) = analysis_of(make_runs({(ONLY, 2): spread(200.0)}, **known)).scaling.to_dict("records")
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    # 0.97 + half is 1.02, and no accuracy
    assert [row[f"final_accuracy{end}"] for end in ("", "_low", "_high")] == pytest.approx(
        [0.97, 0.97 - half, 1]
    )
    assert row["time_to_accuracy_seconds"] == pytest.approx(math.sqrt(15))
    assert math.isnan(row["time_to_accuracy_seconds_low"])
    assert (row["n_reached"], row["epochs_to_accuracy"], row["loader_wait_fraction"]) == (2, 3, 0.2)
    assert (row["peak_memory_bytes"], row["step_seconds"]) == pytest.approx((2e6, 0.15))
    assert row["wall_seconds"] == pytest.approx(geometric_mean(known["wall_seconds"]))
    # the next run is slower than that with a probability of 5 %
    bound = next_bound(known["wall_seconds"])
    assert (row["wall_seconds_next"], row["wall_n"]) == (pytest.approx(bound), 3)


@pytest.mark.parametrize("fits", [True, False])
def test_each_series_has_a_baseline_of_its_own_the_fewest_devices_that_it_fits_on(fits: bool) -> None:
    plain = {1: spread(100.0) if fits else ["out-of-memory"] * 3, 2: spread(180.0), 8: spread(540.0)}
    points = {("plain", devices): rates for devices, rates in plain.items()}
    found = analysis_of(make_runs(points | {("fast", 1): spread(200.0), ("fast", 2): spread(300.0)}))
    assert at(found, 8, "plain")["baseline_devices"] == (1 if fits else 2)
    assert at(found, 8, "plain")["speedup"] == pytest.approx(5.4 if fits else 3.0)
    assert at(found, 2, "fast")["speedup"] == pytest.approx(1.5)
    assert ("relative to 2 devices" in at(found, 8, "plain")["note"]) == (not fits)


def test_a_count_that_was_added_on_a_slower_day_is_compared_with_that_days_baseline() -> None:
    """The second day is 20 % slower: by all runs of the baseline, 8 devices would look 11 % slower."""
    first = make_runs({(ONLY, devices): spread(100.0 * devices**0.9) for devices in (1, 2, 4)})
    second = make_runs({(ONLY, devices): spread(80.0 * devices**0.9) for devices in (1, 8)})
    later = pd.to_datetime(second["started_at"]) + pd.Timedelta(days=3)
    second = second.assign(repeat=second["repeat"] + 3, started_at=later.map(pd.Timestamp.isoformat))
    second["run"] += "b"
    found = analysis_of(pd.concat([first, second], ignore_index=True))
    assert at(found, 8)["speedup"] == pytest.approx(8**0.9, rel=0.005)
    assert at(found, 4)["speedup"] == pytest.approx(4**0.9, rel=0.005)
    assert at(found, 1)[RATE] < 95
