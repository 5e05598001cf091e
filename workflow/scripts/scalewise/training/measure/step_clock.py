"""Times of a rank's steps. Pure arithmetic: the timer is passed in, so tests need neither clock nor device.

The device is synchronised at the edges of a window only. A window ends with the warm-up, with the
epoch, and after ``WINDOW_STEPS`` steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic

from scalewise.records import Window
from scalewise.training.measure.device_timers import DeviceTimer, Mark
from scalewise.training.measure.throughput import WINDOW_STEPS


class StepClock(Generic[Mark]):
    """Times the steps of one rank.

    Args:
        timer: The clock of the device.
        warmup_steps: Number of first steps that no throughput counts.
        tries_sizes: Whether the first step of each size tries algorithms, as cuDNN does. It then warms up
            too, unless there is no warm-up.
    """

    def __init__(self, timer: DeviceTimer[Mark], warmup_steps: int, *, tries_sizes: bool = False) -> None:
        self._timer = timer
        self._warmup_steps = warmup_steps
        self._tries_sizes = tries_sizes and warmup_steps > 0
        self._sizes: set[int] = set()
        self._tries = False
        """Whether the step at hand is the first of its size, after the warm-up."""
        self._warm_from = warmup_steps
        self._steps = 0
        self._window_start = 0.0
        self._samples = 0
        self._marks: list[tuple[Mark, Mark]] = []
        self._step_start: Mark | None = None
        self._load_start: Mark | None = None
        self._loads: list[tuple[Mark, Mark]] = []
        """Begin and end of each wait for a batch, of the steps whose marks have not been read."""
        self.windows: list[Window] = []
        self.step_seconds: list[float] = []
        """Device time of each measured step."""
        self.loader_wait_seconds = 0.0
        """Device time that passed while the rank loaded its batches, over the measured steps.

        The host may wait longer, while the device still has work.
        """
        self.first_step_seconds = 0.0
        self.tried_steps = 0
        """Number of steps after the warm-up that tried algorithms."""
        self.left_out: list[str] = []
        """A reason for each time that measured steps were left out."""

    @property
    def phase(self) -> str:
        """Phase of the next step, ``warm-up`` or ``train``."""
        return "warm-up" if self._steps < self._warm_from else "train"

    @property
    def is_between_windows(self) -> bool:
        """Whether a call of ``open_window`` now leaves no step out."""
        return not self._marks

    def open_window(self) -> None:
        """Start a window at the beginning of an epoch."""
        self._timer.synchronize()
        self._window_start = self._timer.now()

    def begin_step(self, samples: int) -> None:
        """Mark the begin of a step, before its first batch is loaded.

        Args:
            samples: Number of samples over all ranks.
        """
        if self._tries_sizes and samples not in self._sizes and self._steps >= self._warm_from:
            self._begin_alone()
            self._tries = True
            self.tried_steps += 1
        self._sizes.add(samples)
        self._step_start = self._timer.record()

    def _begin_alone(self) -> None:
        """End the window before a step that has one of its own."""
        self.close_window()
        self._window_start = self._timer.now()

    def begin_load(self) -> None:
        """Begin to count the wait for a batch."""
        self._load_start = self._timer.record()

    def loaded(self) -> None:
        """End the wait for a batch."""
        assert self._load_start is not None
        self._loads.append((self._load_start, self._timer.record()))

    def end_step(self, samples: int) -> None:
        """Mark the end of a step, after its update.

        Args:
            samples: Number of samples over all ranks.
        """
        assert self._step_start is not None
        self._marks.append((self._step_start, self._timer.record()))
        self._samples += samples
        self._steps += 1
        if self._tries or self._steps == self._warm_from or len(self._marks) == WINDOW_STEPS:
            self.close_window()
            self._window_start = self._timer.now()

    def close_window(self) -> None:
        """End the window; one without steps leaves no trace."""
        if not self._marks:
            return
        self._timer.synchronize()
        seconds = self._timer.now() - self._window_start
        first = self._steps - len(self._marks)
        warmup = first < self._warm_from or self._tries
        durations = [self._timer.seconds(start, end) for start, end in self._marks]
        if first == 0:
            self.first_step_seconds = durations[0]
        if not warmup:
            self.step_seconds.extend(durations)
            self.loader_wait_seconds += sum(self._timer.seconds(start, end) for start, end in self._loads)
        self.windows.append(
            Window(
                first_step=first,
                steps=len(self._marks),
                samples=self._samples,
                seconds=seconds,
                warmup=warmup,
            )
        )
        self._marks, self._loads, self._samples, self._tries = [], [], 0, False

    def state(self) -> dict[str, Any]:
        """Return all that was timed up to the edge of a window, as plain values."""
        assert not self._marks, "a window is open"
        return {
            "steps": self._steps,
            "windows": [window.model_dump() for window in self.windows],
            "step_seconds": list(self.step_seconds),
            "loader_wait_seconds": self.loader_wait_seconds,
            "first_step_seconds": self.first_step_seconds,
            "left_out": list(self.left_out),
            "tried_steps": self.tried_steps,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; the first steps from here on warm up, as the first of all did."""
        self._steps = state["steps"]
        self._warm_from = self._steps + self._warmup_steps
        self.windows = [Window(**window) for window in state["windows"]]
        self.step_seconds = list(state["step_seconds"])
        self.loader_wait_seconds = state["loader_wait_seconds"]
        self.first_step_seconds = state["first_step_seconds"]
        self.left_out = list(state["left_out"])
        self.tried_steps = state.get("tried_steps", 0)

    def leave_out(self, why: str) -> None:
        """Measure none of the steps timed so far, as if all had warmed up; the records give the reason."""
        self.windows = [window.model_copy(update={"warmup": True}) for window in self.windows]
        self.step_seconds = []
        self.loader_wait_seconds = 0.0
        self.tried_steps = 0
        self.left_out.append(why)
