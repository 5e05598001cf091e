"""The interval of a run's own throughput covers what it states, on planted streams of step times."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest
from scipy import stats

from scalewise.measure.run_interval import (
    FEWEST_WINDOWS,
    WINDOW_STEPS,
    Steadiness,
    assess,
    check_points,
    mean_interval,
    student_quantile,
    warmup_windows,
)
from scalewise.plan.config.settings import FEWEST_STEPS

MOST_STEPS, UNTIL = 500, 0.01
Stream = Callable[[random.Random], Iterator[float]]


def correlated(noise: float, rho: float) -> Stream:
    """Step times of mean 1 whose logarithms are an AR(1) process."""

    def stream(draw: random.Random) -> Iterator[float]:
        state = draw.gauss(0, 1)
        while True:
            yield math.exp(noise * state - noise**2 / 2)
            state = rho * state + math.sqrt(1 - rho**2) * draw.gauss(0, 1)

    return stream


def periodic(every: int, longer: float) -> Stream:
    """One step in so many is longer; the mean is 1, and the first such step comes at random."""

    def stream(draw: random.Random) -> Iterator[float]:
        phase = draw.randrange(every)
        while True:
            phase += 1
            yield (1 + longer * (phase % every == 0) + draw.gauss(0, 0.01)) / (1 + longer / every)

    return stream


def compiled(draw: random.Random) -> Iterator[float]:
    """Three steps that compile, then times that fall to 1."""
    step = 0
    while True:
        yield 1 + 5 * (step < 3) + 0.3 * math.exp(-step / 15) + draw.gauss(0, 0.01)
        step += 1


def throttled(draw: random.Random) -> Iterator[float]:
    """Clocks that fall after 60 steps."""
    step = 0
    while True:
        yield 1 - 0.05 * (step < 60) + draw.gauss(0, 0.01)
        step += 1


def ended(stream: Iterator[float]) -> tuple[Steadiness, float, int]:
    """A run: its last assessment, the mean of what it measured, and its windows."""
    values = [
        sum(next(stream) for _ in range(WINDOW_STEPS)) / WINDOW_STEPS
        for _ in range(MOST_STEPS // WINDOW_STEPS)
    ]
    for number in [*check_points(MOST_STEPS), len(values)]:
        steadiness = assess(values[:number], MOST_STEPS)
        if steadiness.is_narrow(UNTIL):
            break
    measured = values[steadiness.warmup_windows : number]
    return steadiness, sum(measured) / len(measured), number


@pytest.mark.parametrize(
    ("stream", "least"),
    [
        pytest.param(correlated(0.02, 0.0), 0.93, id="independent"),
        pytest.param(correlated(0.05, 0.0), 0.93, id="noisy"),
        pytest.param(correlated(0.02, 0.5), 0.93, id="rho 0.5"),
        pytest.param(correlated(0.05, 0.5), 0.93, id="noisy, rho 0.5"),
        pytest.param(correlated(0.01, 0.9), 0.93, id="rho 0.9"),
        pytest.param(periodic(10, 0.1), 0.93, id="every 10th step is longer"),
        pytest.param(periodic(50, 0.5), 0.93, id="every 50th step is longer"),
        pytest.param(compiled, 0.93, id="compiles first"),
        pytest.param(throttled, 0.93, id="clocks that fall"),
    ],
)
def test_the_interval_that_ends_a_run_covers_the_true_mean_as_often_as_it_states(
    stream: Stream, least: float
) -> None:
    draw = random.Random(5)
    runs = [ended(stream(draw)) for _ in range(400)]
    covered = [
        abs(mean - 1) <= steadiness.interval.half_width * mean
        for steadiness, mean, _ in runs
        if steadiness.interval is not None
    ]
    # three standard errors of 400 simulated runs
    assert len(covered) == 400
    assert sum(covered) / 400 > least - 3 * math.sqrt(least * (1 - least) / 400)


def test_runs_end_early_where_they_are_steady_and_not_where_they_are_noisy() -> None:
    draw = random.Random(5)
    quiet = [ended(correlated(0.01, 0.0)(draw))[2] for _ in range(20)]
    noisy = [ended(correlated(0.5, 0.0)(draw))[2] for _ in range(20)]
    assert set(quiet) == {FEWEST_WINDOWS}
    assert set(noisy) == {MOST_STEPS // WINDOW_STEPS}


@pytest.mark.parametrize(("stream", "least", "most"), [(compiled, 30, 100), (throttled, 55, 75)])
def test_the_warm_up_lasts_until_the_times_are_steady(stream: Stream, least: int, most: int) -> None:
    draw = random.Random(5)
    for _ in range(20):
        steadiness, _, _ = ended(stream(draw))
        assert steadiness.steady
        assert least <= steadiness.warmup_windows * WINDOW_STEPS <= most


def test_noise_alone_is_no_warm_up() -> None:
    draw = random.Random(5)
    taken = [warmup_windows([draw.gauss(1, 0.05) for _ in range(40)]) for _ in range(200)]
    assert sum(windows > 0 for windows in taken) <= 2


def test_a_run_that_changes_late_is_not_steady_and_half_of_it_is_measured_all_the_same() -> None:
    draw = random.Random(5)
    values = [1 + 0.1 * (window >= 70) + draw.gauss(0, 0.001) for window in range(100)]
    steadiness = assess(values, MOST_STEPS)
    assert not steadiness.steady
    assert not steadiness.is_narrow(0.2)
    assert steadiness.warmup_windows == 50
    assert steadiness.interval is not None
    assert steadiness.interval.windows == 50


def test_too_few_windows_have_no_interval() -> None:
    draw = random.Random(5)
    values = [draw.gauss(1, 0.001) for _ in range(FEWEST_WINDOWS - 1)]
    assert assess(values, MOST_STEPS).interval is None
    assert assess([], MOST_STEPS) == Steadiness(0, True, None)
    assert not assess(values, MOST_STEPS).is_narrow(0.2)


def test_equal_windows_have_an_interval_of_no_width() -> None:
    found = mean_interval([0.1] * FEWEST_WINDOWS)
    assert found.half_width == pytest.approx(0.0)
    assert found.windows == FEWEST_WINDOWS


def test_autocorrelated_windows_count_for_fewer() -> None:
    draw = random.Random(5)
    stream = correlated(0.02, 0.9)(draw)
    follow = mean_interval([next(stream) for _ in range(200)])
    alone = mean_interval([draw.gauss(1, 0.02) for _ in range(200)])
    assert follow.effective_windows < alone.effective_windows / 3
    assert follow.half_width > alone.half_width * 1.7


def test_checks_are_few_and_none_is_at_the_last_step() -> None:
    assert check_points(MOST_STEPS) == [20, 24, 29, 35, 42, 51, 62, 75, 90]
    assert check_points(FEWEST_STEPS) == []


def test_the_fewest_steps_of_a_plan_are_those_that_an_interval_needs() -> None:
    assert FEWEST_STEPS == FEWEST_WINDOWS * WINDOW_STEPS


@pytest.mark.parametrize("freedom", [2.0, 2.5, 3.0, 4.9, 5.0, 7.3, 19.0, 99.0])
def test_students_quantile_is_scipys(freedom: float) -> None:
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-3)
