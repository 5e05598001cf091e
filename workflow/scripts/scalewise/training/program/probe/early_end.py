"""End of a training whose own throughput is known well enough, after the same step on all ranks.

Rank 0 looks at its windows after numbers of steps that all ranks know beforehand. Where it finds them narrow
enough, it leaves the last step in the store by which the ranks have met: no collective of the probe's own
comes between those of the program. The others look into the store once, at the last step itself, two windows
later. By then rank 0 has left its word: at the end of each window a rank waits until its device has done the
window before, in whose steps all ranks exchanged gradients.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from .guards import Notes
from .probe_spec import ProbeSpec
from .run_interval import WINDOW_STEPS, Judgement, judge, looks
from .steps import NO_GRAD, UNUSUAL_SHARE, Step, StepRecord, bits_of, samples_of

AHEAD_STEPS = 2 * WINDOW_STEPS
"""Steps from a look to the end that follows from it, where several ranks train."""

KEY = "scalewise/last_step"
"""Name in the ranks' store of the step that ends the training."""


class EarlyEnd:
    """The windows of a process, and the step at which its training ends.

    Args:
        spec: Says how many steps are measured at most, and how narrow the interval must be.
        record: The steps of the process.
        notes: Told what does not work.
    """

    def __init__(self, spec: ProbeSpec, record: StepRecord, notes: Notes) -> None:
        self._spec, self._record, self._notes = spec, record, notes
        # the first step of all has no begin
        self._first_step = max(spec.warmup_steps, 1)
        self._most = spec.last_step
        # a window is read once the next one is done
        self._looks = [self._first_step + look * WINDOW_STEPS + WINDOW_STEPS for look in looks(spec.steps)]
        self._steps: list[Step] = []
        self._open: list[float] = []
        self._values: list[float] = []
        self._window_ends: list[int] = []
        """Number of the last step of each of ``_values``."""
        self._sizes = Counter[int]()
        """Number of steps with so many samples."""
        self._judged: Judgement | None = None
        self.last_step = self._most
        """Number of the step that ends the training, from 1, as far as it is known."""

    def after_step(self, step: Step, done: int) -> None:
        """Note a step that has ended; whether it was the last is known afterwards."""
        if done < self._first_step:
            return
        self._steps.append(step)
        if (done - self._first_step) % WINDOW_STEPS or done == self._first_step:
            return
        if self._record.device is not None:
            self._steps[-WINDOW_STEPS - 1].mark.synchronize()
        self._read(done, WINDOW_STEPS)
        self._look(done)

    def conclude(self, done: int, ended: str) -> dict[str, Any]:
        """Judge the whole run for its record, once the device has done all steps.

        Args:
            done: Number of steps.
            ended: ``steps``, or ``itself`` where the program came to its own end.
        """
        self._read(done, 0)
        judged = self._judged or judge(self._values, self._spec.steps)
        warmup = self._window_ends[judged.warmup_windows - 1] if judged.warmup_windows else 0
        return judged.record(
            self._spec.until_interval,
            max(warmup, self._spec.warmup_steps),
            "interval" if ended == "steps" and done < self._most else ended,
        )

    def _read(self, done: int, recent: int) -> None:
        """Turn steps into windows, all but so many recent ones."""
        steps = self._steps
        for index in range(1, len(steps) - recent):
            # what the record leaves out is in no window either; forward passes without gradients may be
            # a part of the training, and make the interval wider if they are not
            if bits_of(steps[index]) & ~NO_GRAD or self._is_unusual(steps[index]):
                continue
            self._open.append(self._record.seconds_between(steps[index - 1], steps[index]))
            if len(self._open) == WINDOW_STEPS:
                self._values.append(sum(self._open))
                self._window_ends.append(done - len(steps) + 1 + index)
                self._open = []
        del steps[: -recent - 1]

    def _is_unusual(self, step: Step) -> bool:
        """Whether a step has another number of samples than most, where such steps are few."""
        samples = samples_of(step)
        self._sizes[samples] += 1
        (usual, number), total = self._sizes.most_common(1)[0], self._sizes.total()
        return samples != usual and total - number <= UNUSUAL_SHARE * total

    def _look(self, done: int) -> None:
        if not self._looks or self.last_step < self._most:
            return
        world_size, rank = _place()
        ahead = AHEAD_STEPS if world_size > 1 else 0
        if rank:
            if done == self._looks[0] + ahead:
                del self._looks[0]
                self._hear(done)
        elif done == self._looks[0]:
            del self._looks[0]
            judged = judge(self._values, self._spec.steps)
            if (
                done + ahead < self._most
                and judged.is_narrow(self._spec.until_interval)
                and (not ahead or self._tell(done + ahead))
            ):
                self._judged, self.last_step = judged, done + ahead

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
