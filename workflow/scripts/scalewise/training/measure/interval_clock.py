"""Times of a rank's steps in small windows, for a run that ends once its own throughput is known.

The device is never stopped for a window: a step lasts from the end of the one before to its own end by marks
in the device's own stream, and the marks of a window are read while the device works on the next one. A
window goes on over the edge of an epoch, whose pause is in no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from scalewise.records import Window
from scalewise.training.measure.device_timers import DeviceTimer, Mark
from scalewise.training.measure.step_clock import StepClock
from scalewise.training.measure.throughput import WINDOW_STEPS


@dataclass(frozen=True, slots=True)
class _MarkedStep(Generic[Mark]):
    """A step that the device may not have done yet.

    Args:
        begin: End of the step before; after a pause, the step's own start.
        start: The begin of its first load.
        end: The end of its update.
        samples: Samples over all ranks.
        loads: Begin and end of each wait for a batch.
    """

    begin: Mark
    start: Mark
    end: Mark
    samples: int
    loads: list[tuple[Mark, Mark]]


@dataclass(frozen=True, slots=True)
class _Measured:
    """A measured window's part in the figures of the rank.

    Args:
        index: Index of the window among all.
        step_seconds: Device time of each of its steps.
        wait_seconds: Device time that passed while the rank loaded its batches.
    """

    index: int
    step_seconds: list[float]
    wait_seconds: float


class IntervalClock(StepClock[Mark]):
    """Times the steps of one rank in windows of a few measured steps each.

    Args:
        timer: The clock of the device.
        warmup_steps: Number of first steps that no throughput counts; more may follow.
        window_steps: Steps of a measured window.
        tries_sizes: Whether the first step of each size tries algorithms, and warms up for it.
    """

    def __init__(
        self, timer: DeviceTimer[Mark], warmup_steps: int, window_steps: int, *, tries_sizes: bool = False
    ) -> None:
        super().__init__(timer, warmup_steps, tries_sizes=tries_sizes)
        self._window_steps = window_steps
        self._pending: list[_MarkedStep[Mark]] = []
        self._last_end: Mark | None = None
        self._read = 0
        """Steps whose marks have been read."""
        self._open: list[tuple[float, float, int, float]] = []
        """Seconds, device seconds, samples and wait of the steps of the open window."""
        self._measured: list[_Measured] = []
        self.whole_windows = 0
        """Number of ``values``."""

    @property
    def is_between_windows(self) -> bool:
        """Whether a pause has begun: the time until the next step is in no window."""
        return self._last_end is None

    def open_window(self) -> None:
        """Go on after a pause, which is in no step."""
        self._timer.synchronize()
        self.pause()

    def pause(self) -> None:
        """Leave out what the host does between this step and the next."""
        self._last_end = None

    def _begin_alone(self) -> None:
        self.close_window()
        self._end_window()

    def end_step(self, samples: int) -> None:
        """Mark the end of a step, after its update.

        Args:
            samples: Number of samples over all ranks.
        """
        assert self._step_start is not None
        end = self._timer.record()
        begin = self._step_start if self._last_end is None else self._last_end
        self._pending.append(_MarkedStep(begin, self._step_start, end, samples, self._loads))
        self._last_end, self._loads = end, []
        self._steps += 1
        if self._tries:
            self.close_window()
            self._end_window()
            self._tries = False
            return
        if len(self._pending) >= 2 * self._window_steps:
            # the device is at work on the later half
            self._timer.wait(self._pending[self._window_steps - 1].end)
            self._read_marks(self._window_steps)

    def close_window(self) -> None:
        """Read all marks; the steps of an open window wait for the others of it."""
        if self._pending:
            self._timer.synchronize()
            self._read_marks(len(self._pending))

    def values(self) -> list[float]:
        """Seconds for a sample in each measured window that has all its steps."""
        windows = (self.windows[each.index] for each in self._measured)
        return [window.seconds / window.samples for window in windows if self._is_whole(window)]

    def conclude(self, warmup_windows: int) -> int:
        """End the last window, and count the first of ``values`` to the warm-up.

        Returns:
            Number of steps that are no longer measured.
        """
        self.close_window()
        self._end_window()
        steps = whole = 0
        while whole < warmup_windows:
            index = self._measured.pop(0).index
            window = self.windows[index]
            self.windows[index] = window.model_copy(update={"warmup": True})
            steps += window.steps
            whole += self._is_whole(window)
        self._add_up()
        return steps

    def state(self) -> dict[str, Any]:
        """Return all that was timed, as plain values."""
        assert not self._pending, "marks are not read"
        return super().state() | {
            "warm_from": self._warm_from,
            "open": [list(step) for step in self._open],
            "measured": [[each.index, each.step_seconds, each.wait_seconds] for each in self._measured],
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; the first steps from here on warm up, as the first of all did."""
        super().resume(state)
        self._measured = [_Measured(*each) for each in state["measured"]]
        self.whole_windows = len(self.values())
        self._read = self._steps
        self._open = [(seconds, device, samples, wait) for seconds, device, samples, wait in state["open"]]
        # a window that was open goes no further
        warm_from, self._warm_from = self._warm_from, state["warm_from"]
        self._end_window()
        self._warm_from = warm_from

    def leave_out(self, why: str) -> None:
        """Measure none of the steps timed so far, as if all had warmed up; the records give the reason."""
        super().leave_out(why)
        self._measured, self.whole_windows = [], 0

    def _read_marks(self, steps: int) -> None:
        """Turn the marks of the first steps, which the device has done, into seconds."""
        for step in self._pending[:steps]:
            device_seconds = self._timer.seconds(step.start, step.end)
            if not self._read:
                self.first_step_seconds = device_seconds
            seconds = self._timer.seconds(step.begin, step.end)
            waited = sum(self._timer.seconds(start, end) for start, end in step.loads)
            self._open.append((seconds, device_seconds, step.samples, waited))
            self._read += 1
            warm = self._read <= self._warm_from
            if self._read == self._warm_from or len(self._open) == (
                WINDOW_STEPS if warm else self._window_steps
            ):
                self._end_window()
        del self._pending[:steps]

    def _end_window(self) -> None:
        """Make a window of the open steps; none leave no trace."""
        if not self._open:
            return
        first = self._read - len(self._open)
        seconds, device_seconds, samples, waits = zip(*self._open, strict=True)
        window = Window(
            first_step=first,
            steps=len(self._open),
            samples=sum(samples),
            seconds=sum(seconds),
            warmup=first < self._warm_from or self._tries,
        )
        self._open = []
        self.windows.append(window)
        if not window.warmup:
            self._measured.append(_Measured(len(self.windows) - 1, list(device_seconds), sum(waits)))
            self.whole_windows += self._is_whole(window)
            self.step_seconds.extend(device_seconds)
            self.loader_wait_seconds += sum(waits)

    def _is_whole(self, window: Window) -> bool:
        return window.steps == self._window_steps

    def _add_up(self) -> None:
        self.step_seconds = [seconds for each in self._measured for seconds in each.step_seconds]
        self.loader_wait_seconds = sum(each.wait_seconds for each in self._measured)
