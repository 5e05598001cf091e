"""Small windows by the device's own marks, for which it is not stopped, and a warm-up that may end later."""

from __future__ import annotations

import pytest
from tests.unit.training.test_step_clock import LOADING, FakeTimeline, shapes

from scalewise.training.early_end import EarlyEnd
from scalewise.training.measure.interval_clock import IntervalClock
from scalewise.training.measure.throughput import throughput


class Training:
    """Steps of 10 samples whose batches take 0.1 s of host and device to load."""

    def __init__(self, warmup_steps: int, *, tries_sizes: bool = False) -> None:
        self.timeline = FakeTimeline()
        self.clock = IntervalClock(self.timeline, warmup_steps, 5, tries_sizes=tries_sizes)

    def steps(self, *milliseconds: int, samples: int = 10) -> None:
        for each in milliseconds:
            self.clock.begin_step(samples)
            self.clock.begin_load()
            self.timeline.host_seconds += 0.1
            self.timeline.device_milliseconds += LOADING
            self.clock.loaded()
            self.timeline.device_milliseconds += each - LOADING
            self.timeline.pending_seconds += each / 1000
            self.timeline.steps_done += 1
            self.clock.end_step(samples)

    def epoch(self, *milliseconds: int) -> None:
        self.clock.open_window()
        self.steps(*milliseconds)
        self.clock.close_window()

    def pause(self, milliseconds: int) -> None:
        self.timeline.device_milliseconds += milliseconds


def test_the_device_is_stopped_at_the_edges_of_epochs_alone() -> None:
    run = Training(warmup_steps=2)
    run.epoch(*[100] * 33)
    assert run.timeline.synchronized_after == [0, 33]
    # each mark that is waited for lies a whole window behind
    assert run.timeline.waited_for == [500, 1000, 1500, 2000, 2500]


def test_windows_of_five_steps_follow_the_warm_up_over_the_edges_of_epochs() -> None:
    run = Training(warmup_steps=7)
    for _ in range(4):
        run.epoch(*[100] * 6)
        run.pause(60_000)
    assert run.clock.conclude(0) == 0
    assert shapes(run.clock) == [(0, 7, True), (7, 5, False), (12, 5, False), (17, 5, False), (22, 2, False)]
    assert [window.seconds for window in run.clock.windows] == pytest.approx([0.7, 0.5, 0.5, 0.5, 0.2])
    assert throughput(run.clock.windows) == pytest.approx(100.0)
    assert run.clock.loader_wait_seconds == pytest.approx(17 * 0.1)
    assert run.clock.values() == pytest.approx([0.01] * 3)


def test_a_step_lasts_from_the_end_of_the_one_before_to_its_own() -> None:
    run = Training(warmup_steps=0)
    run.clock.open_window()
    for _ in range(5):
        run.steps(100)
        run.pause(20)
    run.clock.close_window()
    (window,) = run.clock.windows
    # nothing lies before the first
    assert window.seconds == pytest.approx(0.58)
    assert run.clock.step_seconds == pytest.approx([0.1] * 5)


def test_what_turns_out_to_warm_up_is_taken_from_all_figures() -> None:
    run = Training(warmup_steps=2)
    run.epoch(3000, 900, *[500] * 10, *[100] * 12)
    assert run.clock.whole_windows == 4
    assert run.clock.conclude(2) == 10
    assert shapes(run.clock) == [
        *[(0, 2, True), (2, 5, True), (7, 5, True)],
        *[(12, 5, False), (17, 5, False), (22, 2, False)],
    ]
    assert run.clock.step_seconds == pytest.approx([0.1] * 12)
    assert run.clock.loader_wait_seconds == pytest.approx(12 * 0.1)
    assert run.clock.first_step_seconds == 3.0


def test_the_first_step_of_a_size_warms_up_in_a_window_of_its_own() -> None:
    run = Training(warmup_steps=2, tries_sizes=True)
    for last in (900, 50):
        run.clock.open_window()
        run.steps(*[100] * 9)
        run.steps(last, samples=4)
        run.clock.close_window()
    run.clock.conclude(0)
    assert shapes(run.clock) == [
        *[(0, 2, True), (2, 5, False), (7, 2, False), (9, 1, True)],
        *[(10, 5, False), (15, 5, False)],
    ]
    assert [window.seconds for window in run.clock.windows] == pytest.approx([0.2, 0.5, 0.2, 0.9, 0.5, 0.45])
    assert len(run.clock.values()) == 3, "a window is whole or of no use"
    assert run.clock.loader_wait_seconds == pytest.approx(17 * 0.1)


def test_a_clock_goes_on_from_what_another_has_timed() -> None:
    first, whole = Training(warmup_steps=2), Training(warmup_steps=2)
    first.epoch(*[100] * 10)
    later = Training(warmup_steps=2)
    later.clock.resume(first.clock.state())
    later.epoch(*[200] * 9)
    assert later.clock.conclude(0) == 0
    assert shapes(later.clock) == [
        *[(0, 2, True), (2, 5, False), (7, 3, False)],
        *[(10, 2, True), (12, 5, False), (17, 2, False)],
    ]
    assert later.clock.values() == pytest.approx([0.01, 0.02])
    assert later.clock.step_seconds == pytest.approx([0.1] * 8 + [0.2] * 7)
    # cut off within its warm-up
    whole.epoch(100)
    again = Training(warmup_steps=2)
    again.clock.resume(whole.clock.state())
    again.epoch(*[100] * 7)
    assert again.clock.conclude(1) == 5
    assert shapes(again.clock) == [(0, 1, True), (1, 2, True), (3, 5, True)]


def test_what_is_left_out_is_in_no_figure() -> None:
    run = Training(warmup_steps=2)
    run.epoch(*[100] * 10)
    later = Training(warmup_steps=2)
    later.clock.resume(run.clock.state())
    later.clock.leave_out("why")
    later.epoch(*[200] * 7)
    assert later.clock.conclude(0) == 0
    assert later.clock.values() == pytest.approx([0.02])
    assert later.clock.step_seconds == pytest.approx([0.2] * 5)
    assert [window.warmup for window in later.clock.windows] == [True, True, True, True, False]


def trained(most: int, until_interval: float, times: list[int]) -> tuple[Training, EarlyEnd, int]:
    """A training to its early end, or through all its times."""
    run = Training(warmup_steps=5)
    early_end = EarlyEnd(most, until_interval, run.clock, 1, 60)
    run.clock.open_window()
    for done, milliseconds in enumerate(times, 1):
        run.steps(milliseconds)
        if done < len(times) and early_end.after_step():
            break
    run.clock.close_window()
    return run, early_end, done


def test_a_steady_training_ends_at_the_first_look_one_window_after_those_it_rests_on() -> None:
    run, early_end, done = trained(500, 0.01, [100 + index % 3 for index in range(505)])
    own = early_end.conclude(5)
    assert done == 5 + 21 * 5
    assert (own.ended, own.windows, own.warmup_steps, own.steady) == ("interval", 20, 5, True)
    assert own.half_width_fraction is not None
    assert own.half_width_fraction < 0.01
    assert sum(window.steps for window in run.clock.windows if not window.warmup) == 105


def test_a_training_that_compiles_again_warms_up_for_longer() -> None:
    times = [100 + index % 3 + (2000 if index == 20 else 0) for index in range(505)]
    run, early_end, done = trained(500, 0.01, times)
    own = early_end.conclude(5)
    assert own.ended == "interval"
    assert 21 <= own.warmup_steps <= 30
    assert own.warmup_steps + 100 < done < 505
    assert max(run.clock.step_seconds) < 0.2


def test_a_noisy_training_makes_all_its_steps_and_says_what_it_reached() -> None:
    times = [50 if index % 7 else 900 for index in range(205)]
    _, early_end, done = trained(200, 0.01, times)
    own = early_end.conclude(5)
    assert (own.ended, done) == ("steps", 205)
    assert own.half_width_fraction is not None
    assert own.half_width_fraction > 0.01
