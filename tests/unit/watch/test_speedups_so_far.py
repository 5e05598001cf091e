"""The speedups that the terminal shows are those of the tables."""

from __future__ import annotations

import pytest
from tests.unit.watch.standings import WAITING, done, point, standing_of

from scalewise.analysis.statistics.ratios import ratio_of
from scalewise.watch.speedups import ratio, speedups

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
    found = ratio(above, below)

    for mine, theirs in zip(
        (found.estimate, found.low, found.high),
        (expected.interval().estimate, expected.interval().low, expected.interval().high),
        strict=True,
    ):
        assert mine == pytest.approx(theirs, rel=1e-6)
    assert (found.n, found.confidence) == (expected.interval().n, expected.interval().confidence)


def test_single_runs_have_no_bounds() -> None:
    assert ratio([180.0], [100.0]).confidence == 0


def test_a_speedup_is_over_the_fewest_devices_of_its_own_series() -> None:
    found = {
        each.point: (each.baseline, round(each.ratio.estimate, 3), round(each.efficiency, 3))
        for each in speedups(
            standing_of(
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
