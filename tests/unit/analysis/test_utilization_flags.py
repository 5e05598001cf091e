"""Devices that were not busy, what they waited for, and what to do about it."""

from __future__ import annotations

import pandas as pd
import pytest
from tests.unit.analysis.planted_tables import ALONE, make_runs

from scalewise.analysis.bottlenecks.utilization import CAUSES, cause_text, flags, likely_cause
from scalewise.analysis.scaling import scaling_table

NAN = float("nan")


@pytest.mark.parametrize(
    ("busy", "wait", "communication", "cause"),
    [
        (0.2, 0.7, 0.05, "loader"),
        (0.2, 0.05, 0.7, "communication"),
        (0.2, 0.05, 0.05, "launch"),
        (0.4, 0.31, 0.29, "loader"),
        (0.4, 0.29, 0.31, "communication"),
        (0.1, 0.3, 0.2, "launch"),  # 0.4 of the time is explained by neither
        (0.4, 0.6, 0.0, "loader"),
        (0.4, 0.0, 0.0, "launch"),
        (0.2, 0.7, None, "loader"),
        (0.2, 0.05, None, "communication unknown"),
        (0.2, 0.05, NAN, "communication unknown"),
    ],
)
def test_the_cause_is_what_explains_most_of_the_idle_time(
    busy: float, wait: float, communication: float | None, cause: str
) -> None:
    assert likely_cause(busy, wait, communication) == cause


def test_advice_is_for_the_loader_that_is_used() -> None:
    assert "use the resident loader" in cause_text("loader", "workers")
    assert "use the resident loader" not in cause_text("loader", "resident")
    assert "no_sync" in cause_text("communication", "program")


@pytest.mark.parametrize("cause", list(CAUSES))
def test_every_cause_comes_with_something_to_do(cause: str) -> None:
    said = cause_text(cause, "workers")
    assert any(verb in said for verb in ("Load data", "Exchange", "Raise", "raise the batch", "See whether"))


def flagged(runs: pd.DataFrame) -> list[str]:
    return list(flags(scaling_table(runs, "strong")))


def test_a_study_whose_devices_were_busy_has_no_flag() -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [190.0]})
    assert flagged(runs) == []
    assert flagged(runs.assign(mean_utilization=0.5)) == []


def test_points_that_were_under_half_busy_are_named_with_cause_and_cure() -> None:
    runs = make_runs({(ALONE, devices): [100.0, 101.0, 102.0] for devices in (1, 2, 4)})
    runs.loc[runs["devices"] == 2, ["mean_utilization", "communication_fraction"]] = 0.41
    runs.loc[runs["devices"] == 4, ["mean_utilization", "communication_fraction"]] = [
        [0.31, 0.5],
        [0.33, 0.5],
        [0.9, 0.1],  # one busy repeat is not the median
    ]
    assert flagged(runs) == [
        "Devices were idle for much of the training: 59 % on 2 devices, 67 % on 4 devices. "
        + cause_text("communication", "resident")
    ]


def test_each_cause_is_said_once_with_the_series_it_is_of() -> None:
    points = {(f"cpus-per-device-{cpus}", devices): [100.0] for cpus in (1, 2, 4) for devices in (1, 2, 4)}
    runs = make_runs(points, loader="workers", mean_utilization=0.25, loader_wait_fraction=0.6)
    runs.loc[runs["series"] == "cpus-per-device-4", "loader_wait_fraction"] = 0.01
    first, second = flagged(runs)
    assert first.startswith(
        "Devices were idle for much of the training: 75 % on 1 device with cpus-per-device-1, 75 % on"
    )
    assert first.endswith(cause_text("loader", "workers"))
    assert second.endswith(CAUSES["launch"])
    assert "75 % on 4 devices with cpus-per-device-4" in second
    (all_points,) = flagged(runs.assign(loader_wait_fraction=0.6))
    assert "and at 3 more points. They waited for data." in all_points


def test_one_device_waits_for_no_other_where_communication_was_not_measured() -> None:
    runs = make_runs(
        {(ALONE, 1): [100.0], (ALONE, 2): [190.0]}, mean_utilization=0.2, communication_fraction=None
    )
    one, two = flagged(runs)
    assert "80 % on 1 device." in one
    assert one.endswith(CAUSES["launch"])
    assert "80 % on 2 devices." in two
    assert two.endswith(CAUSES["communication unknown"])


def test_runs_that_nobody_watched_have_no_flag() -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): ["failed"]}, mean_utilization=None)
    assert flagged(runs) == []
