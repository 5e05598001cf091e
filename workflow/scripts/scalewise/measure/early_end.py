"""End of a training whose own throughput is known well enough, after the same step on all ranks.

Rank 0 looks at its windows after numbers of steps that all ranks know beforehand. If they are narrow enough,
it leaves the last step in the store of the process group: no collective of the probe's own comes between
those of the program. The others look into the store once, at the last step itself, two windows later. By then
rank 0 has left its word: before it looks, a rank waits until its device has done the window before, in whose
steps all ranks exchanged gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from .guards import Notes
from .kept_steps import NO_GRAD, UNUSUAL_SHARE, unusual_steps, without_usual_shapes
from .probe_spec import ProbeSpec
from .run_interval import WINDOW_STEPS, Judgement, judge, looks
from .steps import StepRecord

AHEAD_STEPS = 2 * WINDOW_STEPS
"""Steps from a look to the end that follows from it, if several ranks train."""

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
        self._looks = [self._first_step + look * WINDOW_STEPS + WINDOW_STEPS for look in looks(spec.steps)]
        self._judged: Judgement | None = None
        self._window_ends: list[int] = []
        """Number of the last step of each window, when they were judged."""
        self.last_step = self._most
        """Number of the step that ends the training, from 1, as far as it is known."""

    def after_step(self, done: int) -> None:
        """Note a step that has ended; whether it was the last is known afterwards."""
        if not self._looks or self.last_step < self._most or done < self._looks[0]:
            return
        world_size, rank = _place()
        ahead = AHEAD_STEPS if world_size > 1 else 0
        if done != self._looks[0] + (ahead if rank else 0):
            return
        del self._looks[0]
        self._record.wait_for_all_but(WINDOW_STEPS)
        if rank:
            self._hear(done)
            return
        judged = self._judge(done - WINDOW_STEPS)
        if (
            done + ahead < self._most
            and judged.is_narrow(self._spec.until_interval)
            and (not ahead or self._tell(done + ahead))
        ):
            self._judged, self.last_step = judged, done + ahead

    def is_due(self, done: int) -> bool:
        """Return whether its interval ends the training after so many steps."""
        return self.last_step < self._most and done >= self.last_step

    def conclude(self, done: int, ended: str) -> dict[str, Any]:
        """Judge the whole run for its record, once the device has done all steps.

        Args:
            done: Number of steps.
            ended: ``steps``, or ``itself`` if the program came to its own end.
        """
        judged = self._judged or self._judge(done)
        warmup = self._window_ends[judged.warmup_windows - 1] if judged.warmup_windows else 0
        return judged.record(
            self._spec.until_interval,
            max(warmup, self._spec.warmup_steps),
            "interval" if ended == "steps" and done < self._most else ended,
        )

    def _judge(self, until: int) -> Judgement:
        """Judge the windows of the steps before one."""
        columns = self._record.snapshot().columns(fed=True)
        seconds = columns["seconds"]
        # what the record excludes is in no window either; forward passes without gradients may be
        # a part of the training, and make the interval wider if they are not
        flags = without_usual_shapes(columns["flags"])
        steps = [
            index
            for index in range(min(self._first_step, until), until)
            if not flags[index] & ~NO_GRAD and seconds[index] is not None
        ]
        unusual = unusual_steps(steps, [columns["samples"]])
        if len(unusual) <= UNUSUAL_SHARE * len(steps):
            steps = [index for index in steps if index not in unusual]
        whole = range(WINDOW_STEPS, len(steps) + 1, WINDOW_STEPS)
        self._window_ends = [steps[end - 1] + 1 for end in whole]
        values = [sum(seconds[index] for index in steps[end - WINDOW_STEPS : end]) for end in whole]
        return judge(values, self._spec.steps)

    def _tell(self, last_step: int) -> bool:
        """Leave the last step to the other ranks; false where they cannot learn of it."""
        try:
            store = _store()
            store.set(KEY, str(last_step))
            # the answer says that the word has come before it
            return bool(store.check([KEY]))
        except Exception as error:  # noqa: BLE001  # then all train on to the most steps
            self._notes.fault("early end", error)
            return False

    def _hear(self, done: int) -> None:
        """Take the last step from rank 0, if it has left one."""
        try:
            store = _store()
            if store.check([KEY]):
                self.last_step = max(int(store.get(KEY)), done)
        except Exception as error:  # noqa: BLE001  # a store that is gone takes the training with it
            self._notes.fault("early end", error)


def _place() -> tuple[int, int]:
    """Number of ranks, and this process's; one by itself without a process group."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def _store() -> Any:
    """The store by which the ranks have met."""
    return torch.distributed.distributed_c10d._get_default_store()
