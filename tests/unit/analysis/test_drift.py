"""Whether a run kept its rate while it was measured, and what is said where it did not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.bottlenecks.drift import drift, drift_flags
from scalewise.analysis.tables import collect
from scalewise.records import Window

STEADY = [100, 102, 98, 101, 99, 100, 103, 97, 100]
SPEEDING_UP = [70, 72, 71, 80, 85, 90, 99, 100, 101]


def windows(rates: Sequence[float], warmup: int = 0) -> list[Window]:
    """Windows of 100 samples at these rates."""
    return [
        Window(first_step=i, steps=1, samples=100, seconds=100 / rate, warmup=i < warmup)
        for i, rate in enumerate(rates)
    ]


def table(*runs: Sequence[float], devices: int = 2) -> pd.DataFrame:
    rows = [
        {"series": "all runs", "devices": devices, "outcome": "completed"} | drift(windows(r)) for r in runs
    ]
    return pd.DataFrame(rows)


def test_the_drift_is_the_last_thirds_rate_over_the_firsts_by_samples_over_seconds() -> None:
    found = drift(windows([50, 100, 100, 100, 100, 100, 100, 100, 200]))
    first, last = 300 / (2 + 1 + 1), 300 / (1 + 1 + 0.5)
    assert found["drift"] == pytest.approx(last / first)
    bounds = welch_bounds([100, 100, 200], [50, 100, 100])
    assert (found["drift_low"], found["drift_high"]) == pytest.approx(bounds)


def test_the_spread_of_windows_is_half_their_interval_over_the_mean() -> None:
    assert drift(windows([90, 100, 110]))["window_spread"] == pytest.approx(0.251943, rel=1e-4)


def test_warm_up_windows_count_for_nothing() -> None:
    assert drift(windows([1, *STEADY], warmup=1)) == drift(windows(STEADY))


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_few_windows_carry_no_drift(count: int) -> None:
    found = drift(windows(SPEEDING_UP[:count]))
    assert found.keys() == ({"window_spread"} if count > 1 else set())


def test_runs_that_still_got_faster_ask_for_more_warm_up() -> None:
    (flag,) = drift_flags(table(SPEEDING_UP, SPEEDING_UP, STEADY))
    assert flag == (
        "2 of 3 runs on 2 devices still got faster while they were measured: the last third of the steps ran "
        "at 1.41x the rate of the first. Raise warmup_steps."
    )


def test_runs_that_got_slower_are_told_apart() -> None:
    (flag,) = drift_flags(table(SPEEDING_UP[::-1]))
    assert flag.startswith("1 of 1 runs on 2 devices got slower while they were measured")
    assert "heat" in flag


def test_steady_runs_few_windows_and_a_single_exception_are_not_flagged() -> None:
    assert drift_flags(table(STEADY, STEADY)) == []
    assert drift_flags(table(SPEEDING_UP, STEADY)) == []
    assert drift_flags(pd.DataFrame(columns=["outcome", "series", "devices", "drift_low"])) == []


def test_a_drift_within_five_percent_is_not_flagged() -> None:
    assert drift_flags(table([100, 100, 100, 102, 102, 102, 104, 104, 104])) == []


def test_each_run_in_the_table_has_its_steadiness(tmp_path: Path) -> None:
    write_run(tmp_path, "d2.r1", windows=windows(SPEEDING_UP))
    spec = experiment(devices=[2], repeats=1)
    (row,) = collect("study", spec, tmp_path).runs.to_dict("records")
    expected = drift(windows(SPEEDING_UP))
    assert {key: row[key] for key in expected} == expected
