"""Resume a training from its checkpoints, and write them, on all ranks together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from scalewise.builtin.checkpoints.host_group import HostGroup
from scalewise.builtin.checkpoints.restore import Restored, read_newest
from scalewise.builtin.checkpoints.state import (
    SHARED,
    expected_bytes,
    is_finite,
    rank_file,
    rank_state,
    resume,
    shared_state,
)
from scalewise.builtin.checkpoints.step_consensus import StepConsensus
from scalewise.builtin.checkpoints.storage import check_space, explained, save
from scalewise.builtin.loop import TrainingState
from scalewise.builtin.trainer import Trainer
from scalewise.execution.checkpoint_files import KEPT, CheckpointError, CheckpointFolder, FileSum
from scalewise.execution.messages import GracefulStop, Progress, TrainSpec
from scalewise.execution.progress_reporter import ProgressReporter
from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.results.rank_report import RankReport, write_report
from scalewise.records import Resumption, most_known

SLOWEST_BYTES_PER_SECOND = 20e6
"""Speed of a busy file system: ranks wait so much longer for one another while a checkpoint is written."""


class Checkpointer:
    """Keeps one training from its start or resume to its end; inside the process group, on all ranks.

    Args:
        trainer: This rank's part of the training.
        rank_files: Receive the progress.
        spec: The run, and what is known of its earlier starts.
        began: Monotonic seconds at which this start of the run began.
        timeout_seconds: A rank waits this long for the others in a step.
        signalled: Returns the name of the signal that this rank received, if any.
        report: Returns what is known of this rank in addition to its steps.
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
        self._trainer, self._rank_files, self._spec, self._began = trainer, rank_files, spec, began
        self._report = report
        identity = trainer.identity
        self._rank = identity.rank
        self._files = CheckpointFolder(spec.checkpoints, spec.definition, spec.input_hashes)
        self._file_bytes, self._total_bytes = expected_bytes(trainer)
        # while rank 0 writes for all, the others wait longer than for a step
        write_seconds = 2 * self._total_bytes / SLOWEST_BYTES_PER_SECOND
        self._group = HostGroup(identity, timeout_seconds + write_seconds)
        self._hosts = self._group.gather(identity.host)
        self.reporter = ProgressReporter(rank_files if self._rank == 0 else None, self._samples_per_second)
        """Must be entered while the ranks train."""
        self._consensus = StepConsensus(
            HostGroup(identity, timeout_seconds),
            spec.checkpoint_seconds,
            lambda: signalled() or self.reporter.stop_request,
        )
        self._saved_step: int | None = None
        self.resumption = Resumption()
        """Starts, resumes and checkpoints of the run so far."""

    def begin(self) -> TrainingState:
        """Resume from the newest checkpoint that is complete, or begin the training.

        Raises:
            CheckpointError: A checkpoint cannot be read now, or there is no room for new ones.
        """
        spec = self._spec
        found = read_newest(self._files, self._group, spec)
        if found.checkpoint is not None:
            self.resumption = Resumption.model_validate(found.shared["resumption"])
        self.resumption.starts = spec.start_number
        self.resumption.lost_steps = spec.lost_steps + found.lost_steps
        for reason in found.refused:
            self._report_problem(f"not used: {reason}")
        if self._rank == 0:
            self._files.delete_newer_than(found.checkpoint)
        state = None if found.checkpoint is None else self._resume(found.checkpoint.folder, found)
        # all that are kept and the one that is being written; a training that resumes has the former
        new_bytes = self._total_bytes * (KEPT + 1 if state is None else 1)
        try:
            self._group.on_rank_0(lambda: check_space(spec.checkpoints, self._file_bytes, new_bytes))
        except CheckpointError as error:
            problem = f"no room for checkpoints: {error}"
            if state is None:
                raise CheckpointError(problem) from None
            # a training without further checkpoints is better than none
            self._report_problem(problem)
        return state or TrainingState.start(self._trainer.device)

    def _resume(self, folder: Path, found: Restored) -> TrainingState:
        try:
            state = resume(self._trainer, found.shared, found.rank_state)
        except CheckpointError as error:
            raise CheckpointError(
                f"{folder} {error}. Undo that, or delete {folder.parent} to train from the beginning."
            ) from error
        self.resumption.resumed_at_steps.append(state.steps)
        self._saved_step = state.steps
        self._log(f"resumed at step {state.steps} from {folder} (start {self._spec.start_number})")
        return state

    def after_step(self, state: TrainingState) -> bool:
        """Write a checkpoint if one is due or the training must stop; True if it stops here."""
        decision = self._consensus.after_step()
        if decision is None:
            return False
        self.update_progress(state)
        if decision == "continue":
            return False
        problem = self._write(state)
        if decision == "checkpoint":
            return False
        if self._rank == 0:
            source = self._consensus.stop_source
            with suppress(OSError):  # a full disk; the supervisor then takes this end for a failure
                self._rank_files.stopped(
                    GracefulStop(step=state.steps, saved=not problem, problem=problem, stop_source=source)
                )
            checkpoint = f"no checkpoint: {problem}" if problem else f"checkpoint at step {state.steps}"
            self._log(f"stopped by {source}; {checkpoint}")
        return True

    def update_progress(self, state: TrainingState) -> None:
        """Have the training's progress reported."""
        settings = self._trainer.settings
        self.reporter.progress = Progress(
            epoch=state.epoch,
            epochs=settings.epochs,
            step=state.steps,
            steps=settings.last_step,
            steps_per_epoch=len(self._trainer.sampler),
        )

    def _write(self, state: TrainingState) -> str:
        """Write a checkpoint between two measured steps; returns why there is none, the same on all ranks."""
        if state.steps == self._saved_step:
            return ""
        measured = self._trainer.measured
        measured.pause("checkpoint")
        began, problem = time.monotonic(), ""
        try:
            self._write_together(state)
        except CheckpointError as error:
            problem = str(error)
            self._report_problem(f"checkpoint at step {state.steps} not written: {problem}")
        else:
            self._saved_step = state.steps
            self.resumption.checkpoints += 1
        self.resumption.checkpoint_seconds += time.monotonic() - began
        self._consensus.checkpoint_written()
        measured.resume()
        return problem

    def _write_together(self, state: TrainingState) -> None:
        """Write the parts of all ranks as one checkpoint, or none.

        Raises:
            CheckpointError: There is none; the same on all ranks.
        """
        finite = self._group.gather(is_finite(self._trainer, state))
        if not all(finite):
            ranks = ", ".join(str(rank) for rank, ok in enumerate(finite) if not ok)
            raise CheckpointError(f"loss or weights of rank {ranks} are no longer finite")
        part = self._group.on_rank_0(lambda: self._begin_part(state.steps))
        try:
            sums = self._group.gather(self._group.all_or_none(lambda: self._save(part, state)))
            files = {name: file_sum for each in sums for name, file_sum in each.items()}
            self._group.on_rank_0(lambda: self._commit(part, state.steps, files))
        except CheckpointError:
            if self._rank == 0 and self._rank_files.is_current:
                self._files.abandon(part)
            raise

    def _begin_part(self, step: int) -> Path:
        self._check_current()
        with explained(self._spec.checkpoints, self._total_bytes):
            return self._files.begin(step)

    def _save(self, part: Path, state: TrainingState) -> dict[str, FileSum]:
        """Write what this start has measured so far, then this rank's files."""
        folder = self._spec.starts / str(self._spec.start_number)
        with explained(folder, self._total_bytes):
            folder.mkdir(parents=True, exist_ok=True)
            self._trainer.measured.write_record(folder, "seen")
            write_report(folder, self._report())
        name = rank_file(self._rank)
        sums = {name: save(part / name, rank_state(self._trainer, state))}
        if self._rank == 0:
            shared = shared_state(self._trainer, state)
            shared["resumption"] = self._resumption_of_next_start().model_dump()
            sums[SHARED] = save(part / SHARED, shared)
        return sums

    def _commit(self, part: Path, step: int, files: dict[str, FileSum]) -> None:
        elapsed = self._spec.elapsed_seconds + time.monotonic() - self._began
        self._check_current()
        with explained(part, self._total_bytes):
            self._files.commit(part, step, elapsed, files)

    def _check_current(self) -> None:
        """Check that no other job has begun the run again while this one stalled."""
        if not self._rank_files.is_current:
            raise CheckpointError("the run's folder is another training's by now")

    def _resumption_of_next_start(self) -> Resumption:
        """Return the record with which a start resumes from the checkpoint that is being written."""
        now = self.resumption
        return now.model_copy(
            update={
                "checkpoints": now.checkpoints + 1,
                "earlier_hosts": list(dict.fromkeys([*now.earlier_hosts, *self._hosts])),
                "earlier_other_jobs": most_known(now.earlier_other_jobs, self._spec.other_jobs),
                "earlier_study_jobs": most_known(now.earlier_study_jobs, self._spec.study_jobs),
            }
        )

    def _samples_per_second(self) -> float | None:
        steps_per_second = self._trainer.measured.steps.recent_steps_per_second()
        return (
            None if steps_per_second is None else steps_per_second * self._spec.definition.global_batch_size
        )

    def _report_problem(self, text: str) -> None:
        self.resumption.problems.append(text)
        self._log(text)

    def _log(self, text: str) -> None:
        if self._rank == 0:
            self.reporter.say(text)
