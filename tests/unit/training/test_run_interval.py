"""The interval of a run's own throughput covers what it states, and ends all ranks after one step."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scipy import stats
from tests.reliability.thoroughness import times
from torch import distributed
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.testing._internal.distributed import fake_pg

from scalewise.config.settings import FEWEST_STEPS
from scalewise.measure.early_end import KEY, EarlyEnd
from scalewise.measure.guards import Notes
from scalewise.measure.loader_iterations import Batch, LoaderIteration
from scalewise.measure.probe_spec import ProbeSpec
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
from scalewise.measure.step_flags import EVALUATION
from scalewise.measure.steps import StepRecord

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
    "stream",
    [
        pytest.param(correlated(0.02, 0.0), id="independent"),
        pytest.param(correlated(0.05, 0.0), id="noisy"),
        pytest.param(correlated(0.02, 0.5), id="rho 0.5"),
        pytest.param(correlated(0.05, 0.5), id="noisy, rho 0.5"),
        pytest.param(correlated(0.01, 0.9), id="rho 0.9"),
        pytest.param(periodic(10, 0.1), id="every 10th step is longer"),
        pytest.param(periodic(50, 0.5), id="every 50th step is longer"),
        pytest.param(compiled, id="compiles first"),
        pytest.param(throttled, id="clocks that fall"),
    ],
)
def test_the_interval_that_ends_a_run_covers_the_true_mean_as_often_as_it_states(stream: Stream) -> None:
    number = times(quick=100, thorough=4000)
    draw = random.Random(5)
    runs = [ended(stream(draw)) for _ in range(number)]
    covered = [
        abs(mean - 1) <= steadiness.interval.half_width * mean
        for steadiness, mean, _ in runs
        if steadiness.interval is not None
    ]
    assert len(covered) == number
    # less three standard errors of so many simulated runs
    assert sum(covered) / number > 0.93 - 3 * math.sqrt(0.93 * 0.07 / number)


@pytest.mark.parametrize(("stream", "least", "most"), [(compiled, 30, 100), (throttled, 55, 75)])
def test_the_warm_up_lasts_until_the_times_are_steady(stream: Stream, least: int, most: int) -> None:
    draw = random.Random(5)
    for _ in range(20):
        steadiness, _, _ = ended(stream(draw))
        assert steadiness.steady
        assert least <= steadiness.warmup_windows * WINDOW_STEPS <= most


def test_noise_is_no_warm_up() -> None:
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


def test_too_few_windows_have_no_interval_and_equal_ones_one_of_no_width() -> None:
    draw = random.Random(5)
    values = [draw.gauss(1, 0.001) for _ in range(FEWEST_WINDOWS - 1)]
    assert assess(values, MOST_STEPS).interval is None
    assert assess([], MOST_STEPS) == Steadiness(0, True, None)
    assert not assess(values, MOST_STEPS).is_narrow(0.2)
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
    assert FEWEST_STEPS == FEWEST_WINDOWS * WINDOW_STEPS


@pytest.mark.parametrize("freedom", [2.0, 2.9, 4.9, 7.3, 16.9, 99.0, 500.0])
def test_students_factor_is_never_too_small(freedom: float) -> None:
    exact = stats.t.ppf(0.975, freedom)
    assert exact * 0.999 <= student_quantile(freedom)
    assert student_quantile(freedom) <= exact * (1.1 if freedom >= 3 else 1.4)


WARMUP = 10
FEEDS = LoaderIteration(batch_size=8, workers=0)
FEEDS.add_batch(0, 0)
FEEDS.check_batches(1, directly=True)
assert FEEDS.trains
assert fake_pg  # its import registers the backend whose collectives do nothing


class Program:
    """A process whose steps take as long as is said."""

    def __init__(self, steps: int = 500, until_interval: float = 0.01) -> None:
        self.record, self.notes = StepRecord(), Notes()
        spec = ProbeSpec(Path("nowhere"), WARMUP, steps, until_interval)
        self.early_end = EarlyEnd(spec, self.record, self.notes)
        self._now = 0.0

    def step(
        self, seconds: float, flags: int = 0, samples: int | None = None, *, is_latest: bool = True
    ) -> int:
        """Make a step, with a batch of so many samples; returns how many are done."""
        self._now += seconds
        step = self.record.open
        step.flags |= flags
        if samples is not None:
            step.batches = [Batch(FEEDS, samples, self._now, self._now, is_first=False)]
        self.record.add([self.record.cut(self._now, self.record.done + 1)])
        self.early_end.after_step(self.record.done, is_latest=is_latest)
        return self.record.done

    def run(self, seconds: Callable[[int], float] = lambda step: 0.1 + step % 3 / 1000) -> int:
        """Make steps until the last one; returns how many."""
        while (done := self.step(seconds(self.record.done))) != self.early_end.last_step:
            assert done < 1000
        return done


@contextmanager
def among(rank: int, store: Store) -> Iterator[Store]:
    """A process group of two ranks, this one and none; gives its store."""
    distributed.init_process_group("fake", rank=rank, world_size=2, store=store)
    try:
        yield distributed.distributed_c10d._get_default_store()
    finally:
        distributed.destroy_process_group()


def test_a_single_process_ends_at_the_first_check_of_steady_steps() -> None:
    program = Program()
    assert program.run() == WARMUP + 21 * 5
    own = program.early_end.conclude(WARMUP + 21 * 5, "steps")
    assert (own["ended"], own["windows"], own["warmup_steps"], own["steady"]) == (
        "interval",
        20,
        WARMUP,
        True,
    )
    assert 0 < own["half_width_fraction"] <= 0.01


def test_the_smaller_last_batch_of_an_epoch_is_in_no_window() -> None:
    program, steps = Program(), 0
    while steps != program.early_end.last_step:
        last = program.record.done % 10 == 9
        # without the last ones every step takes as long
        steps = program.step(0.03 if last else 0.1, samples=3 if last else 8)
        assert steps < 1000
    own = program.early_end.conclude(steps, "steps")
    assert (own["ended"], own["warmup_steps"]) == ("interval", WARMUP)
    assert own["half_width_fraction"] == pytest.approx(0.0)


def test_batches_that_vary_are_all_in_windows() -> None:
    program = Program(until_interval=1e-9)
    for step in range(WARMUP + 200):
        program.step(0.1 + step % 3 / 1000, samples=8 + step % 5)
    program.early_end.conclude(WARMUP + 200, "itself")
    assert len(program.early_end._window_ends) == 200 // 5


def test_rank_0_leaves_the_last_step_two_windows_ahead() -> None:
    with among(0, HashStore()) as store:
        program = Program()
        while not store.check([KEY]):
            assert program.step(0.1 + program.record.done % 3 / 1000) < 200
        said = program.record.done
        assert program.run() == said + 10 == WARMUP + 21 * 5 + 10
        assert int(store.get(KEY)) == said + 10


def test_rank_0_announces_no_end_among_steps_that_it_adds_at_once() -> None:
    """The other ranks add theirs at the same time, and may have read before."""
    with among(0, HashStore()) as store:
        program = Program()
        for step in range(WARMUP + 21 * 5 + 3):
            program.step(0.1 + step % 3 / 1000, is_latest=False)
        assert not store.check([KEY])
        assert WARMUP + 21 * 5 + 10 < program.run() == int(store.get(KEY))


def test_another_rank_ends_where_rank_0_says_however_its_own_times_are() -> None:
    with among(1, HashStore()) as store:
        program = Program()
        for step in range(WARMUP + 25 * 5):
            program.step(0.1 + step % 7)
        last = WARMUP + 25 * 5 + 10
        store.set(KEY, str(last))
        assert program.run() == last


@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_is_gone_ends_nothing_and_is_reported(rank: int) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    with among(rank, client):
        del server
        gc.collect()
        program = Program()
        assert program.run() == WARMUP + 500
        assert [note.startswith("probe: early end") for note in program.notes.events][:1] == [True]


def test_steps_that_evaluate_are_in_no_window() -> None:
    program = Program()
    while (done := program.step(0.1 + program.record.done % 3 / 1000)) != program.early_end.last_step:
        if done % 25 == 0:
            program.step(7.0, EVALUATION)
    own = program.early_end.conclude(done, "steps")
    assert own["ended"] == "interval"
    # the look after the first that has its 20 windows: some steps were left out
    assert WARMUP + 21 * 5 < done <= WARMUP + 30 * 5


def test_steps_that_compile_again_prolong_the_warm_up() -> None:
    program = Program()
    done = program.run(lambda step: 3.0 if step in {12, 13, 31} else 0.1 + step % 3 / 1000)
    own = program.early_end.conclude(done, "steps")
    assert 32 <= own["warmup_steps"] <= 36
    assert own["warmup_steps"] + 100 <= done < 500


def test_a_program_that_ends_by_itself_says_what_was_reached() -> None:
    program = Program(until_interval=1e-9)
    for step in range(150):
        program.step(0.1 + step % 3 / 1000)
    own = program.early_end.conclude(150, "itself")
    assert (own["ended"], own["windows"]) == ("itself", 28)
    short = Program()
    short.step(0.1)
    assert short.early_end.conclude(1, "itself")["half_width_fraction"] is None
