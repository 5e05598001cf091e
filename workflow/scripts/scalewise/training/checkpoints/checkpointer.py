"""A training's checkpoints from the inside: all ranks write, check and read them together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from scalewise.execution.checkpoint_files import KEPT, Checkpoint, CheckpointError, CheckpointFolder, FileSum
from scalewise.execution.messages import Assignment, Progress, Stopped
from scalewise.execution.progress_reporter import Messenger, say
from scalewise.execution.rank_files import Attempt
from scalewise.records import Resumption
from scalewise.training.checkpoints.consensus import Agreement, Verdict
from scalewise.training.checkpoints.state import (
    SHARED,
    expected_bytes,
    is_finite,
    own_name,
    own_state,
    resume,
    shared_state,
)
from scalewise.training.checkpoints.storage import check_space, load, save, why_not
from scalewise.training.distributed.process_group import gather
from scalewise.training.loop import TrainingState
from scalewise.training.measure.memory import peak_memory
from scalewise.training.run_records import most
from scalewise.training.trainer import Task

T = TypeVar("T")

TAKEN = "the run's folder is another training's by now"
"""Why a checkpoint is not written after a stall; the supervisor learns of it by itself."""

HOST = torch.device("cpu")
"""Where checkpoints are read to: a GPU may have no room for a second copy."""

SLOWEST_BYTES_PER_SECOND = 20e6
"""Of a checkpoint on a busy file system: so much longer do ranks wait for one another while it is written."""


class Session:
    """What keeps one training, from its resumption to its end; inside the process group, on all ranks.

    Args:
        task: of this rank.
        attempt: to tell how far the training has come.
        assignment: of the run.
        began: when this start of it did, in monotonic seconds.
        timeout_seconds: that a rank waits for the others.
        signalled: the signal that this rank got, if any.
    """

    def __init__(
        self,
        task: Task,
        attempt: Attempt,
        assignment: Assignment,
        began: float,
        timeout_seconds: float,
        signalled: Callable[[], str | None],
    ) -> None:
        self._task = task
        self._attempt = attempt
        self._assignment = assignment
        self._signalled = signalled
        self._rank, self._world_size = task.identity.rank, task.identity.world_size
        self._files = CheckpointFolder(assignment.checkpoints, assignment.definition, assignment.inputs)
        self._agreement = Agreement(timeout_seconds, assignment.checkpoint_seconds, self._asked)
        self._began = began
        self._kept_step: int | None = None
        self._bytes = expected_bytes(task)
        patience = timedelta(seconds=timeout_seconds + 2 * self._bytes[1] / SLOWEST_BYTES_PER_SECOND)
        # of its own, on the host: while rank 0 writes for all, the others wait longer than for a step
        self._group: Any = dist.new_group(backend="gloo", timeout=patience)
        self._hosts = self._gather(task.identity.host)
        self.messenger = Messenger(attempt if self._rank == 0 else None)
        """To be entered while the ranks train."""
        self.earlier_peak_bytes = 0
        self.resumption = Resumption(starts=assignment.starts, lost_steps=assignment.lost_steps)

    @property
    def peak_memory_bytes(self) -> int:
        """Of this rank, over all starts."""
        return max(self.earlier_peak_bytes, peak_memory(self._task.device)[0])

    # --- before the first step

    def begin(self) -> TrainingState:
        """Where the training goes on: from the newest checkpoint that is whole, or from its beginning.

        Raises:
            CheckpointError: its checkpoints would find no room.
        """
        state = self._resume()
        problem = ""
        if self._rank == 0:
            try:
                file_bytes, total_bytes = self._bytes
                # those that stay and the one that is being written; a training that goes on has the former
                count = KEPT + 1 if state is None else 1
                check_space(self._assignment.checkpoints, file_bytes, count * total_bytes)
            except CheckpointError as error:
                problem = f"no room for checkpoints: {error}"
        # all end alike, or the others would wait for rank 0
        problem = self._first(problem)
        if problem and state is None:
            raise CheckpointError(problem)
        if problem:
            # what was trained is worth more than that the rest of it can be kept
            self._problem(problem)
            self._say(problem)
        return state or TrainingState.start(self._task.device)

    def _resume(self) -> TrainingState | None:
        refused: list[str] = []
        found = self._found(refused)
        newest = found[0].manifest.step if found else 0
        for checkpoint in found:
            states, problem, unreadable = self._read(checkpoint)
            told = self._gather((problem, unreadable))
            self._stop_if([each for each, is_unreadable in told if is_unreadable])
            problems = [each for each, _ in told if each]
            if not problems:
                self._note(refused, checkpoint)
                self._lost(newest - checkpoint.manifest.step)
                return self._go_on(checkpoint, *states)
            refused += problems[:1]
        self._note(refused, None)
        self._lost(newest)
        return None

    def _found(self, refused: list[str]) -> list[Checkpoint]:
        """What rank 0 finds, the newest first, on all ranks."""
        found, unreadable = list[Checkpoint](), ""
        if self._rank == 0:
            try:
                found = list(self._files.usable(refused))
            except OSError as error:
                unreadable = _unreadable(error)
        found, unreadable = self._first((found, unreadable))
        self._stop_if([unreadable] if unreadable else [])
        return found

    def _read(self, checkpoint: Checkpoint) -> tuple[list[dict[str, Any]], str, bool]:
        """What it holds for this rank; or what is wrong, and whether it may be whole all the same."""
        try:
            paths = [checkpoint.check(name) for name in (SHARED, own_name(self._rank))]
        except CheckpointError as error:
            return [], str(error), False
        except OSError as error:
            return [], _unreadable(error), True
        try:
            return [load(path, HOST) for path in paths], "", False
        except CheckpointError as error:
            # its bytes are those that were written: it is this host that has, for instance, no memory for it
            return [], str(error), True
        except OSError as error:
            return [], _unreadable(error), True

    def _stop_if(self, unreadable: list[str]) -> None:
        """What cannot be read now may be whole: nothing is trained in its place, and nothing taken away."""
        if unreadable:
            raise CheckpointError(
                f"{unreadable[0]}. It may be whole, so nothing was deleted and nothing trained. Look at the "
                "file system and the nodes' memory, or delete that checkpoint's folder to go on from the one "
                "before."
            )

    def _lost(self, steps: int) -> None:
        """Count what the newest checkpoint held beyond the one that is used."""
        lost = self.resumption.lost_steps + steps
        self.resumption = self.resumption.model_copy(update={"lost_steps": lost})

    def _go_on(self, checkpoint: Checkpoint, shared: dict[str, Any], own: dict[str, Any]) -> TrainingState:
        before = Resumption.model_validate(shared.pop("resumption"))
        self.earlier_peak_bytes = own.pop("peak_memory_bytes")
        try:
            state = resume(self._task, shared, own)
        except CheckpointError as error:
            raise CheckpointError(
                f"{checkpoint.folder} {error}. Undo that, or delete {checkpoint.folder.parent} to train from "
                "the beginning."
            ) from error
        assignment = self._assignment
        self.resumption = self.resumption.model_copy(
            update={
                "resumed_at_steps": [*before.resumed_at_steps, state.steps],
                "checkpoints": before.checkpoints,
                "checkpoint_seconds": before.checkpoint_seconds,
                "earlier_hosts": before.earlier_hosts,
                "earlier_other_jobs": before.earlier_other_jobs,
                "problems": [*before.problems, *self.resumption.problems],
            }
        )
        self._kept_step = state.steps
        self._say(f"resumed at step {state.steps} from {checkpoint.folder} (start {assignment.starts})")
        return state

    def _note(self, refused: list[str], used: Checkpoint | None) -> None:
        """Say what was not used, and take it away."""
        for why in self._first(refused):
            self._say(f"not used: {why}")
            self._problem(f"not used: {why}")
        if self._rank == 0:
            self._files.keep_up_to(used)

    # --- at step edges

    def at_edge(self, state: TrainingState) -> bool:
        """After each optimizer step: whether the training ends here, with a checkpoint of just this step."""
        verdict = self._agreement.at_edge()
        if verdict is None:
            return False
        self.tell(state)
        if verdict is Verdict.GO_ON:
            return False
        problem = self._write(state)
        if verdict is Verdict.CHECKPOINT:
            return False
        if self._rank == 0:
            note = Stopped(
                step=state.steps, saved=not problem, problem=problem, because=self._agreement.because
            )
            with suppress(OSError):  # a full disk; the supervisor then takes this end for a failure
                self._attempt.stopped(note)
            kept = f"checkpoint at step {state.steps}" if not problem else f"no checkpoint: {problem}"
            self._say(f"stopped by {note.because}; {kept}")
        return True

    def _asked(self) -> str | None:
        if (signal := self._signalled()) is not None:
            return signal
        return self.messenger.stop_request

    def tell(self, state: TrainingState) -> None:
        """How far the training has come, to those outside."""
        epochs = self._task.settings.epochs
        self.messenger.progress = Progress(epoch=state.epoch, epochs=epochs, step=state.steps)

    # --- writing

    def _write(self, state: TrainingState) -> str:
        """Write a checkpoint, off the clock; why there is none, the same on all ranks."""
        if state.steps == self._kept_step:
            return ""
        task = self._task
        task.clock.close_window()
        phase, task.monitor.phase = task.monitor.phase, "checkpoint"
        began = time.monotonic()
        problem = self._written(state)
        seconds = time.monotonic() - began
        if problem:
            self._problem(f"step {state.steps}: {problem}")
            self._say(f"checkpoint at step {state.steps} not written: {problem}")
        else:
            self._kept_step = state.steps
        self.resumption = self.resumption.model_copy(
            update={
                "checkpoints": self.resumption.checkpoints + (not problem),
                "checkpoint_seconds": self.resumption.checkpoint_seconds + seconds,
            }
        )
        task.monitor.phase = phase
        self._agreement.written()
        task.clock.open_window()
        return problem

    def _written(self, state: TrainingState) -> str:
        finite = self._gather(is_finite(self._task, state))
        if not all(finite):
            ranks = ", ".join(str(rank) for rank, still in enumerate(finite) if not still)
            return f"loss or weights of rank {ranks} are no longer finite"
        part, problem = self._first(self._begun(state.steps))
        if part is None:
            return str(problem)
        sums, problem = self._save_files(part, state)
        parts = self._gather((sums, problem))
        problem = next((each for _, each in parts if each), "")
        if self._rank == 0:
            if problem:
                self._files.abandon(part)
            else:
                files = {name: summed for sums, _ in parts for name, summed in sums.items()}
                problem = self._committed(part, state.steps, files)
        return self._first(problem)

    def _begun(self, step: int) -> tuple[Path | None, str]:
        if self._rank != 0:
            return None, ""
        if not self._attempt.is_current:
            return None, TAKEN
        try:
            return self._files.begin(step), ""
        except OSError as error:
            return None, why_not(error, self._assignment.checkpoints, self._bytes[1])

    def _save_files(self, part: Path, state: TrainingState) -> tuple[dict[str, FileSum], str]:
        sums = {}
        try:
            name = own_name(self._rank)
            own = own_state(self._task, state) | {"peak_memory_bytes": self.peak_memory_bytes}
            sums[name] = save(part / name, own)
            if self._rank == 0:
                shared = shared_state(self._task, state)
                shared["resumption"] = self._for_the_next().model_dump()
                sums[SHARED] = save(part / SHARED, shared)
        except CheckpointError as error:
            return {}, str(error)
        return sums, ""

    def _for_the_next(self) -> Resumption:
        """What a start that goes on from the checkpoint that is being written has before it."""
        now = self.resumption
        return now.model_copy(
            update={
                "checkpoints": now.checkpoints + 1,
                "earlier_hosts": list(dict.fromkeys([*now.earlier_hosts, *self._hosts])),
                "earlier_other_jobs": most(now.earlier_other_jobs, self._assignment.other_jobs),
            }
        )

    def _committed(self, part: Path, step: int, sums: dict[str, FileSum]) -> str:
        elapsed = self._assignment.elapsed_seconds + time.monotonic() - self._began
        if not self._attempt.is_current:
            return TAKEN
        try:
            self._files.commit(part, step, elapsed, sums)
        except OSError as error:
            self._files.abandon(part)
            return why_not(error, part, 0)
        return ""

    # --- among ranks

    def _first(self, value: T) -> T:
        """Rank 0's value, on all ranks."""
        return self._gather(value)[0]

    def _gather(self, value: T) -> list[T]:
        """The value of every rank, in rank order, on all ranks."""
        return gather(value, self._world_size, self._group)

    def _problem(self, text: str) -> None:
        self.resumption = self.resumption.model_copy(update={"problems": [*self.resumption.problems, text]})

    def _say(self, text: str) -> None:
        if self._rank == 0:
            say(text)


def _unreadable(error: OSError) -> str:
    return f"{error.filename} cannot be read: {error.strerror}"
