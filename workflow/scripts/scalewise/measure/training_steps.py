"""Steps of the training of a program that has several optimizers. Pure bookkeeping.

The optimizer that updates the most parameters of modules leads: its steps end those of the training. So a
step of a GAN holds both updates, and an optimizer of an attack, of a fast copy of the model or of a single
parameter makes no step of the training. If the leader is gone or no longer steps, another one takes over, and
no step is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from .counted_optimizers import SteppedOptimizer

MOST_UNDECIDED = 200
"""Steps of optimizers after which one that has made some leads."""

PATIENCE, LONG_PATIENCE = 4, 100
"""Steps of others after which a leader no longer steps; the second where a much smaller one takes over."""

Part = TypeVar("Part")


class TrainingSteps(Generic[Part]):
    """Joins the steps of all optimizers, the parts, into those of the training."""

    def __init__(self) -> None:
        self.leader: SteppedOptimizer | None = None
        self._parts: list[tuple[SteppedOptimizer, Part]] = []
        self._others = 0
        """Steps of others since the last one of the leader."""
        self._usual = 0
        """Most steps of others between two of the leader."""

    def after(
        self, entry: SteppedOptimizer, known: Iterable[SteppedOptimizer], cut: Callable[[], Part]
    ) -> list[list[Part]]:
        """Return the parts of each step of the training that ends here.

        Args:
            entry: The optimizer that has made a step.
            known: All optimizers of the process.
            cut: Ends a part here; if it is not called, the part continues.
        """
        if self.leader is None:
            self._parts.append((entry, cut()))
            return self._choose(known)
        if entry is self.leader:
            if not self._others and not self._parts:  # as most trainings have it
                return [[cut()]]
            self._usual, self._others = max(self._usual, self._others), 0
            self._parts.append((entry, cut()))
            return self._divide(entry)
        self._others += 1
        successor = self._successor(self.leader, entry, known)
        if successor is not None or self._others > self._usual:
            self._parts.append((entry, cut()))
        if successor is None:
            return []
        self.leader, self._others = successor, 0
        return self._divide(successor)

    def _choose(self, known: Iterable[SteppedOptimizer]) -> list[list[Part]]:
        stepped = list(dict.fromkeys(entry for entry, _ in self._parts))
        heaviest = _heaviest(stepped)
        places = [place for place, (entry, _) in enumerate(self._parts) if entry is heaviest]
        if len(self._parts) < MOST_UNDECIDED and (
            _awaits(heaviest, stepped, known) or (len(stepped) > 1 and len(places) < 2)
        ):
            return []
        self.leader = heaviest
        first = places[0]
        early: list[list[Part]] = []
        if first and len(places) > 1 and places[1] == first + 1:
            # steps before it that do not come again were a training of their own, layer by layer
            rest, self._parts = self._parts[first:], self._parts[:first]
            early = self._divide(_heaviest([entry for entry, _ in self._parts]))
            self._parts += rest
        return early + self._divide(heaviest)

    def _divide(self, leader: SteppedOptimizer) -> list[list[Part]]:
        """Remove the parts up to the last step of a leader, and return them divided at each of its steps."""
        steps: list[list[Part]] = []
        begin = 0
        for place, (entry, _) in enumerate(self._parts):
            if entry is leader:
                steps.append([part for _, part in self._parts[begin : place + 1]])
                begin = place + 1
        del self._parts[:begin]
        self._usual = max([self._usual, *(len(step) - 1 for step in steps)])
        return steps

    def _successor(
        self, leader: SteppedOptimizer, entry: SteppedOptimizer, known: Iterable[SteppedOptimizer]
    ) -> SteppedOptimizer | None:
        if not leader.is_alive:
            return _heaviest([each for each in known if each.trains and each.is_alive] or [entry])
        small = entry.weight * 2 < leader.weight
        patience = max(LONG_PATIENCE if small else PATIENCE, 2 * self._usual)
        return entry if entry.weight > leader.weight or self._others > patience else None


def _heaviest(entries: Sequence[SteppedOptimizer]) -> SteppedOptimizer:
    """Return the one with the most parameters among those that are still there; of equals, the first."""
    return max(entries, key=lambda entry: (entry.is_alive, entry.weight, not entry.is_late))


def _awaits(
    heaviest: SteppedOptimizer, stepped: Sequence[SteppedOptimizer], known: Iterable[SteppedOptimizer]
) -> bool:
    """Return whether an optimizer of as many other parameters has yet to make its first step."""
    held = {parameter for entry in stepped for parameter in entry.parameters}
    return any(
        entry.weight >= max(heaviest.weight, 1)
        and not entry.trains
        and not entry.is_nested
        and entry.is_alive
        and not entry.parameters <= held  # such as what wraps another optimizer
        for entry in known
    )
