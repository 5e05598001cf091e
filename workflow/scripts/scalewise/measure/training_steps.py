"""Steps of the training, of a program that may have several optimizers. Pure bookkeeping.

One optimizer leads, and its steps end those of the training: the one with the most parameters of modules
among those of the first updates, or the one that the user names. So a step of a GAN holds both updates, and
an optimizer of an attack, or of a single parameter, makes no step of the training. The leader stays: only if
the program drops it, the next one of its class leads.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

FIRST_UPDATES = 20
"""Most updates of modules until an optimizer leads."""

MOST_UPDATES = 200
"""The same with updates of other tensors, as of an attack that makes many for each one of the model."""

PATIENCE = 100
"""Least updates of others after which the leader no longer steps."""

KEPT_FLAGS = 100
"""Flags of skipped updates that wait on their device, before they are added up there."""

Part = TypeVar("Part")


class SteppedOptimizer:
    """An optimizer that has made updates or may make some, which the program may drop at any time.

    Args:
        optimizer: The optimizer.
        weight: Number of parameters of modules that it updates.
        is_late: Whether the program made it after the first update of all.
    """

    __slots__ = ("is_late", "name", "reference", "updates", "weight")

    def __init__(self, optimizer: Optimizer, weight: int, *, is_late: bool) -> None:
        self.name = type(optimizer).__name__
        self.reference = weakref.ref(optimizer)
        self.weight, self.is_late = weight, is_late
        self.updates = 0
        """Updates, those that a scaler has skipped among them."""


class TrainingSteps(Generic[Part]):
    """Joins the updates of all optimizers, the parts, into the steps of the training.

    Args:
        named: Class of the optimizer that the user names; None for the one with the most parameters.
    """

    def __init__(self, named: str | None = None) -> None:
        self._named = named
        self.leader: SteppedOptimizer | None = None
        self.calls = 0
        """Times that an optimizer ended a step, also within one of another optimizer."""
        self.misses_named = False
        """True if another optimizer leads than the one that the user names."""
        self._all: dict[int, SteppedOptimizer] = {}
        self._of_modules: set[int] = set()
        self._stepping: list[weakref.ref[Optimizer]] = []
        self._parts: list[tuple[SteppedOptimizer, Part]] = []
        """Updates before there is a leader."""
        self.others = 0
        """Updates of others since the last one of the leader."""
        self._names: dict[str, None] = {}
        self._usual = 0
        """Most updates of others between two of the leader."""

    def register(self, optimizers: Iterable[Optimizer], modules: Iterable[nn.Module]) -> None:
        """Add the optimizers and modules that exist at the first update of all."""
        for module in modules:
            self._of_modules.update(id(parameter) for parameter in module.parameters(recurse=False))
        for optimizer in optimizers:
            if hasattr(optimizer, "param_groups"):  # not one that is still being made
                self._add(optimizer, is_late=False)

    def heaviest(self, optimizer: Optimizer) -> Optimizer:
        """Return the optimizer that will lead if it steps; of equals the given one."""
        first = self.entry(optimizer)
        found = max((first, *self._all.values()), key=self._rank).reference()
        return optimizer if found is None else found

    @property
    def is_stepping(self) -> bool:
        """True within a step, as in a closure."""
        return bool(self._stepping)

    @property
    def has_ceased(self) -> bool:
        """True just as it is clear that the leader no longer steps."""
        return self.leader is not None and self.others == max(PATIENCE, 2 * self._usual) + 1

    def begin_step(self, optimizer: Optimizer) -> None:
        """Note that an optimizer begins a step, maybe within another one's."""
        if self._stepping:
            # an earlier step of this one has raised, or of one that the program has dropped since
            known = [each() for each in self._stepping]
            ends = [place for place, each in enumerate(known) if each is None or each is optimizer]
            if ends:
                del self._stepping[ends[0] :]
        self._stepping.append(weakref.ref(optimizer))

    def end_step(self) -> bool:
        """Note the end of a step; false within a step of another one, which has yet to end."""
        self.calls += 1
        if self._stepping:
            self._stepping.pop()
        return not self._stepping

    def after(self, optimizer: Optimizer, cut: Callable[[], Part]) -> list[list[Part]]:
        """Return the parts of each step of the training that an update ends.

        Args:
            optimizer: The optimizer whose update was made, or skipped by a scaler.
            cut: Ends a part here; if it is not called, the part continues.
        """
        leader = self.leader
        if leader is not None and leader.reference() is optimizer:
            leader.updates += 1
            if self.others:
                self._usual, self.others = max(self._usual, self.others), 0
            return [[cut()]]
        entry = self.entry(optimizer)
        entry.updates += 1
        self._names[entry.name] = None
        if leader is None:
            self._parts.append((entry, cut()))
            return self._choose()
        if leader.reference() is None and self._replaces(entry, leader):
            self.leader, self.others = entry, 0
            return [[cut()]]
        self.others += 1
        return []

    def _choose(self) -> list[list[Part]]:
        """Choose the leader, if it can be known, and return the parts up to its last step."""
        stepped = [entry for entry, _ in self._parts]
        # one that is gone makes no further step
        heaviest = max(
            [entry for entry in stepped if entry.reference() is not None] or stepped, key=self._rank
        )
        self.misses_named = self._named not in (None, heaviest.name)
        heavier_comes = self.misses_named or any(
            self._rank(each) > self._rank(heaviest) and each.reference() is not None
            for each in self._all.values()
        )
        looked = sum(bool(entry.weight) for entry in stepped) >= FIRST_UPDATES or len(stepped) >= MOST_UPDATES
        if looked and self.misses_named and self._named_may_step():
            # a later phase of the training is to be measured: the present one is no part of it
            self._parts.clear()
            return []
        if heavier_comes and not looked:
            return []
        self.leader = heaviest
        steps: list[list[Part]] = [[]]
        for entry, part in self._parts:
            steps[-1].append(part)
            if entry is heaviest:
                steps.append([])
        self.others = len(steps.pop())
        self._usual = max(len(step) - 1 for step in steps)
        self._parts.clear()
        return steps

    def _named_may_step(self) -> bool:
        """Return whether an optimizer of the class that the user names exists."""
        return any(each.name == self._named and each.reference() is not None for each in self._all.values())

    def _rank(self, entry: SteppedOptimizer) -> tuple[bool, int]:
        return entry.name == self._named, entry.weight

    @staticmethod
    def _replaces(entry: SteppedOptimizer, leader: SteppedOptimizer) -> bool:
        """Return whether an optimizer is the leader made again, as some programs do in each epoch."""
        return entry.name == leader.name and bool(entry.weight) == bool(leader.weight)

    def entry(self, optimizer: Optimizer) -> SteppedOptimizer:
        """Return the entry of an optimizer; create it if there is none."""
        known = self._all.get(id(optimizer))
        # Python gives the identity of an object that is gone to another one
        return known if known is not None and known.reference() is optimizer else self._add(optimizer)

    def _add(self, optimizer: Optimizer, *, is_late: bool = True) -> SteppedOptimizer:
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        weight = sum(each.numel() for each in parameters if id(each) in self._of_modules)
        added = self._all[id(optimizer)] = SteppedOptimizer(optimizer, weight, is_late=is_late)
        return added

    def of_training(self) -> list[Optimizer]:
        """Return those that update the trained model and still exist, not those of an attack or a copy."""
        leader = self.leader
        found = [
            known.reference()
            for known in self._all.values()
            if known is leader
            or (known.updates and not known.is_late and (known.weight or leader is None or not leader.weight))
        ]
        return [optimizer for optimizer in found if optimizer is not None]

    def names(self) -> list[str]:
        """Return the classes of the optimizers that made updates, each once."""
        return list(self._names)


class SkippedUpdates:
    """Number of the training's updates that a gradient scaler has skipped."""

    def __init__(self) -> None:
        self.on_host = 0
        self._flags: list[torch.Tensor] = []
        """One of each step: it is not 0 if the device skipped the update."""
        self._on_device: list[torch.Tensor] = []

    def add_flags(self, flags: Sequence[torch.Tensor]) -> None:
        """Keep a scaler's flag of each device in a step, unread: reading would wait for the devices."""
        if flags:
            on_one = [each.to(flags[0].device, non_blocking=True) for each in flags]
            self._flags.append(on_one[0] if len(on_one) == 1 else torch.stack(on_one).sum())
        if len(self._flags) >= KEPT_FLAGS:
            self._on_device.append(torch.stack(self._flags).count_nonzero())
            self._flags = []

    def count(self) -> int:
        """Return their number; waits for the device."""
        return self.on_host + sum(map(bool, self._flags)) + sum(map(int, self._on_device))
