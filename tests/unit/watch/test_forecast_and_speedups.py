"""When a running study should be done, and for how much."""

from __future__ import annotations

from dataclasses import replace

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

from scalewise.analysis import conditions
from scalewise.analysis.statistics import Sample, ratio_of
from scalewise.watch.forecast import forecast
from scalewise.watch.speedups import NEVER_MORE, baseline_of, ratio, speedups
from scalewise.watch.status import RunStatus
from scalewise.watch.study import QueuedJob, WatchedPoint


def reported_first(run: RunStatus, step: int, seconds_ago: float) -> RunStatus:
    """Return the run with another first report of its job, which is the second one if steps were done."""
    assert run.progress is not None
    first = {"first_step": step, "first_reported_at": NOW - seconds_ago}
    return replace(run, progress=run.progress.model_copy(update=first), job_seconds=(50.0,) if step else ())


def queued(starts: float) -> RunStatus:
    return RunStatus("queued", slurm=QueuedJob(state="PENDING", starts=starts, reason="Priority"))


RESUMED = replace(done(100), job_seconds=(50.0, 10.0))
ON_CLUSTER = {point(4): [running(5, 10, elapsed=50), WAITING, WAITING], point(1): [done(100, 10)]}


@pytest.mark.parametrize(
    ("runs", "budget", "seconds", "waits"),
    [
        pytest.param(
            {point(1): [done(100, 60), WAITING], point(2): [done(180, 40), WAITING, WAITING]},
            *(None, 60 + 2 * 40, False),
            id="one after the other, as long as others of their point",
        ),
        pytest.param({point(1): [running(5, 10, elapsed=100)]}, None, 100, False, id="by its pace"),
        pytest.param({point(1): [running(0, 10, elapsed=100)]}, None, None, False, id="no pace yet"),
        # 5 % in 60 seconds: 15 % are to come
        pytest.param(
            {point(1): [reported_first(running(85, 100, elapsed=70), step=80, seconds_ago=60)]},
            *(None, 180, False),
            id="by the pace since it was resumed",
        ),
        pytest.param(
            {point(1): [reported_first(running(85, 100, elapsed=70), step=84, seconds_ago=60)]},
            *(None, None, False),
            id="no pace since it was resumed",
        ),
        # 20 % in 20 seconds after a start of 60; the other run has both before it
        pytest.param(
            {point(1): [reported_first(running(2, 10, elapsed=80), step=0, seconds_ago=20), WAITING]},
            *(None, 80 + 160, False),
            id="the start of a run is no part of its pace",
        ),
        pytest.param({point(1): [RESUMED, WAITING]}, None, 60, False, id="all jobs of a run"),
        pytest.param(
            {point(1): [RESUMED, done(100, 40), WAITING]}, None, 40, False, id="runs of one job if there are"
        ),
        pytest.param(
            {point(2): [done(100, 60)], point(1): [WAITING]}, None, 120, False, id="fewer devices take longer"
        ),
        pytest.param(
            {point(2): [done(100, 60)], point(8): [WAITING]}, None, 60, False, id="more devices as long"
        ),
        pytest.param(ON_CLUSTER, 4, 50 + 100 + 100, True, id="one at a time in the budget"),
        pytest.param(ON_CLUSTER, 8, 50 + 100, True, id="two at a time in the budget"),
        pytest.param(
            {point(1): [done(100, 60), queued(NOW + 1000)]}, 4, 1060, False, id="when Slurm expects it"
        ),
        pytest.param(
            {point(1): [done(100, 60), queued(NOW - 1000)]}, 4, 60, True, id="after Slurm expected it"
        ),
        pytest.param({point(1): [done(100, 60), QUEUED]}, 4, 60, True, id="no start known"),
    ],
)
def test_the_end_follows_from_the_pace_of_runs_and_from_what_may_run_at_once(
    runs: dict[WatchedPoint, list[RunStatus]], budget: int | None, seconds: float | None, waits: bool
) -> None:
    found = forecast(status_of(runs, budget=budget))

    assert found.ends == (None if seconds is None else pytest.approx(NOW + seconds))
    assert found.waits is waits


def test_device_hours_are_those_of_all_jobs_as_billed() -> None:
    found = forecast(
        status_of(
            {
                point(1, billed=4): [done(100, 60), FAILED, running(5, 10, elapsed=100)],
                point(2): [done(180, 40), WAITING, WAITING],
            }
        )
    )

    assert found.spent == pytest.approx((4 * (60 + 30 + 100) + 2 * 40) / 3600)
    assert found.to_go == pytest.approx((4 * 100 + 2 * 2 * 40) / 3600)


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
    expected = ratio_of(Sample.of(above), Sample.of(below))
    assert expected is not None
    found = ratio(tuple(above), tuple(below))

    for mine, theirs in zip(
        (found.estimate, found.low, found.high),
        (expected.interval().estimate, expected.interval().low, expected.interval().high),
        strict=True,
    ):
        assert mine == pytest.approx(theirs, rel=1e-6, nan_ok=True)
    assert found.n == expected.interval().n


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
    ("runs", "expected"),
    [
        ({1: [OUT_OF_MEMORY, DIVERGED], 2: [done(200)], 4: [done(380)]}, 2),
        ({1: [OUT_OF_MEMORY, FAILED], 2: [done(200)]}, 1),
        ({1: [OUT_OF_MEMORY, done(100)], 2: [done(200)]}, 1),
        ({1: [OUT_OF_MEMORY], 2: [DIVERGED]}, 1),
    ],
)
def test_the_baseline_is_that_of_the_tables(runs: dict[int, list[RunStatus]], expected: int) -> None:
    assert conditions.NEVER_MORE == NEVER_MORE
    status = status_of({point(devices): repeats for devices, repeats in runs.items()})
    assert baseline_of(status.points).point.devices == expected


def test_devices_that_have_too_little_memory_keep_no_speedup_from_the_others() -> None:
    runs = {point(1): [OUT_OF_MEMORY] * 2, point(2): [done(200)], point(4): [done(380)]}
    (found,) = speedups(status_of(runs).points)
    assert (found.point, found.baseline) == (point(4), 2)
