"""End of a training whose own throughput is known well enough, after the same step on all ranks.

Rank 0 checks its windows after numbers of steps that all ranks know beforehand. If their interval is narrow
enough, it writes the last step to the store of the process group: no collective of the probe comes between
those of the program. The others read the store once, at the last step itself, two windows later. By then rank
0 has written: before it reads, a rank waits until its device has done the window before, in whose steps all
ranks exchanged gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from .guards import Notes
from .probe_spec import ProbeSpec
from .run_interval import WINDOW_STEPS, Steadiness, assess, check_points
from .step_flags import COPY, EVAL_MODE, NO_GRAD, UNUSUAL_SHARE, unusual_steps, without_usual_shapes
from .steps import StepRecord

AHEAD_STEPS = 2 * WINDOW_STEPS
"""Steps from a check to the end that follows from it, if several ranks train."""

KEY = "scalewise/last_step"
"""Name in the ranks' store of the step that ends the training."""


class EarlyEnd:
    """The step at which a process ends its training, by its windows.

    Args:
        spec: Says how many steps are measured at most, and how narrow the interval must be.
        record: The steps of the process.
        notes: Receives what does not work.
    """

    def __init__(self, spec: ProbeSpec, record: StepRecord, notes: Notes) -> None:
        self._spec, self._record, self._notes = spec, record, notes
        # the first step of all holds what is done once
        self._first_step = max(spec.warmup_steps, 1)
        self._most = spec.last_step
        # a window is read once the next one is done
        self._check_points = [
            self._first_step + windows * WINDOW_STEPS + WINDOW_STEPS for windows in check_points(spec.steps)
        ]
        self._narrow: Steadiness | None = None
        self._window_ends: list[int] = []
        """Number of the last step of each window, at the latest check."""
        self.last_step = self._most
        """Number of the step that ends the training, from 1, as far as it is known."""

    def after_step(self, done: int, *, is_latest: bool = True) -> None:
        """Check the windows if it is time, and set ``last_step``.

        Args:
            done: Number of steps.
            is_latest: False if the program has made more steps, which were undecided for a while: the other
                ranks add theirs at the same time, and some of them before an announcement.
        """
        if not self._check_points or self.last_step < self._most or done < self._check_points[0]:
            return
        world_size, rank = _world()
        ahead = AHEAD_STEPS if world_size > 1 else 0
        if done != self._check_points[0] + (ahead if rank else 0):
            return
        del self._check_points[0]
        self._record.wait_for_all_but(WINDOW_STEPS)
        if rank:
            self._read_announced(done)
            return
        if not is_latest:
            return
        steadiness = self._assess(done - WINDOW_STEPS)
        if (
            done + ahead < self._most
            and steadiness.is_narrow(self._spec.until_interval)
            and (not ahead or self._announce(done + ahead))
        ):
            self._narrow, self.last_step = steadiness, done + ahead

    def conclude(self, done: int, ended: str) -> dict[str, Any]:
        """Return the interval of the whole run for its record, once the device has done all steps.

        Args:
            done: Number of steps.
            ended: ``steps``, or ``itself`` if the program came to its own end.
        """
        steadiness = self._narrow or self._assess(done)
        warmup = self._window_ends[steadiness.warmup_windows - 1] if steadiness.warmup_windows else 0
        return steadiness.record(
            self._spec.until_interval,
            max(warmup, self._spec.warmup_steps),
            "interval" if self.last_step < self._most and done >= self.last_step else ended,
        )

    def _assess(self, until: int) -> Steadiness:
        """Assess the windows of the steps before one."""
        columns = self._record.snapshot().columns(fed=True)
        seconds = columns["seconds"]
        # what the record excludes is in no window either; forward passes without gradients may be
        # a part of the training, and make the interval wider if they are not
        flags = without_usual_shapes(columns["flags"])
        steps = [
            index
            for index in range(min(self._first_step, until), until)
            if not flags[index] & ~(NO_GRAD | EVAL_MODE | COPY) and seconds[index] is not None
        ]
        unusual = unusual_steps(steps, [columns["samples"]])
        if len(unusual) <= UNUSUAL_SHARE * len(steps):
            steps = [index for index in steps if index not in unusual]
        whole = range(WINDOW_STEPS, len(steps) + 1, WINDOW_STEPS)
        self._window_ends = [steps[end - 1] + 1 for end in whole]
        values = [sum(seconds[index] for index in steps[end - WINDOW_STEPS : end]) for end in whole]
        return assess(values, self._spec.steps)

    def _announce(self, last_step: int) -> bool:
        """Write the last step for the other ranks; false if they cannot read it."""
        try:
            store = _store()
            store.set(KEY, str(last_step))
            # an answer proves that the store has the key
            return bool(store.check([KEY]))
        except Exception as error:  # noqa: BLE001  # then all train on to the most steps
            self._notes.fault("early end", error)
            return False

    def _read_announced(self, done: int) -> None:
        """Read the last step from rank 0, if there is one."""
        try:
            store = _store()
            if store.check([KEY]):
                self.last_step = max(int(store.get(KEY)), done)
        except Exception as error:  # noqa: BLE001  # without a store the training ends by itself
            self._notes.fault("early end", error)


def _world() -> tuple[int, int]:
    """Return the number of ranks and the rank of this process; 1 and 0 without a process group."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def _store() -> Any:
    """Return the store of the process group."""
    return torch.distributed.distributed_c10d._get_default_store()
