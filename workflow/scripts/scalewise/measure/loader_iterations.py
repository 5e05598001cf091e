"""Data-loader iterations: which of them feed the training, with how many samples, after how much waiting.

One rule: an iteration feeds the training if work follows most of its batches, a backward pass or a step,
before a batch of another iteration comes. Of batches that are fetched at once, such as those of an
accumulated step, as many count as backward passes follow. If others come in between, as where two loaders
feed each step, most steps must have a batch of the iteration, taken where gradients are computed: work
follows a validation too, whose loader keeps one iterator, but in few steps.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from .batches import checksum, samples_in

CHECKED_BATCHES = 3
"""First training batches whose checksums are kept."""

MOST_ITERATIONS = 16
"""First iterations that are kept, to find the one that trains among them."""


class LoaderIteration:
    """One data-loader iteration, or all iterations of a loader that keeps its iterator.

    Args:
        batch_size: Samples of a whole batch; None if the loader has no number of its own.
        workers: Number of the loader's processes; None if unknown.
        reads_all: True if it goes through the whole dataset, and not through a rank's share of it.
    """

    activity = -1
    """Activity of the process up to the last batch; negative before the first."""
    first_round = last_round = 0
    """Times that work had followed a batch of any iteration, at the first and at the last batch."""
    _unchecked = _checked = 0
    """Batches since the last check, and before."""
    _followed = _followed_directly = _without_gradients = 0
    """Checked batches that work followed; those without another batch in between; batches that were taken
    where no gradients are computed."""

    def __init__(
        self, batch_size: int | None = None, workers: int | None = None, *, reads_all: bool = False
    ) -> None:
        self.batch_size, self.workers, self.reads_all = batch_size, workers, reads_all
        self.checksums: list[int | None] = []

    @property
    def trains(self) -> bool:
        """True if it feeds the training, as far as is known by now."""
        if not self._followed or 2 * self._followed < self._checked:
            return False
        if 2 * self._followed_directly >= self._followed:
            return True
        is_in_most_steps = 2 * self._followed > self.last_round - self.first_round
        return is_in_most_steps and 2 * self._without_gradients <= self._checked

    def add_batch(self, activity: int, round_number: int) -> None:
        """Note a batch.

        Args:
            activity: Backward passes and steps of the process by now.
            round_number: Times that work has followed a batch of any iteration.
        """
        if self.activity < 0:
            self.first_round = round_number
        self.activity, self.last_round = activity, round_number
        self._unchecked += 1
        self._without_gradients += not torch.is_grad_enabled()

    def check_batches(self, activity: int, directly: bool) -> None:
        """Count the batches since the last check, and those of them that work has followed.

        Args:
            activity: Backward passes and steps of the process by now.
            directly: True if no batch of another iteration came since.
        """
        if work := activity - self.activity:
            # a backward pass for each batch, and the step; other batches in between may be those that train
            followed = min(self._unchecked, max(work - 1, 1) if directly else 1)
            self._followed += followed
            self._followed_directly += followed if directly else 0
        self._checked += self._unchecked
        self._unchecked = 0


@dataclass(slots=True)
class Batch:
    """A batch of a data-loader iteration.

    Args:
        iteration: Has given the batch.
        samples: Number of samples; None if unknown.
        requested_at: Monotonic seconds at which the program began to wait for it.
        received_at: Monotonic seconds at which the program had it.
        is_first: True for the first batch of its iteration.
        wait_marks: Begin and end of the wait by the clock of the GPU that is trained on; None without one.
        thread: The thread that waited for it.
        shape: Shape of its first tensor, where cuDNN tries its kernels for each.
    """

    iteration: LoaderIteration
    samples: int | None
    requested_at: float
    received_at: float
    is_first: bool
    wait_marks: tuple[Any, Any] | None = None
    thread: int = field(default_factory=threading.get_ident)
    shape: tuple[int, ...] = ()


def reads_all(loader: Any) -> bool:
    """Return whether a loader goes through its whole dataset, as far as both have a length.

    A dataset of fewer than four batches does not tell it from a share of the dataset.
    """
    try:
        samples, batches = len(loader.dataset), len(loader.batch_sampler)
        size = loader.batch_sampler.batch_size
    except (AttributeError, TypeError, NotImplementedError):
        return False
    return isinstance(size, int) and samples >= 4 * size and batches * size > samples - size


class LoaderIterations:
    """All data-loader iterations of a process."""

    def __init__(self) -> None:
        self._first: list[LoaderIteration] = []
        self._latest = LoaderIteration()
        self._rounds = 0
        self._needs_checksums = True
        """True if the training lacked checksums when the latest iteration began."""

    @property
    def training(self) -> LoaderIteration | None:
        """The first iteration that feeds the training."""
        return next((each for each in self._first if each.trains), None)

    @property
    def checksums(self) -> list[int | None]:
        """Checksums of the first batches of the training."""
        sums = [each for iteration in self._first if iteration.trains for each in iteration.checksums]
        return sums[:CHECKED_BATCHES]

    def begin(self, iterator: Any, loader: Any) -> LoaderIteration:
        """Begin an iteration; the iterator keeps what is known of it."""
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        size = size if isinstance(size, int) else None
        begun = LoaderIteration(size, getattr(loader, "num_workers", None), reads_all=reads_all(loader))
        if hasattr(iterator, "__dict__"):  # not the generator of a loader that wraps another one
            iterator._scalewise_iteration = begun
        return begun

    def add_batch(
        self, iterator: Any, batch: Any, requested_at: float, received_at: float, activity: int
    ) -> Batch:
        """Note a batch."""
        iteration = iterator.__dict__.get("_scalewise_iteration")
        if iteration is None:
            iteration = iterator._scalewise_iteration = LoaderIteration()
        latest = self._latest
        if activity > latest.activity:
            self._rounds += 1
            # before an iteration that a program has broken off ends, it is unknown what would have followed
            latest.check_batches(activity, directly=True)
        if latest is not iteration and activity > iteration.activity:
            iteration.check_batches(activity, directly=False)
        is_first = iteration.activity < 0
        if is_first:
            if len(self._first) < MOST_ITERATIONS or self.training is None:
                self._first.append(iteration)
            self._needs_checksums = len(self.checksums) < CHECKED_BATCHES
        iteration.add_batch(activity, self._rounds)
        self._latest = iteration
        if self._needs_checksums and len(iteration.checksums) < CHECKED_BATCHES:
            iteration.checksums.append(checksum(batch))
        samples = samples_in(batch, iteration.batch_size)
        return Batch(iteration, samples, requested_at, received_at, is_first)

    def end(self, iterator: Any, activity: int) -> None:
        """Check the last batches of an iteration; one that trains may have had a single batch."""
        iteration = iterator.__dict__.get("_scalewise_iteration")
        if iteration is not None:
            iteration.check_batches(activity, directly=self._latest is iteration)

    def check_latest(self, activity: int) -> None:
        """Check the last batches of all if work has followed them."""
        if activity > self._latest.activity:
            self._latest.check_batches(activity, directly=True)
