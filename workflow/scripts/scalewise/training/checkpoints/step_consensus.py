"""The ranks' common decision after a step: train on, write a checkpoint, or write one and end.

Ranks must do the same at the same step, and signals reach them at different ones. They ask each other
about once a second, on the host and by gloo also where the training uses nccl: the device's queue is
neither read nor stopped.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scalewise.training.distributed.process_group import gather

AGREE_SECONDS = 1.0
"""Rough time between two questions: one small exchange on the host is then lost among the steps."""

MAX_STEPS = 1000
"""Most steps between two questions, however short a step is."""


class StepDecision(enum.Enum):
    """The decision after a step, the same on all ranks."""

    CONTINUE = enum.auto()
    CHECKPOINT = enum.auto()
    STOP = enum.auto()


class StepConsensus:
    """Decides with the other ranks after each step; all must make it at the same place of the process group.

    Args:
        timeout_seconds: A rank waits this long for the others.
        checkpoint_seconds: Time between two checkpoints, by the clock of whichever rank is first.
        asked: Names the source of a request to end that this rank got, if any.
        now: Gives monotonic seconds.
    """

    def __init__(
        self,
        timeout_seconds: float,
        checkpoint_seconds: float,
        asked: Callable[[], str | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
        self._checkpoint_seconds = checkpoint_seconds
        self._asked, self._now = asked, now
        self._steps, self._interval = 0, 1
        self._last = self._checkpointed = now()
        self.stop_source = ""
        """Sources of the request to end, once there is a verdict to stop; the same on all ranks."""

    def after_step(self) -> StepDecision | None:
        """Decide after an optimizer step; None where the ranks do not ask each other this time."""
        self._steps += 1
        if self._steps < self._interval:
            return None
        now = self._now()
        asked = self._asked()
        due = now - self._checkpointed >= self._checkpoint_seconds
        wishes = torch.tensor(
            [float(asked is not None), float(due), (now - self._last) / self._steps], dtype=torch.float64
        )
        dist.all_reduce(wishes, dist.ReduceOp.MAX, group=self._group)
        stop, checkpoint, step_seconds = wishes.tolist()
        # from what all ranks know alike: the next question comes at the same step
        wanted = max(int(AGREE_SECONDS / max(step_seconds, 1e-9)), 1)
        # not at once: on a GPU the first steps, and those after an evaluation, are put into its queue in no
        # time, and only a full queue keeps the host at the device's pace
        self._interval = min(wanted, 2 * self._interval, MAX_STEPS)
        self._steps, self._last = 0, now
        if stop:
            self.stop_source = self._gathered(asked)
            return StepDecision.STOP
        return StepDecision.CHECKPOINT if checkpoint else StepDecision.CONTINUE

    def checkpoint_written(self) -> None:
        """Count the time to the next checkpoint from now: one has been written, or tried."""
        self._checkpointed = self._last = self._now()

    def _gathered(self, asked: str | None) -> str:
        words = gather(asked, dist.get_world_size(self._group), self._group)
        return "; ".join(dict.fromkeys(word for word in words if word is not None))
