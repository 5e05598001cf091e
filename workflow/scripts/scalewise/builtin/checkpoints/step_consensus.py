"""Decide on all ranks together after a step: continue, write a checkpoint, or write one and stop.

Ranks must do the same at the same step, but signals reach them at different steps. They exchange their
requests about once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from scalewise.builtin.checkpoints.host_group import HostGroup

EXCHANGE_SECONDS = 1.0
"""Rough time between two exchanges: one small exchange on the host is negligible among that many steps."""

MAX_STEPS = 1000
"""Most steps between two exchanges, however short a step is."""


StepDecision = Literal["continue", "checkpoint", "stop"]
"""The decision after a step, the same on all ranks: stop includes a checkpoint."""


class StepConsensus:
    """Decides with the other ranks after each step.

    Args:
        group: All ranks; used for nothing else.
        checkpoint_seconds: Time between two checkpoints, by the clock of the first rank that it is over for.
        stop_request: Returns the source of a request to stop that reached this rank, if any.
        now: Returns monotonic seconds.
    """

    def __init__(
        self,
        group: HostGroup,
        checkpoint_seconds: float,
        stop_request: Callable[[], str | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._checkpoint_seconds = group, checkpoint_seconds
        self._stop_request, self._now = stop_request, now
        self._steps, self._interval = 0, 1
        self._exchanged = self._checkpointed = now()
        self.stop_source = ""
        """Sources of the requests to stop, after the decision to stop; the same on all ranks."""

    def after_step(self) -> StepDecision | None:
        """Decide after an optimizer step; None if the ranks do not exchange requests after this one."""
        self._steps += 1
        if self._steps < self._interval:
            return None
        now, request = self._now(), self._stop_request()
        is_due = now - self._checkpointed >= self._checkpoint_seconds
        step_seconds = (now - self._exchanged) / self._steps
        stop, checkpoint, step_seconds = self._group.largest([request is not None, is_due, step_seconds])
        # from values that are the same on all ranks, so that all exchange after the same step
        wanted = max(int(EXCHANGE_SECONDS / max(step_seconds, 1e-9)), 1)
        # not at once: a GPU's host queues the first steps, and those after an evaluation, faster than the GPU
        # runs them; only a full queue keeps the host at the device's pace
        self._interval = min(wanted, 2 * self._interval, MAX_STEPS)
        self._steps, self._exchanged = 0, now
        if stop:
            self.stop_source = "; ".join(dict.fromkeys(filter(None, self._group.gather(request))))
            return "stop"
        return "checkpoint" if checkpoint else "continue"

    def checkpoint_written(self) -> None:
        """Count the time to the next checkpoint from now, after one was written or failed."""
        self._checkpointed = self._exchanged = self._now()
