"""The optimizers of a process: their steps, and how many parameters of modules each of them updates."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

KEPT_FLAGS = 100
"""Flags of skipped updates that wait on their device, before they are added up there."""


class SteppedOptimizer:
    """An optimizer that has made steps or may make some, which the program may drop at any time.

    Args:
        optimizer: The optimizer.
        weight: Number of parameters of modules that it updates.
    """

    __slots__ = ("is_late", "is_nested", "name", "parameters", "reference", "steps", "trains", "weight")

    def __init__(self, optimizer: Optimizer, weight: int) -> None:
        self.name = type(optimizer).__name__
        self.reference = weakref.ref(optimizer)
        self.parameters = {id(parameter) for parameter in _parameters(optimizer)}
        self.weight = weight
        self.is_late = True
        """True if the program made it after the first step of all."""
        self.steps = 0
        self.trains = False
        """True if it has made a step, or a scaler has skipped one."""
        self.is_nested = False
        """True if it makes its steps within those of another optimizer."""

    @property
    def is_alive(self) -> bool:
        """True if the program still has it."""
        return self.reference() is not None


class CountedOptimizers:
    """Steps of all optimizers."""

    def __init__(self) -> None:
        self.begin_process()

    def begin_process(self) -> None:
        """Forget all, in a process that was forked."""
        self.skipped = 0
        """Steps whose update a scaler has skipped on the host."""
        self._flags: list[torch.Tensor] = []
        """One of each step: it is not 0 if the device skipped the update."""
        self._skipped_on_device: list[torch.Tensor] = []
        self._all: dict[int, SteppedOptimizer] = {}
        self._dropped: set[str] = set()
        """Names of optimizers that are gone: some programs make one for each batch."""
        self._stepping: list[weakref.ref[Optimizer]] = []
        self._of_modules: set[int] = set()

    def register(self, optimizers: Iterable[Optimizer], modules: Iterable[nn.Module]) -> None:
        """Add the optimizers and modules that exist at the first step of all."""
        for module in modules:
            self._of_modules.update(id(parameter) for parameter in module.parameters(recurse=False))
        for optimizer in optimizers:
            if hasattr(optimizer, "param_groups"):  # not one that is still being made
                entry = self.entry(optimizer)
                entry.weight, entry.is_late = self._weight(optimizer), False

    @property
    def is_stepping(self) -> bool:
        """True within a step, as in a closure."""
        return bool(self._stepping)

    def entries(self) -> Iterable[SteppedOptimizer]:
        """Return all that were there at the first step or have made one."""
        return self._all.values()

    def begin_step(self, optimizer: Optimizer, *_given: object) -> None:
        """Note that an optimizer begins a step, maybe within another one's."""
        if self._stepping:
            # an earlier step of this one has raised, or of one that the program has dropped since
            known = [each() for each in self._stepping]
            ends = [place for place, each in enumerate(known) if each is None or each is optimizer]
            if ends:
                del self._stepping[ends[0] :]
        self._stepping.append(weakref.ref(optimizer))

    def end_step(self, optimizer: Optimizer) -> SteppedOptimizer | None:
        """Note the end of a step; None within a step of another one, which has yet to end."""
        if self._stepping:
            self._stepping.pop()
        entry = self.entry(optimizer)
        if self._stepping:
            entry.is_nested = True
            return None
        entry.steps += 1
        entry.trains = True
        return entry

    def skip_step(self, optimizer: Optimizer) -> SteppedOptimizer:
        """Note that a scaler skipped an update, as gradients were not finite."""
        entry = self.entry(optimizer)
        entry.trains = True
        return entry

    def add_flags(self, flags: list[torch.Tensor]) -> None:
        """Keep a scaler's flag of each device in a step, unread: reading would wait for the devices."""
        if flags:
            on_one = [each.to(flags[0].device, non_blocking=True) for each in flags]
            self._flags.append(on_one[0] if len(on_one) == 1 else torch.stack(on_one).sum())
        if len(self._flags) >= KEPT_FLAGS:
            self._skipped_on_device.append(torch.stack(self._flags).count_nonzero())
            self._flags = []

    def count_skipped(self) -> int:
        """Return the number of steps whose update a scaler has skipped; waits for the device."""
        waiting = [bool(flag) for flag in self._flags]
        return self.skipped + sum(waiting) + sum(int(each) for each in self._skipped_on_device)

    def entry(self, optimizer: Optimizer) -> SteppedOptimizer:
        """Return the entry of an optimizer; create it if there is none."""
        known = self._all.get(id(optimizer))
        # Python gives the identity of an object that is gone to another one
        if known is None or known.reference() is not optimizer:
            if known is not None and known.steps:
                self._dropped.add(known.name)
            known = self._all[id(optimizer)] = SteppedOptimizer(optimizer, self._weight(optimizer))
        return known

    def steps_of(self, optimizer: Optimizer) -> int:
        """Return the number of steps of an optimizer, without those that a scaler has skipped."""
        known = self._all.get(id(optimizer))
        return known.steps if known is not None and known.reference() is optimizer else 0

    def of_training(self, leader: SteppedOptimizer | None) -> list[Optimizer]:
        """Return those that update the trained model and still exist, not those of an attack or a copy.

        Args:
            leader: The optimizer whose steps are those of the training; None if it is unknown yet.
        """
        found = [
            known.reference()
            for known in self._all.values()
            if known is leader
            or (known.trains and not known.is_late and (known.weight or leader is None or not leader.weight))
        ]
        return [optimizer for optimizer in found if optimizer is not None]

    def names(self) -> list[str]:
        """Return the names of the optimizers that made steps, each once."""
        stepped = [known.name for known in self._all.values() if known.steps]
        return list(dict.fromkeys([*stepped, *sorted(self._dropped)]))

    def _weight(self, optimizer: Optimizer) -> int:
        return sum(each.numel() for each in _parameters(optimizer) if id(each) in self._of_modules)


def _parameters(optimizer: Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
