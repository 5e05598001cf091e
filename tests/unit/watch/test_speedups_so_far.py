"""The speedups that the terminal shows are those of the tables."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from tests.unit.watch.planted_status import FAILED, WAITING, done, point, status_of

from scalewise.analysis.comparison import comparable_runs
from scalewise.analysis.statistics.ratios import ratio_of
from scalewise.watch.speedups import NEVER_MORE, baseline_of, ratio, speedups
from scalewise.watch.status import RunStatus

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
