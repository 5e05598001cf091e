"""Optimizer steps of a process: the time of each, and its events."""

from __future__ import annotations

import math
import statistics
import threading
from array import array
from collections.abc import Sequence
from copy import copy
from time import perf_counter
from typing import Any

import torch

from .loader_iterations import Batch, LoaderIteration
from .step_flags import COPY, EVALUATION, NEW_ITERATION, NO_GRAD

SETTLED_AFTER = 50
"""Steps after which it is known which data-loader iterations train, and a GPU has long done its work."""

FORWARD_STEPS, LOOK_EVERY = 20, 10
"""First steps in which the sizes of the forward passes' inputs are kept; then those of each tenth are."""

UNKNOWN = -1


class Step:
    """One optimizer step, from the end of the one before to its own end; most hold few of these."""

    batches: Sequence[Batch] = ()
    loaders: Sequence[LoaderIteration] = ()
    """Iterations that began."""
    forwards: Sequence[int | None] = ()
    """Samples of forward passes with gradients."""
    mode_changes: Sequence[tuple[float, bool]] = ()
    """Monotonic seconds at which forward passes with gradients began (true), or those without (false)."""
    flags = 0
    ended_at: float
    """Monotonic seconds of the host."""
    backwards: int
    """Backward passes of the process up to its end."""
    mark: Any
    """The end by the clock of the device: monotonic seconds, or a CUDA event."""
    after: Any = None
    """Begin of the next step or part, if the probe itself took its time in between."""
    next_began_at: float | None = None
    """The same by the clock of the host."""
    pauses: Sequence[tuple[Any, Any]] = ()
    """Begin and end of the times in between that lie within the step, by the clock of the device."""

    def change_mode(self, at: float, *, trains: bool) -> None:
        """Note that forward passes begin to train, or cease to."""
        self.mode_changes = (*self.mode_changes, (at, trains))

    def take_in(self, earlier: Sequence[Step]) -> None:
        """Add what happened in earlier parts of the step that ends with this one."""
        for name in ("batches", "loaders", "forwards", "mode_changes"):
            setattr(self, name, [each for part in (*earlier, self) for each in getattr(part, name)])
        for part in earlier:
            self.flags |= part.flags
        self.pauses = [(part.mark, part.after) for part in earlier if part.after is not None]


class StepRecord:
    """All steps of a process, as columns of numbers; the last ones are kept until their numbers are known."""

    def __init__(self) -> None:
        self.open = Step()
        self.device: torch.device | None = None
        """The GPU whose clock times the steps; None if the host's does."""
        self.done = 0
        """Number of steps that have ended."""
        self.thread = 0
        """The thread that makes the steps."""
        self.fetched_elsewhere = False
        """True if another thread fetches the batches that train: waits are unseen, and their steps."""
        self.first_step_ended: float | None = None
        self.first_step_began: float | None = None
        self.latest: Step | None = None
        """The latest step that has ended, or part of one; it may be added later."""
        self._before: Step | None = None
        self._recent: list[Step] = []
        self._forward_samples: list[int] = []
        self._forward_looks: list[tuple[int, int]] = []
        """Index and samples of later steps that were looked at."""
        self._ended_at, self._seconds, self._without_training = array("d"), array("d"), array("d")
        self._waits = array("d")
        self._flags, self._backwards = array("B"), array("L")
        self._samples = array("q")

    def cut(self, at: float, backwards: int) -> Step:
        """End the open step, or a part of one.

        Args:
            at: Monotonic seconds of the host.
            backwards: Number of all backward passes so far.
        """
        step = self.open
        step.ended_at = step.mark = at
        if self.device is not None:
            step.mark = self._mark()
        step.backwards = backwards
        self.thread = threading.get_ident()
        self.open, self.latest = Step(), step
        return step

    def add(self, parts: Sequence[Step]) -> None:
        """Add a step of the training, in its parts."""
        *earlier, step = parts
        if earlier:
            step.take_in(earlier)
        self._recent.append(step)
        self.done += 1
        if len(self._recent) >= 2 * SETTLED_AFTER and self.done % SETTLED_AFTER == 0:
            self.settle(SETTLED_AFTER)

    def begin_step(self, backwards: int) -> None:
        """Begin the next step now, or part of one; no step has what happened since the last one ended.

        Args:
            backwards: Number of all backward passes so far.
        """
        if self.done:
            assert self.latest is not None, "a step that is done has ended"
            self.latest.after, self.latest.next_began_at = self._mark(), perf_counter()
            self.open = Step()
        else:
            self._before = self.cut(perf_counter(), backwards)

    def settle(self, recent: int = 0) -> None:
        """Turn steps into numbers, all but so many recent ones."""
        if self.device is not None and recent and not self._recent[-recent - 1].mark.query():
            return  # the GPU is far behind: next time
        for step in self._recent[: len(self._recent) - recent]:
            self._append(step)
            self._before = step
        del self._recent[: len(self._recent) - recent]

    def columns(self, fed: bool) -> dict[str, Any]:
        """Return the steps so far as lists of JSON values, one entry for each step.

        Args:
            fed: True if a DataLoader feeds the training.
        """
        # one that gave a batch once, on which all steps train, shows neither their samples nor waits
        fed = fed and 2 * sum(map(bool, self._samples)) >= len(self._samples)
        fed = fed and not self.fetched_elsewhere
        return {
            "ended_at": [*self._ended_at, *(step.ended_at for step in self._recent)],
            "seconds": [None if math.isnan(value) else value for value in self._seconds],
            "flags": list(self._flags),
            "seconds_without_training": list(self._without_training),
            "samples": [None if value == UNKNOWN else value for value in self._samples] if fed else [],
            "forward_samples": self._usual_forward_samples(),
            "wait_seconds": list(self._waits) if fed else [],
            "forward_looks": [list(look) for look in self._forward_looks],
            "backward_passes": list(self._backwards),
        }

    def _usual_forward_samples(self) -> int | None:
        return statistics.median_low(self._forward_samples) if self._forward_samples else None

    @property
    def evaluated(self) -> bool:
        """True if a settled step held an evaluation."""
        return any(bits & (EVALUATION | NO_GRAD) for bits in self._flags)

    def snapshot(self) -> StepRecord:
        """Return a copy in which all steps are settled by what is known now."""
        settled = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (array, list)):
                setattr(settled, name, value[:])
        settled.settle()
        return settled

    def _mark(self) -> Any:
        if self.device is None:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        # a program need not make the GPU that it trains on the current one
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _append(self, step: Step) -> None:
        before, is_first = self._before, not self._ended_at
        training, flags = batches_and_flags(step)
        # loops, not generators: this is done in each step
        samples, waited = 0, 0.0
        for batch in training:
            if batch.samples is None:
                samples = UNKNOWN
            elif samples != UNKNOWN:
                samples += batch.samples
            waited += self._waited(batch)
            if batch.thread != self.thread:
                self.fetched_elsewhere = True
        if step.forwards and None not in step.forwards:
            samples_of_forwards = sum(size or 0 for size in step.forwards)
            if len(self._ended_at) < FORWARD_STEPS:
                self._forward_samples.append(samples_of_forwards)
            else:
                self._forward_looks.append((len(self._ended_at), samples_of_forwards))
        if is_first:
            requested = [batch.requested_at for batch in training]
            self.first_step_ended = step.ended_at
            trained = (at for at, trains in step.mode_changes if trains)
            self.first_step_began = min(requested) if requested else next(trained, None)
        self._ended_at.append(step.ended_at)
        self._seconds.append(math.nan if before is None else self.seconds_between(before, step))
        self._flags.append(flags)
        other = 0.0
        if before is not None and flags & (EVALUATION | NO_GRAD | COPY):
            begin = before.ended_at if before.next_began_at is None else before.next_began_at
            other = _seconds_without_training(begin, step)
        self._without_training.append(other)
        self._samples.append(samples)
        self._waits.append(waited)
        self._backwards.append(step.backwards - (before.backwards if before is not None else 0))

    def wait_mark(self) -> Any:
        """Mark the begin or the end of a wait for a batch by the clock of the GPU; None without one."""
        return None if self.device is None else self._mark()

    def _waited(self, batch: Batch) -> float:
        """Return the seconds that the device waited for a batch: the host may wait while a GPU has work."""
        if batch.wait_marks is not None:
            begin, end = batch.wait_marks
            try:
                return float(begin.elapsed_time(end)) / 1e3  # CUDA gives milliseconds
            except RuntimeError:  # a mark in a stream that is not done with it
                pass
        return batch.received_at - batch.requested_at

    def seconds_between(self, before: Step, step: Step) -> float:
        """Return the device seconds between the ends of two steps; NaN without a common clock."""
        start = before.mark if before.after is None else before.after
        try:
            seconds = self._elapsed(start, step.mark)
            return seconds - sum(self._elapsed(*pause) for pause in step.pauses) if step.pauses else seconds
        except RuntimeError:  # marks of two devices
            return math.nan

    def _elapsed(self, begin: Any, end: Any) -> float:
        if self.device is None:
            return float(end - begin)
        return float(begin.elapsed_time(end)) / 1e3  # CUDA gives milliseconds


def batches_and_flags(step: Step) -> tuple[list[Batch], int]:
    """Return the batches of a step that train, and its flags, by what is known of its loaders by now."""
    training, bits = [], step.flags
    for batch in step.batches:
        if not batch.iteration.trains:
            bits |= EVALUATION
            continue
        training.append(batch)
        if batch.is_first:
            bits |= NEW_ITERATION
    for iteration in step.loaders:
        if iteration.trains:
            bits |= NEW_ITERATION
    return training, bits


def _seconds_without_training(begin: float, step: Step) -> float:
    """Return the host seconds in which a step did not train: each time up to the next sign of training.

    Args:
        begin: Monotonic seconds of the step's begin.
        step: Holds an evaluation, or forward passes without gradients.
    """
    signs = [*step.mode_changes, *((batch.requested_at, batch.iteration.trains) for batch in step.batches)]
    seconds = 0.0
    since: float | None = None
    for place, (at, trains) in enumerate(sorted(signs)):
        if trains and since is not None:
            seconds += at - since
            since = None
        elif not trains and since is None:
            since = at if place else begin
    if since is not None:
        others = [batch.received_at for batch in step.batches if not batch.iteration.trains]
        seconds += max(max(others, default=step.ended_at) - since, 0.0)
    return seconds
