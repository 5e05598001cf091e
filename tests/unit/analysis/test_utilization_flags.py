"""Devices that were not busy, what they waited for, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from scalewise.analysis.bottlenecks.utilization import ADVICE, flags, likely_cause
from scalewise.analysis.scaling import scaling_table

Runs = Callable[..., pd.DataFrame]

ALONE = "all runs"
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
        (0.2, 0.05, None, "unknown"),
        (0.2, 0.05, NAN, "unknown"),
    ],
)
def test_the_cause_is_what_explains_most_of_the_idle_time(
    busy: float, wait: float, communication: float | None, cause: str
) -> None:
    assert likely_cause(busy, wait, communication) == ADVICE[cause]


def test_who_has_the_resident_loader_is_not_told_to_use_it() -> None:
    assert "use the resident loader" in likely_cause(0.2, 0.7, 0.0)
    assert "use the resident loader" not in likely_cause(0.2, 0.7, 0.0, "resident")


@pytest.mark.parametrize("advice", list(ADVICE.values()))
def test_every_cause_comes_with_something_to_do(advice: str) -> None:
    assert "-bound" in advice
    assert any(verb in advice for verb in ("raise", "Raise"))


def flagged(runs: pd.DataFrame) -> list[str]:
    return list(flags(scaling_table(runs, "strong")))


def test_a_study_whose_devices_were_busy_has_no_flag(make_runs: Runs) -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [190.0]})
    assert flagged(runs) == []
    assert flagged(runs.assign(mean_utilization=0.5)) == []


def test_points_that_were_under_half_busy_are_named_with_cause_and_cure(make_runs: Runs) -> None:
    runs = make_runs({(ALONE, devices): [100.0, 101.0, 102.0] for devices in (1, 2, 4)})
    runs.loc[runs["devices"] == 2, ["mean_utilization", "communication_fraction"]] = 0.41
    runs.loc[runs["devices"] == 4, ["mean_utilization", "communication_fraction"]] = [
        [0.31, 0.5],
        [0.33, 0.5],
        [0.9, 0.1],  # one busy repeat is not the median
    ]
    assert flagged(runs) == [
        "Busy less than 50 % of the training: 2 devices (41 %), 4 devices (33 %). " + ADVICE["communication"]
    ]


def test_each_cause_is_said_once_with_the_series_it_is_of(make_runs: Runs) -> None:
    points = {(f"cpus-per-device-{cpus}", devices): [100.0] for cpus in (1, 2, 4) for devices in (1, 2, 4)}
    runs = make_runs(points, loader="workers", mean_utilization=0.25, loader_wait_fraction=0.6)
    runs.loc[runs["series"] == "cpus-per-device-4", "loader_wait_fraction"] = 0.01
    first, second = flagged(runs)
    assert first.startswith("Busy less than 50 % of the training: cpus-per-device-1 on 1 device (25 %), cpus")
    assert first.endswith(ADVICE["loader"])
    assert second.endswith(ADVICE["launch"])
    assert "cpus-per-device-4 on 4 devices (25 %)" in second
    (all_points,) = flagged(runs.assign(loader_wait_fraction=0.6))
    assert "and 3 more points. Loader-bound" in all_points


def test_one_device_waits_for_no_other_where_communication_was_not_measured(make_runs: Runs) -> None:
    runs = make_runs(
        {(ALONE, 1): [100.0], (ALONE, 2): [190.0]}, mean_utilization=0.2, communication_fraction=None
    )
    one, two = flagged(runs)
    assert "1 device (20 %)" in one
    assert one.endswith(ADVICE["launch"])
    assert "2 devices (20 %)" in two
    assert two.endswith(ADVICE["unknown"])


def test_runs_that_nobody_watched_have_no_flag(make_runs: Runs) -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): ["failed"]}, mean_utilization=None)
    assert flagged(runs) == []
