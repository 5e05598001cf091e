"""Throughput that can be defended: what is timed, what is left out, and when the device is stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from scalewise.records import Window
from scalewise.training.measure.step_clock import StepClock
from scalewise.training.measure.throughput import WINDOW_STEPS, quantile, slowest, throughput

LOADING = 100
"""Milliseconds of the device while a batch is loaded."""


@dataclass
class FakeTimeline:
    """A device that runs behind its host: marks are its own milliseconds, work waits to be awaited."""

    host_seconds: float = 100.0
    device_milliseconds: int = 0
    pending_seconds: float = 0.0
    steps_done: int = 0
    synchronized_after: list[int] = field(default_factory=list)
    waited_for: list[int] = field(default_factory=list)

    def record(self) -> int:
        return self.device_milliseconds

    def synchronize(self) -> None:
        self.synchronized_after.append(self.steps_done)
        self.host_seconds += self.pending_seconds
        self.pending_seconds = 0.0

    def wait(self, mark: int) -> None:
        self.waited_for.append(mark)

    def seconds(self, start: int, end: int) -> float:
        return (end - start) / 1000

    def now(self) -> float:
        return self.host_seconds


@dataclass
class Training:
    """Steps of 10 samples: a batch takes host and device 0.1 s to load, a whole step the device 0.4 s."""

    timeline: FakeTimeline
    clock: StepClock[int]

    def epoch(self, steps: int, device_milliseconds: int = 400, *, last: int | None = None) -> None:
        self.clock.open_window()
        for _ in range(steps):
            self.step(device_milliseconds)
        if last is not None:
            self.step(samples=last)
        self.clock.close_window()

    def step(
        self, device_milliseconds: int = 400, *, samples: int = 10, host_milliseconds: int = LOADING
    ) -> None:
        self.clock.begin_step(samples)
        self.clock.begin_load()
        self.timeline.host_seconds += host_milliseconds / 1000
        self.timeline.device_milliseconds += LOADING
        self.clock.loaded()
        self.timeline.device_milliseconds += device_milliseconds - LOADING
        self.timeline.pending_seconds += device_milliseconds / 1000
        self.timeline.steps_done += 1
        self.clock.end_step(samples)


def training(warmup_steps: int, *, tries_sizes: bool = False) -> Training:
    timeline = FakeTimeline()
    return Training(timeline, StepClock(timeline, warmup_steps, tries_sizes=tries_sizes))


def shapes(clock: StepClock[int]) -> list[tuple[int, int, bool]]:
    return [(window.first_step, window.steps, window.warmup) for window in clock.windows]


def window(samples: int, seconds: float, warmup: bool = False) -> Window:
    return Window(first_step=0, steps=1, samples=samples, seconds=seconds, warmup=warmup)


def test_a_window_ends_with_the_warm_up_with_the_epoch_and_after_its_steps() -> None:
    run = training(warmup_steps=2)
    run.epoch(2 + WINDOW_STEPS + 7)
    run.epoch(3)
    assert shapes(run.clock) == [(0, 2, True), (2, 50, False), (52, 7, False), (59, 3, False)]


def test_the_device_is_stopped_at_window_edges_and_never_for_a_step() -> None:
    run = training(warmup_steps=2)
    run.epoch(2 + WINDOW_STEPS + 7)
    run.epoch(3)
    assert run.timeline.synchronized_after == [0, 2, 52, 59, 59, 62]


def test_a_warm_up_longer_than_an_epoch_reaches_into_the_next() -> None:
    run = training(warmup_steps=5)
    run.epoch(3)
    run.epoch(4)
    assert shapes(run.clock) == [(0, 3, True), (3, 2, True), (5, 2, False)]
    assert len(run.clock.step_seconds) == 2


def test_without_warm_up_every_step_is_measured() -> None:
    run = training(warmup_steps=0)
    run.epoch(3)
    assert shapes(run.clock) == [(0, 3, False)]
    assert run.clock.step_seconds == [0.4, 0.4, 0.4]


def test_an_epoch_that_ends_with_a_window_leaves_no_empty_one() -> None:
    run = training(warmup_steps=0)
    run.epoch(WINDOW_STEPS)
    assert shapes(run.clock) == [(0, WINDOW_STEPS, False)]


def test_a_window_lasts_until_the_device_has_done_its_work() -> None:
    run = training(warmup_steps=1)
    run.epoch(4)
    warm, timed = run.clock.windows
    assert warm.seconds == pytest.approx(0.5)
    assert timed.seconds == pytest.approx(3 * (0.1 + 0.4))
    assert timed.samples == 30
    assert throughput(run.clock.windows) == pytest.approx(30 / 1.5)


def test_what_happens_between_epochs_is_off_the_clock() -> None:
    run = training(warmup_steps=0)
    run.epoch(2)
    run.timeline.host_seconds += 1000  # evaluation
    run.timeline.pending_seconds += 500
    run.epoch(2)
    assert [window.seconds for window in run.clock.windows] == pytest.approx([1.0, 1.0])


def test_step_times_are_the_devices_own_and_of_measured_steps_alone() -> None:
    run = training(warmup_steps=2)
    run.clock.open_window()
    for milliseconds in (3000, 900, 100, 200, 300):
        run.step(milliseconds)
    run.clock.close_window()
    assert run.clock.step_seconds == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("warmup_steps", [0, 1, 2])
def test_the_first_step_is_told_apart_whether_it_is_measured_or_not(warmup_steps: int) -> None:
    run = training(warmup_steps)
    run.clock.open_window()
    for milliseconds in (3000, 100, 100):
        run.step(milliseconds)
    run.clock.close_window()
    assert run.clock.first_step_seconds == 3.0


def test_waiting_for_the_loader_counts_in_measured_steps_alone() -> None:
    run = training(warmup_steps=2)
    run.epoch(5)
    assert run.clock.loader_wait_seconds == pytest.approx(3 * 0.1)


def test_a_host_that_waits_in_a_load_for_its_device_to_catch_up_does_not_wait_for_data() -> None:
    run = training(warmup_steps=2)
    run.clock.open_window()
    for _ in range(5):
        run.step(host_milliseconds=350)
    run.clock.close_window()
    assert run.clock.loader_wait_seconds == pytest.approx(3 * 0.1)


def test_the_first_step_of_a_size_warms_up_where_it_tries_algorithms() -> None:
    run = training(warmup_steps=2, tries_sizes=True)
    run.epoch(4, last=3)
    run.epoch(4, last=3)
    assert shapes(run.clock) == [(0, 2, True), (2, 2, False), (4, 1, True), (5, 5, False)]
    assert len(run.clock.step_seconds) == 2 + 5
    assert run.clock.loader_wait_seconds == pytest.approx(7 * 0.1)
    assert run.clock.tried_steps == 1
    later = training(warmup_steps=2, tries_sizes=True)
    later.clock.resume(run.clock.state())
    later.epoch(4, last=3)
    assert shapes(later.clock)[4:] == [(10, 2, True), (12, 2, False), (14, 1, True)], (
        "a new process tries again"
    )
    assert later.clock.tried_steps == 2


def test_a_training_without_warm_up_measures_the_first_step_of_each_size_too() -> None:
    run = training(warmup_steps=0, tries_sizes=True)
    run.epoch(2, last=3)
    assert shapes(run.clock) == [(0, 3, False)]


def test_a_clock_goes_on_from_what_another_has_timed_and_warms_up_again() -> None:
    first = training(warmup_steps=2)
    first.epoch(5)
    later = training(warmup_steps=2)
    later.clock.resume(first.clock.state())
    later.epoch(4)
    assert shapes(later.clock) == [(0, 2, True), (2, 3, False), (5, 2, True), (7, 2, False)]
    assert len(later.clock.step_seconds) == 3 + 2
    assert later.clock.loader_wait_seconds == pytest.approx(5 * 0.1)


def test_what_is_left_out_is_in_no_figure_of_the_measured_steps() -> None:
    run = training(warmup_steps=2)
    run.epoch(5)
    run.clock.leave_out("why")
    run.epoch(3)
    assert shapes(run.clock) == [(0, 2, True), (2, 3, True), (5, 3, False)]
    assert len(run.clock.step_seconds) == 3
    assert run.clock.loader_wait_seconds == pytest.approx(3 * 0.1)
    later = training(warmup_steps=2)
    later.clock.resume(run.clock.state())
    assert later.clock.left_out == ["why"]


def test_throughput_is_all_samples_over_all_seconds_not_a_mean_of_rates() -> None:
    windows = [window(9999, 0.001, warmup=True), window(100, 2.0), window(300, 3.0)]
    assert throughput(windows) == pytest.approx(80.0)  # the mean of 50 and 100 would be 75


def test_a_run_that_never_left_its_warm_up_has_no_throughput() -> None:
    assert throughput([window(100, 2.0, warmup=True)]) is None
    assert throughput([]) is None


def test_a_step_is_done_when_its_slowest_rank_has_done_it() -> None:
    first = [window(10, 1.0), window(10, 4.0)]
    second = [window(10, 2.0), window(10, 3.0)]
    assert [w.seconds for w in slowest([first, second])] == [2.0, 4.0]


def test_ranks_that_disagree_on_their_windows_are_not_joined_silently() -> None:
    with pytest.raises(ValueError, match="zip"):
        slowest([[window(10, 1.0)], [window(10, 1.0), window(10, 1.0)]])


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [
        ([5.0], 0.95, 5.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0),
        ([float(value) for value in range(1, 21)], 0.05, 1.0),
        ([float(value) for value in range(1, 21)], 0.95, 19.0),
        ([float(value) for value in range(1, 21)], 1.0, 20.0),
        ([], 0.5, 0.0),
    ],
)
def test_a_quantile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], fraction: float, expected: float
) -> None:
    assert quantile(values, fraction) == expected
