"""When a running study should be done, and for how much."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
from tests.unit.watch.planted_status import (
    FAILED,
    NOW,
    QUEUED,
    WAITING,
    done,
    point,
    running,
    status_of,
)

from scalewise.analysis.comparison import comparable_runs
from scalewise.analysis.statistics.ratios import ratio_of
from scalewise.watch.forecast import forecast
from scalewise.watch.speedups import NEVER_MORE, baseline_of, ratio, speedups
from scalewise.watch.status import RunStatus
from scalewise.watch.study import QueuedJob, Rounds
from scalewise.watch.texts import forecast_text


def test_on_one_machine_runs_follow_each_other_and_take_what_their_point_took() -> None:
    told = forecast(
        status_of({point(1): [done(100, 60), WAITING], point(2): [done(180, 40), WAITING, WAITING]})
    )

    assert told.ends == NOW + 60 + 2 * 40
    assert told.spent == pytest.approx((60 + 2 * 40) / 3600)
    assert told.to_go == pytest.approx((60 + 2 * 2 * 40) / 3600)
    assert not told.waits


def test_a_run_at_work_is_held_to_its_own_pace_once_it_has_come_some_way() -> None:
    told = forecast(status_of({point(1): [running(5, 10, elapsed=100)]}))
    assert told.ends == NOW + 100
    assert told.spent == pytest.approx(100 / 3600)

    assert forecast(status_of({point(1): [running(0, 10, elapsed=100)]})).ends is None


def first_reported(run: RunStatus, step: int, seconds_ago: float) -> RunStatus:
    """The run, with another first report of its job."""
    assert run.progress is not None
    first = {"first_step": step, "first_reported_at": NOW - seconds_ago}
    return replace(run, progress=run.progress.model_copy(update=first), job_seconds=(50.0,) if step else ())


def test_what_an_earlier_job_of_a_run_has_done_is_not_its_own_pace() -> None:
    resumed = first_reported(running(85, 100, elapsed=70), step=80, seconds_ago=60)
    told = forecast(status_of({point(1): [resumed]}))
    # 5 % in 60 seconds: 15 % are to come
    assert told.ends == pytest.approx(NOW + 180)
    barely = first_reported(running(85, 100, elapsed=70), step=84, seconds_ago=60)
    assert forecast(status_of({point(1): [barely]})).ends is None


def test_the_start_of_a_run_is_no_part_of_its_pace() -> None:
    at_work = first_reported(running(2, 10, elapsed=80), step=0, seconds_ago=20)
    # 20 % in 20 seconds after a start of 60; the other run has both before it
    told = forecast(status_of({point(1): [at_work, WAITING]}))
    assert told.ends == pytest.approx(NOW + 80 + 160)


def test_a_round_that_is_to_be_judged_may_add_to_cost_and_end() -> None:
    status = status_of({point(1): [done(100, 60), WAITING]})
    assert not forecast(status).may_grow
    open_rounds = replace(status, rounds=Rounds(requested={}, may_grow=True))
    told = forecast(open_rounds)
    assert told.may_grow
    assert "at least 0.0167 to go, done " in forecast_text(open_rounds, told)
    assert " at the earliest (in 60 s)" in forecast_text(open_rounds, told)


def test_a_run_that_was_resumed_took_all_its_jobs_and_tells_only_where_no_other_does() -> None:
    resumed = replace(done(100), job_seconds=(50.0, 10.0))
    assert forecast(status_of({point(1): [resumed, WAITING]})).ends == NOW + 60
    assert forecast(status_of({point(1): [resumed, done(100, 40), WAITING]})).ends == NOW + 40


def test_a_study_that_was_cut_off_has_no_end_to_come() -> None:
    told = forecast(status_of({point(1): [running(5, 10, elapsed=100), WAITING]}, over=True))
    assert (told.ends, told.to_go) == (None, None)
    assert told.spent == pytest.approx(100 / 3600)


def test_before_a_point_is_known_it_takes_at_most_what_the_nearest_one_tells() -> None:
    fewer = forecast(status_of({point(2): [done(100, 60)], point(1): [WAITING]}))
    more = forecast(status_of({point(2): [done(100, 60)], point(8): [WAITING]}))

    assert fewer.ends == NOW + 120
    assert more.ends == NOW + 60


def test_device_hours_are_counted_as_billed_and_those_of_failed_runs_too() -> None:
    told = forecast(status_of({point(1, billed=4): [done(100, 60), FAILED]}))
    assert told.spent == pytest.approx(4 * 90 / 3600)


def test_on_a_cluster_runs_wait_for_the_devices_that_the_budget_leaves() -> None:
    runs = {point(4): [running(5, 10, elapsed=50), WAITING, WAITING], point(1): [done(100, 10)]}
    told = forecast(status_of(runs, budget=4))
    assert told.ends == NOW + 50 + 100 + 100
    assert told.waits

    assert forecast(status_of(runs, budget=8)).ends == NOW + 50 + 100


def test_slurms_own_estimate_of_a_start_is_believed() -> None:
    queued = RunStatus("queued", slurm=QueuedJob(state="PENDING", starts=NOW + 1000, reason="Priority"))
    told = forecast(status_of({point(1): [done(100, 60), queued]}, budget=4))
    assert told.ends == NOW + 1060
    assert not told.waits

    late = RunStatus("queued", slurm=QueuedJob(state="PENDING", starts=NOW - 1000))
    told = forecast(status_of({point(1): [done(100, 60), late]}, budget=4))
    assert (told.ends, told.waits) == (NOW + 60, True), "the time that Slurm expected has passed"

    unknown = forecast(status_of({point(1): [done(100, 60), QUEUED]}, budget=4))
    assert unknown.ends == NOW + 60
    assert unknown.waits


SAMPLES = [
    ([182.0, 171.0, 176.5], [100.0, 103.0, 98.0]),
    ([182.0], [100.0, 103.0, 98.0, 97.0]),
    ([182.0, 140.0], [100.0]),
    ([182.0, 180.0], [100.0, 55.0]),
    ([150.0] * 3, [100.0] * 3),
    ([float(value) for value in range(90, 110)], [100.0, 101.0]),
]


@pytest.mark.parametrize(("above", "below"), SAMPLES)
def test_a_ratio_has_the_bounds_that_the_tables_give_it(above: list[float], below: list[float]) -> None:
    expected = ratio_of(above, below)
    assert expected is not None
    found = ratio(tuple(above), tuple(below))

    for mine, theirs in zip(
        (found.estimate, found.low, found.high),
        (expected.interval().estimate, expected.interval().low, expected.interval().high),
        strict=True,
    ):
        assert mine == pytest.approx(theirs, rel=1e-6)
    assert found.n == expected.interval().n


def test_single_runs_have_no_bounds() -> None:
    assert math.isnan(ratio((180.0,), (100.0,)).low)


def test_a_speedup_is_over_the_fewest_devices_of_its_own_series() -> None:
    found = {
        each.point: (each.baseline, round(each.ratio.estimate, 3), round(each.efficiency, 3))
        for each in speedups(
            status_of(
                {
                    point(2, series="a"): [done(200)],
                    point(8, series="a"): [done(600)],
                    point(2, series="b"): [WAITING],
                    point(4, series="b"): [done(900)],
                }
            ).points
        )
    }
    assert found == {point(8, series="a"): (2, 3.0, 0.75)}


OUT_OF_MEMORY = RunStatus("failed", "out-of-memory")
DIVERGED = RunStatus("failed", "diverged")


@pytest.mark.parametrize(
    "runs",
    [
        {1: [OUT_OF_MEMORY, DIVERGED], 2: [done(200)], 4: [done(380)]},
        {1: [OUT_OF_MEMORY, FAILED], 2: [done(200)]},
        {1: [OUT_OF_MEMORY, done(100)], 2: [done(200)]},
        {1: [OUT_OF_MEMORY], 2: [DIVERGED]},
    ],
)
def test_the_baseline_is_that_of_the_tables(runs: dict[int, list[RunStatus]]) -> None:
    assert comparable_runs.NEVER_MORE == NEVER_MORE
    rows = [(devices, facts.outcome) for devices, mine in runs.items() for facts in mine]
    expected = comparable_runs.baseline_devices(pd.DataFrame(rows, columns=["devices", "outcome"]))
    status = status_of({point(devices): repeats for devices, repeats in runs.items()})
    assert baseline_of(status.points).point.devices == expected


def test_devices_that_have_too_little_memory_keep_no_speedup_from_the_others() -> None:
    runs = {point(1): [OUT_OF_MEMORY] * 2, point(2): [done(200)], point(4): [done(380)]}
    (found,) = speedups(status_of(runs).points)
    assert (found.point, found.baseline) == (point(4), 2)
    assert found.ratio.estimate == pytest.approx(1.9)
