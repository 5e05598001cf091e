"""The optimizers of a process, and by the steps of which one its training is counted."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer


class SteppedOptimizer:
    """An optimizer that has made steps, which the program may drop at any time."""

    __slots__ = ("name", "reference", "steps")

    def __init__(self, optimizer: Optimizer) -> None:
        self.name = type(optimizer).__name__
        self.reference = weakref.ref(optimizer)
        self.steps = 0


class CountedOptimizers:
    """Steps of all optimizers; those of the first one are the training's.

    Of a GAN, two updates make a step; of an optimizer for each parameter, as many as it has parameters.
    """

    def __init__(self) -> None:
        self.begin_process()

    def begin_process(self) -> None:
        """Forget all, in a process that was forked."""
        self.skipped = 0
        """Steps of the training whose update a scaler has skipped."""
        self._all: dict[int, SteppedOptimizer] = {}
        self._stepping: list[int] = []
        self._leader: int | None = None
        self._idle = 0

    def __bool__(self) -> bool:
        return bool(self._all)

    def begins(self, optimizer: Optimizer, *_given: object) -> None:
        """Note that an optimizer begins a step, maybe within another one's."""
        key = id(optimizer)
        if key in self._stepping:  # an earlier step of it has raised
            del self._stepping[self._stepping.index(key) :]
        self._stepping.append(key)

    def ends(self, optimizer: Optimizer) -> bool:
        """Count a step of an optimizer; true if it ends one of the training."""
        if self._stepping:
            self._stepping.pop()
            if self._stepping:  # within ZeroRedundancyOptimizer's, which has yet to hand out what it updates
                return False
        key = id(optimizer)
        stepped = self._all.get(key) or self._begin(optimizer)
        stepped.steps += 1
        if key != self._leader and not self._takes_over(key):
            return False
        self._idle = 0
        return True

    def skips(self, optimizer: Optimizer) -> bool:
        """Note that a scaler skipped an update, as gradients were not finite; true as above."""
        key = id(optimizer)
        if key not in self._all:
            self._begin(optimizer)
        if key != self._leader and not self._takes_over(key):
            return False
        self._idle = 0
        self.skipped += 1
        return True

    def steps_of(self, optimizer: Optimizer) -> int:
        """Number of steps of an optimizer, without those that a scaler has skipped."""
        stepped = self._all.get(id(optimizer))
        return stepped.steps if stepped is not None else 0

    def alive(self) -> list[Optimizer]:
        """Those that the program still has."""
        optimizers = [stepped.reference() for stepped in self._all.values()]
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def record(self) -> list[dict[str, Any]]:
        """Names and steps, in the order of their first steps, as JSON values."""
        return [{"name": stepped.name, "steps": stepped.steps} for stepped in self._all.values()]

    def _begin(self, optimizer: Optimizer) -> SteppedOptimizer:
        stepped = self._all[id(optimizer)] = SteppedOptimizer(optimizer)
        if self._leader is None:
            self._leader = id(optimizer)
        return stepped

    def _takes_over(self, key: int) -> bool:
        """Whether another optimizer counts the training from here on, as its own makes no more steps."""
        self._idle += 1
        if self._idle <= 2 * len(self._all):
            return False
        self._leader = key
        return True
