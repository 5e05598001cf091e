"""A user's program, which another process watches by its files, and which is ended once it is measured."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

# by name: a program may replace the functions in their module
from time import perf_counter, sleep, time
from typing import Any

from torch.optim import Optimizer

from . import origins
from .ending import Ending, finish_with_multiprocessing
from .measured_process import MeasuredProcess
from .probe_spec import ProbeSpec
from .process_record import write_json, write_text
from .rank_waits import GROUP, group_place
from .step_flags import NO_GRAD
from .steps import Step
from .training_steps import SteppedOptimizer

COUNTED_EVERY_SECONDS = 2.0
"""Least seconds between two writes of the number of steps."""

NO_STEP_BACKWARDS = 50
"""Backward passes without an optimizer step, after which a file says so."""

HELD_SECONDS = 60.0
"""Longest wait of a rank without batches for the end of the run."""


class WatchedProgram(MeasuredProcess):
    """A process of a user's program.

    Args:
        spec: Says what to measure, and the folder of the files.
        started: Monotonic seconds of the process's start, if the system does not report it.
    """

    def __init__(self, spec: ProbeSpec, started: float) -> None:
        super().__init__(spec, started)
        self._began_at = time() - (perf_counter() - self.started)
        """Time of day at which the process began, by the clock as it was then."""

    def begin(self) -> None:
        """Leave a record at the end."""
        atexit.register(self.at_exit)

    def begin_process(self, started: float | None = None) -> None:
        """Begin with nothing but the hooks."""
        super().begin_process(started)
        self.ending = Ending()
        self._next_count = 0.0
        self._has_ended = False
        self._group_place = self.rank, ""
        self._activity_before_join = 0
        self._is_uneven = False

    def backward(self, tensors: Any) -> None:
        """Note a backward pass, and write how many there are if no step follows after many."""
        super().backward(tensors)
        if self.backwards == NO_STEP_BACKWARDS and not self.place:
            write_text(self._file("backwards"), str(self.backwards))

    def enter_wait(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Write that this rank waits for all others, before its first step.

        Args:
            name: The function of torch.distributed that it enters.
            args: Arguments by place.
            kwargs: Arguments by name.
        """
        if name == GROUP:
            self._group_place = group_place(args, kwargs, self.rank)
        self._write_wait(name)

    def leave_wait(self) -> None:
        """Write that all other ranks have come."""
        self._write_wait("")

    def _write_wait(self, name: str) -> None:
        if self.steps.done or os.getpid() != self.pid:
            return
        rank, address = self._group_place
        wait = {"rank": rank, "host": socket.gethostname(), "address": address, "where": name}
        write_json(self._file("wait"), wait)

    def _end_update(self, optimizer: Optimizer) -> None:
        """End a step, or raise SystemExit again in a program that has swallowed it."""
        if not self.ending.raised_exits:
            super()._end_update(optimizer)
        elif self._may_lead(optimizer):
            self.ending.end()

    def _leader_ceased(self, other: SteppedOptimizer) -> None:
        """Note it, and end a program that would never make its last step."""
        super()._leader_ceased(other)
        if self.spec.last_step:
            self._end_training()

    def _first_step(self, optimizer: Optimizer) -> None:
        finish_with_multiprocessing(self.at_exit)
        super()._first_step(optimizer)
        self.ending.device = self.steps.device

    def _end_step(self, parts: list[Step]) -> None:
        """Write what the watching process waits for; after the last step this raises SystemExit."""
        super()._end_step(parts)
        done = self.steps.done
        if parts[-1].ended_at >= self._next_count:
            self._next_count = parts[-1].ended_at + COUNTED_EVERY_SECONDS
            write_text(self._file("steps"), str(done))
        if done == self.spec.check_after:
            write_json(self._file("seen.json"), self.record("seen"))
            self.steps.begin_step(self.passes)
        if done == (self.spec.last_step if self.early_end is None else self.early_end.last_step):
            self._end_training()

    def _end_training(self) -> None:
        """Write the record, and raise SystemExit."""
        try:
            self.finish("steps")
        except Exception as error:  # noqa: BLE001  # without a record it ends all the same
            self.notes.fault("record", error)
        self.ending.end()

    def begin_join(self) -> None:
        """Note that torch's Join begins, in which ranks may have different numbers of batches."""
        self._activity_before_join = self.activity

    def waits_in_join(self) -> None:
        """Write that other ranks train on while this one has no more batches; the run is then ended."""
        if self._is_uneven or self.activity == self._activity_before_join:
            return
        self._is_uneven = True
        write_text(self._file("uneven"), str(self.steps.done))
        # meanwhile the others wait for this rank: none comes to a last step that the others do not make
        sleep(HELD_SECONDS)

    def _without_gradients(self, flags: int) -> None:
        super()._without_gradients(flags)
        if flags & NO_GRAD:
            self.memory.begin_evaluation()

    def finish(self, ended: str) -> None:
        """Write the record once, in the process that made the steps."""
        if self._has_ended or os.getpid() != self.pid:
            return
        if self.steps.done:
            self._has_ended = True
            write_text(self._file("steps"), str(self.steps.done))
            write_json(self._file("record.json"), self.record(ended))

    def at_exit(self) -> None:
        """Write the record and leave the process group as the process ends."""
        if os.getpid() != self.pid:
            return
        try:
            self.finish("itself")
        except Exception as error:  # noqa: BLE001  # the program has ended well
            self.notes.fault("record", error)
        self.ending.at_exit()

    def imported_files(self) -> dict[str, str]:
        """Return the hashes of the user's source files."""
        not_imported = [Path(__file__).parent, *self.spec.not_imported]
        return origins.imported_files(not_imported, self._began_at)

    def _file(self, kind: str) -> Path:
        return self.spec.folder / f"{self.rank}.{self.pid}.{kind}"
