"""A training's checkpoints from the inside: all ranks go on from them and write them together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scalewise.builtin.checkpoints.restore import HostGroup, Restored, read_newest
from scalewise.builtin.checkpoints.state import (
    SHARED,
    expected_bytes,
    is_finite,
    own_name,
    own_state,
    resume,
    shared_state,
)
from scalewise.builtin.checkpoints.step_consensus import StepConsensus, StepDecision
from scalewise.builtin.checkpoints.storage import check_space, describe_write_error, save
from scalewise.builtin.loop import TrainingState
from scalewise.builtin.trainer import Trainer
from scalewise.execution.checkpoint_files import (
    KEPT,
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    FileSum,
)
from scalewise.execution.messages import GracefulStop, Progress, TrainSpec
from scalewise.execution.progress_reporter import ProgressReporter
from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.results.rank_report import RankReport, write_report
from scalewise.ranks.results.starts import covers
from scalewise.records import Resumption

TAKEN = "the run's folder is another training's by now"
"""The reason why a checkpoint is not written after a stall; the supervisor learns of it by itself."""

SLOWEST_BYTES_PER_SECOND = 20e6
"""Pace of a busy file system: ranks wait so much longer for one another while a checkpoint is written."""


class Checkpointer:
    """Keeps one training from its resumption to its end; inside the process group, on all ranks.

    Args:
        trainer: This rank's part of the training.
        rank_files: Learns how far the training has come.
        spec: The run, and what earlier starts of it left.
        began: Monotonic seconds at which this start of the run began.
        timeout_seconds: A rank waits this long for the others in a step.
        signalled: Returns the name of the signal that this rank received, if any.
        report: Returns what is known of this rank beside its steps.
    """

    def __init__(
        self,
        trainer: Trainer,
        rank_files: RankFiles,
        spec: TrainSpec,
        began: float,
        timeout_seconds: float,
        signalled: Callable[[], str | None],
        report: Callable[[], RankReport],
    ) -> None:
        self._trainer = trainer
        self._rank_files = rank_files
        self._spec = spec
        self._signalled = signalled
        self._report = report
        self._rank = trainer.identity.rank
        self._files = CheckpointFolder(spec.checkpoints, spec.definition, spec.input_hashes)
        self._consensus = StepConsensus(timeout_seconds, spec.checkpoint_seconds, self._asked)
        self._began = began
        self._kept_step: int | None = None
        self._bytes = expected_bytes(trainer)
        # while rank 0 writes for all, the others wait longer than for a step
        patience = timeout_seconds + 2 * self._bytes[1] / SLOWEST_BYTES_PER_SECOND
        self._group = HostGroup(trainer.identity, patience)
        self._hosts = self._group.gather(trainer.identity.host)
        self.reporter = ProgressReporter(rank_files if self._rank == 0 else None, self._samples_per_second)
        """Must be entered while the ranks train."""
        self.resumption = Resumption(starts=spec.start_number, lost_steps=spec.lost_steps)

    # --- before the first step

    def begin(self) -> TrainingState:
        """Go on from the newest checkpoint that is whole, or from the training's beginning.

        Raises:
            CheckpointError: A checkpoint cannot be read now, or new ones would find no room.
        """
        state = self._resume()
        problem = ""
        if self._rank == 0:
            try:
                file_bytes, total_bytes = self._bytes
                # those that stay and the one that is being written; a training that goes on has the former
                count = KEPT + 1 if state is None else 1
                check_space(self._spec.checkpoints, file_bytes, count * total_bytes)
            except CheckpointError as error:
                problem = f"no room for checkpoints: {error}"
        # all end alike, or the others would wait for rank 0
        problem = self._group.first(problem)
        if problem and state is None:
            raise CheckpointError(problem)
        if problem:
            # what was trained is worth more than that the rest of it can be kept
            self._problem(problem)
            self._say(problem)
        return state or TrainingState.start(self._trainer.device)

    def _resume(self) -> TrainingState | None:
        found = read_newest(self._files, self._group, self._lacks_times)
        for why in found.refused:
            self._say(f"not used: {why}")
            self._problem(f"not used: {why}")
        if self._rank == 0:
            self._files.delete_newer_than(found.checkpoint)
        lost = self.resumption.lost_steps + found.lost_steps
        self.resumption = self.resumption.model_copy(update={"lost_steps": lost})
        return None if found.checkpoint is None else self._go_on(found.checkpoint.folder, found)

    def _lacks_times(self, checkpoint: Checkpoint) -> str:
        """Say that the steps of a checkpoint were not measured; empty if their records are there."""
        if covers(self._spec, self._rank, checkpoint.manifest.step):
            return ""
        return f"{checkpoint.folder}: the times of its steps are missing in {self._spec.starts}"

    def _go_on(self, folder: Path, found: Restored) -> TrainingState:
        before = Resumption.model_validate(found.shared["resumption"])
        try:
            state = resume(self._trainer, found.shared, found.own)
        except CheckpointError as error:
            raise CheckpointError(
                f"{folder} {error}. Undo that, or delete {folder.parent} to train from the beginning."
            ) from error
        spec = self._spec
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
        self._say(f"resumed at step {state.steps} from {folder} (start {spec.start_number})")
        return state

    # --- at step edges

    def after_step(self, state: TrainingState) -> bool:
        """Say after an optimizer step whether the training ends here, with a checkpoint of just this step."""
        decision = self._consensus.after_step()
        if decision is None:
            return False
        self.tell(state)
        if decision is StepDecision.CONTINUE:
            return False
        problem = self._write(state)
        if decision is StepDecision.CHECKPOINT:
            return False
        if self._rank == 0:
            note = GracefulStop(
                step=state.steps, saved=not problem, problem=problem, stop_source=self._consensus.stop_source
            )
            with suppress(OSError):  # a full disk; the supervisor then takes this end for a failure
                self._rank_files.stopped(note)
            kept = f"checkpoint at step {state.steps}" if not problem else f"no checkpoint: {problem}"
            self._say(f"stopped by {note.stop_source}; {kept}")
        return True

    def _asked(self) -> str | None:
        if (signal := self._signalled()) is not None:
            return signal
        return self.reporter.stop_request

    def tell(self, state: TrainingState) -> None:
        """Tell those outside how far the training has come."""
        settings = self._trainer.settings
        self.reporter.progress = Progress(
            epoch=state.epoch,
            epochs=settings.epochs,
            step=state.steps,
            steps=settings.last_step,
            steps_per_epoch=len(self._trainer.sampler),
        )

    # --- writing

    def _write(self, state: TrainingState) -> str:
        """Write a checkpoint, off the clock; the reason why there is none is the same on all ranks."""
        if state.steps == self._kept_step:
            return ""
        trainer = self._trainer
        trainer.measured.pause("checkpoint")
        phase, trainer.monitor.phase = trainer.monitor.phase, "checkpoint"
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
        trainer.monitor.phase = phase
        self._consensus.checkpoint_written()
        trainer.measured.resume()
        return problem

    def _written(self, state: TrainingState) -> str:
        """Have every rank write its part of one checkpoint, or none; returns why there is none."""
        finite = self._group.gather(is_finite(self._trainer, state))
        if not all(finite):
            ranks = ", ".join(str(rank) for rank, still in enumerate(finite) if not still)
            return f"loss or weights of rank {ranks} are no longer finite"
        part, problem = self._group.first(self._begun(state.steps))
        if part is None:
            return str(problem)
        sums, problem = self._save_files(part, state)
        parts = self._group.gather((sums, problem))
        problem = next((each for _, each in parts if each), "")
        if self._rank == 0:
            if problem:
                self._files.abandon(part)
            else:
                files = {name: summed for sums, _ in parts for name, summed in sums.items()}
                problem = self._committed(part, state.steps, files)
        return self._group.first(problem)

    def _begun(self, step: int) -> tuple[Path | None, str]:
        if self._rank != 0:
            return None, ""
        if not self._rank_files.is_current:
            return None, TAKEN
        try:
            return self._files.begin(step), ""
        except OSError as error:
            return None, describe_write_error(error, self._spec.checkpoints, self._bytes[1])

    def _save_files(self, part: Path, state: TrainingState) -> tuple[dict[str, FileSum], str]:
        sums = {}
        try:
            self._write_measurements()
            name = own_name(self._rank)
            sums[name] = save(part / name, own_state(self._trainer, state))
            if self._rank == 0:
                shared = shared_state(self._trainer, state)
                shared["resumption"] = self._for_the_next().model_dump()
                sums[SHARED] = save(part / SHARED, shared)
        except CheckpointError as error:
            return {}, str(error)
        return sums, ""

    def _write_measurements(self) -> None:
        """Write what this start has measured so far, before its checkpoint is complete."""
        folder = self._spec.starts / str(self._spec.start_number)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._trainer.measured.write_record("seen", folder)
            write_report(folder, self._report())
        except OSError as error:
            raise CheckpointError(describe_write_error(error, folder, 0)) from error

    def _samples_per_second(self) -> float | None:
        pace = self._trainer.measured.steps.recent_steps_per_second()
        return None if pace is None else pace * self._spec.definition.global_batch_size

    def _for_the_next(self) -> Resumption:
        """The record that a start finds which goes on from the checkpoint that is being written."""
        now = self.resumption
        other_jobs = [each for each in (now.earlier_other_jobs, self._spec.other_jobs) if each is not None]
        return now.model_copy(
            update={
                "checkpoints": now.checkpoints + 1,
                "earlier_hosts": list(dict.fromkeys([*now.earlier_hosts, *self._hosts])),
                "earlier_other_jobs": max(other_jobs, default=None),
            }
        )

    def _committed(self, part: Path, step: int, sums: dict[str, FileSum]) -> str:
        elapsed = self._spec.elapsed_seconds + time.monotonic() - self._began
        if not self._rank_files.is_current:
            return TAKEN
        try:
            self._files.commit(part, step, elapsed, sums)
        except OSError as error:
            self._files.abandon(part)
            return describe_write_error(error, part, 0)
        return ""

    # --- what is told

    def _problem(self, text: str) -> None:
        self.resumption = self.resumption.model_copy(update={"problems": [*self.resumption.problems, text]})

    def _say(self, text: str) -> None:
        if self._rank == 0:
            self.reporter.say(text)
