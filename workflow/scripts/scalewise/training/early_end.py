"""The ranks' common end of a training whose own throughput is known well enough."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scalewise.records import OwnInterval
from scalewise.training.measure.interval_clock import IntervalClock
from scalewise.training.program.probe.run_interval import Judgement, judge, looks


class EarlyEnd:
    """Looks at the ranks' windows now and then; all must make it at the same place of the process group.

    Ranks read their marks at the same steps, and so they look at the same steps, at the times of the slowest
    rank of each window: what one decides, all decide. They ask each other on the host, by gloo.

    Args:
        most_steps: Most steps beyond the warm-up.
        until_interval: Half the interval's width to reach, as a fraction of the throughput.
        clock: This rank's.
        world_size: Number of ranks.
        timeout_seconds: A rank waits this long for the others.
    """

    def __init__(
        self,
        most_steps: int,
        until_interval: float,
        clock: IntervalClock[Any],
        world_size: int,
        timeout_seconds: float,
    ) -> None:
        self._most_steps = most_steps
        self._until_interval = until_interval
        self._clock = clock
        self._group: Any = None
        if world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
        self._looks = looks(most_steps)
        self._judged: Judgement | None = None

    def after_step(self) -> bool:
        """Say after an optimizer step whether the training may end; the same on all ranks."""
        clock = self._clock
        if not self._looks or clock.whole_windows < self._looks[0]:
            return False
        self._looks = [look for look in self._looks if look > clock.whole_windows]
        judged = judge(self._slowest(clock.values()), self._most_steps)
        # what a look takes is in no step
        clock.pause()
        if not judged.is_narrow(self._until_interval):
            return False
        self._judged = judged
        return True

    def conclude(self, warmup_steps: int) -> OwnInterval:
        """Count what was not steady to the warm-up, after the last step; all ranks must call it.

        Args:
            warmup_steps: Number of first steps that warmed up whatever they were.
        """
        clock = self._clock
        clock.close_window()
        judged = self._judged or judge(self._slowest(clock.values()), self._most_steps)
        ended = "steps" if self._judged is None else "interval"
        warmup_steps += clock.conclude(judged.warmup_windows)
        return OwnInterval(**judged.record(self._until_interval, warmup_steps, ended))

    def _slowest(self, values: Sequence[float]) -> list[float]:
        if self._group is None or not values:
            return list(values)
        slowest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self._group)
        return [float(value) for value in slowest.tolist()]
