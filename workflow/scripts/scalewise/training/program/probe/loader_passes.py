"""Passes over DataLoaders: which of them feed the training, with how many samples, after how much waiting.

A pass feeds the training if there was activity between two of its batches: a backward pass or a step, since
not all ways to compute gradients are seen. The other passes evaluate.
"""

from __future__ import annotations

from typing import Any

from .batches import checksum, samples_in

CHECKED_BATCHES = 3
"""First training batches whose sums are kept."""


class LoaderPass:
    """A pass over a DataLoader.

    Args:
        batch_size: Samples of a whole batch; None where the loader has no number of its own.
        workers: Number of the loader's processes; None where nobody said it.
    """

    __slots__ = ("batch_size", "checksums", "ended", "seen", "trains", "workers")

    def __init__(self, batch_size: int | None, workers: int | None) -> None:
        self.batch_size = batch_size
        self.workers = workers
        self.trains = False
        self.ended = False
        self.seen = -1
        """Activity of the process up to the last batch; negative before the first."""
        self.checksums: list[int | None] = []

    def look(self, activity: int) -> bool:
        """Look at a batch, or at the end, after so much activity; true where it begins to train."""
        begins = not self.trains and 0 <= self.seen < activity
        self.trains |= begins
        self.seen = activity
        return begins


class Batch:
    """A batch that a loader has handed out.

    Args:
        of: The pass that it belongs to.
        samples: Number of samples; None where it is unknown.
        asked: Monotonic seconds at which the program began to wait for it.
        given: The seconds at which it had it.
        first: True for the first batch of its pass.
    """

    __slots__ = ("asked", "first", "given", "of", "samples")

    def __init__(self, of: LoaderPass, samples: int | None, asked: float, given: float, first: bool) -> None:
        self.of = of
        self.samples = samples
        self.asked = asked
        self.given = given
        self.first = first


class LoaderPasses:
    """All passes of a process."""

    def __init__(self) -> None:
        self.training: LoaderPass | None = None
        """The first pass that feeds the training."""
        self.checksums: list[int | None] = []
        self._latest: LoaderPass | None = None

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
        seen = loader_pass.seen
        if seen != activity and loader_pass.look(activity):
            self._found(loader_pass)
        self._latest = loader_pass
        if len(self.checksums) < CHECKED_BATCHES:
            kept = self.checksums if loader_pass.trains else loader_pass.checksums
            if len(kept) < CHECKED_BATCHES:
                kept.append(checksum(batch))
        return Batch(loader_pass, samples_in(batch, loader_pass.batch_size), asked, given, seen < 0)

    def end(self, iterator: Any, activity: int) -> None:
        """Note the end of a pass, which is one that trains also if it had a single batch."""
        loader_pass = iterator.__dict__.get("_scalewise_pass")
        if loader_pass is not None:
            if loader_pass.look(activity):
                self._found(loader_pass)
            loader_pass.ended = True

    def conclude(self, activity: int) -> None:
        """Take the last pass for one that trains if a backward pass followed its last batch."""
        latest = self._latest
        if latest is not None and not latest.ended and latest.look(activity):
            self._found(latest)

    def _found(self, loader_pass: LoaderPass) -> None:
        self.training = self.training or loader_pass
        self.checksums = (self.checksums + loader_pass.checksums)[:CHECKED_BATCHES]
