"""Passes over DataLoaders: which of them feed the training, with how many samples, after how much waiting.

A pass feeds the training if work follows most of its batches: a backward pass or a step, since not all ways
to compute gradients are seen. Some loaders keep one iterator for all their passes, in validation too. Work
follows those batches in the end, but a batch of the training's loader comes first, and most steps have none
of them. Of two loaders that feed each step together, both have a batch in each.
"""

from __future__ import annotations

from typing import Any

import torch

from .batches import checksum, samples_in

CHECKED_BATCHES = 3
"""First training batches whose sums are kept."""

MOST_PASSES = 16
"""First passes that are kept, to find the one that trains among them."""


class LoaderPass:
    """A pass over a DataLoader, or all passes of one that keeps its iterator.

    Args:
        batch_size: Samples of a whole batch; None where the loader has no number of its own.
        workers: Number of the loader's processes; None if unknown.
    """

    __slots__ = (
        *("_at_once", "_followed", "_known", "_waits", "_without_gradients"),
        *("activity", "batch_size", "checksums", "first_turn", "last_turn", "workers"),
    )

    def __init__(self, batch_size: int | None, workers: int | None) -> None:
        self.batch_size = batch_size
        self.workers = workers
        self.checksums: list[int | None] = []
        self.activity = -1
        """Activity of the process up to the last batch; negative before the first."""
        self.first_turn = self.last_turn = 0
        """Number of times that work had followed a batch of any pass, at the first and the last batch."""
        self._waits = False
        """Whether it is unknown yet if work follows the last batch."""
        self._known = self._followed = self._at_once = self._without_gradients = 0
        """Batches of which it is known; those that work followed, those without another batch in between,
        those that were taken where no gradients are computed."""

    @property
    def trains(self) -> bool:
        """Whether it feeds the training, as far as is known by now."""
        if not self._followed or 2 * self._followed < self._known:
            return False
        if 2 * self._at_once >= self._followed:
            return True
        of_most_steps = 2 * self._followed > self.last_turn - self.first_turn
        return of_most_steps and 2 * self._without_gradients <= self._known

    def take(self, activity: int, turn: int) -> None:
        """Note a batch, after so much activity and so many turns."""
        if self.activity < 0:
            self.first_turn = turn
        self.activity, self.last_turn = activity, turn
        self._waits = True
        if not torch.is_grad_enabled():
            self._without_gradients += 1

    def look(self, activity: int, at_once: bool) -> None:
        """Look whether work has followed the last batch.

        Args:
            activity: Activity of the process by now.
            at_once: True if no other batch came since.
        """
        if not self._waits:
            return
        followed = activity > self.activity
        self._waits = False
        self._known += 1
        self._followed += followed
        self._at_once += followed and at_once


class Batch:
    """A batch that a loader has handed out.

    Args:
        of: The pass that it belongs to.
        samples: Number of samples; None where it is unknown.
        asked: Monotonic seconds at which the program began to wait for it.
        given: The seconds at which it had it.
        first: True for the first batch of its pass.
        marks: Begin and end of the wait by the clock of the GPU that is trained on; None without one.
    """

    __slots__ = ("asked", "first", "given", "marks", "of", "samples")

    def __init__(
        self,
        of: LoaderPass,
        samples: int | None,
        asked: float,
        given: float,
        first: bool,
        marks: tuple[Any, Any] | None = None,
    ) -> None:
        self.of = of
        self.samples = samples
        self.asked = asked
        self.given = given
        self.first = first
        self.marks = marks


class LoaderPasses:
    """All passes of a process."""

    def __init__(self) -> None:
        self._passes: list[LoaderPass] = []
        self._latest: LoaderPass | None = None
        self._turns = 0
        self._sums_lack = True
        """Whether sums of the training's first batches were lacking when the latest pass began."""

    @property
    def training(self) -> LoaderPass | None:
        """The first pass that feeds the training."""
        return next((each for each in self._passes if each.trains), None)

    @property
    def checksums(self) -> list[int | None]:
        """Sums of the first batches of the training."""
        sums = [each for loader_pass in self._passes if loader_pass.trains for each in loader_pass.checksums]
        return sums[:CHECKED_BATCHES]

    def begin(self, iterator: Any, loader: Any) -> LoaderPass:
        """Begin a pass, whose iterator carries what is known of it."""
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        begun = LoaderPass(size if isinstance(size, int) else None, getattr(loader, "num_workers", None))
        if hasattr(iterator, "__dict__"):  # not the generator of a loader that wraps another one
            iterator._scalewise_pass = begun
        return begun

    def batch(self, iterator: Any, batch: Any, asked: float, given: float, activity: int) -> Batch:
        """Note a batch."""
        loader_pass = iterator.__dict__.get("_scalewise_pass")
        if loader_pass is None:
            loader_pass = iterator._scalewise_pass = LoaderPass(None, None)
        latest = self._latest
        if latest is not None and activity > latest.activity:
            self._turns += 1
            # before a pass that a program has broken off ends, it is unknown what would have followed
            if latest is not loader_pass:
                latest.look(activity, at_once=True)
        is_first = loader_pass.activity < 0
        if is_first:
            if len(self._passes) < MOST_PASSES or self.training is None:
                self._passes.append(loader_pass)
            self._sums_lack = len(self.checksums) < CHECKED_BATCHES
        else:
            loader_pass.look(activity, at_once=latest is loader_pass)
        loader_pass.take(activity, self._turns)
        self._latest = loader_pass
        if self._sums_lack and len(loader_pass.checksums) < CHECKED_BATCHES:
            loader_pass.checksums.append(checksum(batch))
        return Batch(loader_pass, samples_in(batch, loader_pass.batch_size), asked, given, is_first)

    def end(self, iterator: Any, activity: int) -> None:
        """Note the end of a pass, which is one that trains also if it had a single batch."""
        loader_pass = iterator.__dict__.get("_scalewise_pass")
        if loader_pass is not None:
            loader_pass.look(activity, at_once=self._latest is loader_pass)

    def conclude(self, activity: int) -> None:
        """Look at the last batch of all, if work has followed it."""
        latest = self._latest
        if latest is not None and activity > latest.activity:
            latest.look(activity, at_once=True)
