"""One process of a training: its hooks report what happens, and it joins that into steps and a record."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

# by name: a program may replace the functions in their module
from time import perf_counter, sleep, time
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import origins
from .batches import checksum, samples_of_inputs, shape_of
from .communication import CommunicationSamples
from .discovery import all_objects, compiled_frames, device_of, parameters_of
from .ending import Ending, finish_with_multiprocessing
from .flops import CountedStep
from .guards import Notes
from .loader_iterations import CHECKED_BATCHES, LoaderIterations
from .losses import LossTrend
from .memory import PeakMemory
from .probe_spec import ProbeSpec
from .process_record import process_record, write_json, write_text
from .rank_waits import GROUP, group_place
from .step_flags import COPY, EVAL_MODE, NEW_SHAPE, NO_GRAD, SAVE
from .steps import FORWARD_STEPS, LOOK_EVERY, Step, StepRecord
from .trained_model import TrainedModel
from .training_steps import SkippedUpdates, SteppedOptimizer, TrainingSteps

COUNTED_EVERY_SECONDS = 2.0
"""Least seconds between two writes of the number of steps."""

NO_STEP_BACKWARDS = 50
"""Backward passes without an optimizer step, after which a file says so."""

HELD_SECONDS = 60.0
"""Longest wait of a rank without batches for the end of the run."""


class MeasuredProcess:
    """A process of a program whose training is measured.

    Args:
        spec: Says what to measure, and the folder of the files.
        started: Monotonic seconds of the process's start, if the system does not report it.
    """

    def __init__(self, spec: ProbeSpec, started: float) -> None:
        self.spec = spec
        self.notes = Notes()
        self.model = TrainedModel(self.notes, self.forward)
        self.torch_imported = perf_counter()
        self.begin_process(origins.process_started(started))
        self._began_at = time() - (perf_counter() - self.started)
        """Time of day at which the process began, by the clock as it was then."""

    def begin(self) -> None:
        """Leave a record at the end."""
        atexit.register(self.at_exit)

    def begin_forked_process(self) -> None:
        """Begin again, with nothing but the hooks, in a process that was forked.

        What the parent measured is never freed here: the destructor of a CUDA event calls CUDA, which fails
        in a forked process, and ends it by SIGABRT.
        """
        of_parent = vars(self).copy()
        # the interpreter frees all that nothing but its own modules refer to at its end
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(of_parent))
        self.begin_process()

    def begin_process(self, started: float | None = None) -> None:
        """Begin with nothing but the hooks."""
        self.model.unhook()
        self.pid = os.getpid()
        self.started = origins.process_started(perf_counter()) if started is None else started
        self.rank = int(os.environ.get("RANK") or 0)
        self.world_size = 1
        self.backend: str | None = None
        self.place: dict[str, Any] = {}
        """Device, threads and CPUs; empty before the first step."""
        self.notes.begin_process()
        self.steps = StepRecord()
        self.counted_step = CountedStep(self.spec.warmup_steps) if self.spec.count_flops else None
        self.training = TrainingSteps[Step](self.spec.optimizer)
        self.skipped = SkippedUpdates()
        self.iterations = LoaderIterations()
        self.losses = LossTrend()
        self.memory = PeakMemory()
        self.model = TrainedModel(self.notes, self.forward)
        self.forward_checksums: list[int | None] = []
        self.backwards = self.gradients = self.backwards_in_steps = 0
        """Number of backward passes, of calls of ``torch.autograd.grad``, and of passes in closures."""
        self._counted = 0, 0, 0
        """The same up to the last step."""
        self.passes = 0
        """Number of passes of all steps: backward passes, or calls of ``grad`` where there are none; those
        that an optimizer makes in its step, of one batch, are one."""
        self.precision: dict[tuple[str, torch.dtype], int] = {}
        self.communication: CommunicationSamples | None = None
        self._compiled_frames = 0
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        """Shape of each batch of a step, for all steps so far."""
        self.ending = Ending()
        self._next_count = 0.0
        self._has_ended = False
        self._group_place = self.rank, ""
        self._activity_before_join = 0
        self._is_uneven = False

    @property
    def activity(self) -> int:
        """Number of passes and steps."""
        return self.backwards + self.gradients + self.steps.done

    # reports of the hooks before the first step

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
        wait = {"rank": rank, "address": address if name == GROUP else None, "where": name}
        write_json(self._file("wait"), wait)

    # reports of the hooks, in the order of a step

    def begin_iteration(self, loader: Any, iterator: Any) -> None:
        """Note that a data-loader iteration has begun.

        Args:
            loader: The DataLoader.
            iterator: The iterator of this iteration.
        """
        step = self.steps.open
        step.loaders = [*step.loaders, self.iterations.begin(iterator, loader)]

    def wait_mark(self) -> Any:
        """Mark the begin of a wait for a batch on the device; None without a GPU that is trained on."""
        try:
            return self.steps.wait_mark()
        except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
            self.notes.fault("batch", error)
            return None

    def add_batch(
        self, iterator: Any, batch: Any, requested_at: float, received_at: float, mark: Any
    ) -> None:
        """Note a batch.

        Args:
            iterator: Has given it.
            batch: The batch.
            requested_at: Monotonic seconds at which the wait for it began.
            received_at: Monotonic seconds at which it ended.
            mark: Begin of the wait by the GPU's clock; None without one.
        """
        step = self.steps.open
        added = self.iterations.add_batch(iterator, batch, requested_at, received_at, self.activity)
        if self.steps.device is not None and torch.backends.cudnn.benchmark:
            added.shape = shape_of(batch)
        if mark is not None:
            added.wait_marks = mark, self.steps.wait_mark()
        step.batches = (*step.batches, added)

    def end_iteration(self, iterator: Any) -> None:
        """Note the end of a data-loader iteration."""
        self.iterations.end(iterator, self.activity)

    def autocast(self, context: Any) -> None:
        """Note that a context of mixed precision was entered."""
        if context._enabled:
            key = context.device, context.fast_dtype
            self.precision[key] = self.precision.get(key, 0) + 1

    def forward(self, args: Any, kwargs: Any, is_copy: bool = False) -> None:
        """Note a forward pass of what is trained, or of a copy, which counts only without gradients."""
        step, trains = self.steps.open, torch.is_grad_enabled()
        if not trains:
            self._without_gradients(COPY if is_copy else NO_GRAD)
        elif not step.mode_changes:
            step.mode_changes = ((perf_counter(), True),)
        elif not step.mode_changes[-1][1]:
            step.change_mode(perf_counter(), trains=True)
        done = self.steps.done
        # closures of an optimizer pass the same batch again and again
        repeats = bool(step.forwards) and self.training.is_stepping
        if trains and not repeats and (done < FORWARD_STEPS or done % LOOK_EVERY == 0):
            step.forwards = [*step.forwards, samples_of_inputs((args, kwargs))]
            if len(self.forward_checksums) < CHECKED_BATCHES:
                self.forward_checksums.append(checksum((args, kwargs)))

    def backward(self, tensors: Any) -> None:
        """Note a backward pass, and now and then its loss."""
        self.backwards += 1
        self.backwards_in_steps += self.training.is_stepping
        if self.steps.done % self.losses.every == 0:
            self.losses.keep(self.steps.done, tensors)
        if self.backwards == NO_STEP_BACKWARDS and not self.place:
            # no step follows after many passes
            write_text(self._file("backwards"), str(self.backwards))

    def gradient(self) -> None:
        """Note that gradients are computed by ``torch.autograd.grad``, maybe to be put into place by hand."""
        self.gradients += not self.training.is_stepping

    def evaluates(self, module: nn.Module) -> None:
        """Note that a module changes to its mode for evaluation."""
        if id(module) in self.model.modules.whole:
            self._without_gradients(NO_GRAD | EVAL_MODE)
        elif id(module) in self.model.copies:
            self._without_gradients(COPY)

    def saves(self) -> None:
        """Note that something was saved."""
        self.steps.open.flags |= SAVE

    def before_step(self, optimizer: Optimizer, *_given: Any) -> None:
        """Note that an optimizer begins a step."""
        self.training.begin_step(optimizer)

    def after_step(self, optimizer: Optimizer, *_given: Any) -> None:
        """Note that an optimizer has made a step."""
        if self.training.end_step():
            self._end_update(optimizer)

    def skipped_step(self, optimizer: Optimizer) -> None:
        """Note that a scaler has skipped the update of a step."""
        self.skipped.on_host += self._may_lead(optimizer)
        self._end_update(optimizer)

    def step_on_device(self, scaler: Any, optimizer: Optimizer) -> None:
        """Note a step of a fused optimizer, whose kernel itself skips the update if a scaler says so."""
        if self._may_lead(optimizer):
            # one that is disabled has no states
            state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
            self.skipped.add_flags(list(state.get("found_inf_per_device", {}).values()))

    def _may_lead(self, optimizer: Optimizer) -> bool:
        leader = self.training.leader
        return leader is None or leader.reference() is optimizer

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

    # reactions

    def _end_update(self, optimizer: Optimizer) -> None:
        """End the step of the training, if this optimizer leads it."""
        if self.ending.raised_exits:
            # the program has swallowed the SystemExit
            if self._may_lead(optimizer):
                self.ending.end()
            return
        steps, training = self.steps, self.training
        if not self.place:
            self._first_step(optimizer)
        if steps.device is not None and torch.cuda.is_current_stream_capturing():
            self.notes.note("steps are captured in a CUDA graph: those that it replays are not seen")
            return
        leader = training.leader
        ended = training.after(optimizer, self._cut)
        if training.leader is not leader:
            self._follow()
        for parts in ended:
            self._end_step(parts)
        if not ended and training.has_ceased:
            self._leader_ceased(training.entry(optimizer))

    def _leader_ceased(self, other: SteppedOptimizer) -> None:
        """Note that the leader makes no further steps, and end a program that would never make its last.

        What another optimizer trains now is not followed.
        """
        assert self.training.leader is not None, "only a leader can cease"
        name = self.training.leader.name
        if other.is_late or other.name == name:
            fix = "Measure that phase by another program"
        else:
            fix = f"Write `optimizer: {other.name}` to measure the other one"
        self.notes.note(
            f"optimizer {name} no longer steps after {self.steps.done} steps, but {other.name} does: only "
            f"steps of the first count. {fix}"
        )
        if self.spec.last_step:
            self._end_training()

    def _cut(self) -> Step:
        before, gradients_before, inside_before = self._counted
        self._counted = backwards, gradients, inside = self.backwards, self.gradients, self.backwards_in_steps
        inside -= inside_before
        self.passes += backwards - before - inside or gradients - gradients_before or bool(inside)
        return self.steps.cut(perf_counter(), self.passes)

    def _end_step(self, parts: list[Step]) -> None:
        """Write what the watching process waits for; after the last step this raises SystemExit."""
        self._flag_new_shape(parts)
        self.steps.add(parts)
        done = self.steps.done
        if self.counted_step is not None:
            self._count_flops(
                self.counted_step, done, is_plain=not any(part.flags & NO_GRAD for part in parts)
            )
        if self.communication is not None:
            self.communication.after_step(done)
        if parts[-1].ended_at >= self._next_count:
            self._next_count = parts[-1].ended_at + COUNTED_EVERY_SECONDS
            write_text(self._file("steps"), str(done))
        if done == self.spec.check_after:
            write_json(self._file("seen.json"), self.record("seen"))
            self.steps.begin_step(self.passes)
        if done == self.spec.last_step:
            self._end_training()

    def _end_training(self) -> None:
        """Write the record, and raise SystemExit."""
        try:
            self.finish("steps")
        except Exception as error:  # noqa: BLE001  # without a record it ends all the same
            self.notes.fault("record", error)
        self.ending.end()

    def _count_flops(self, counted: CountedStep, done: int, *, is_plain: bool) -> None:
        try:
            compiled = self.model.modules.compiled or bool(compiled_frames())
            counted.after_step(done, is_plain=is_plain, compiled=compiled)
        except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
            self.counted_step = None
            self.notes.fault("floating-point operations", error)

    def _flag_new_shape(self, parts: list[Step]) -> None:
        """Flag a step that paid for a shape: something was compiled, or cuDNN tried its kernels."""
        if (frames := compiled_frames()) != self._compiled_frames:
            self._compiled_frames = frames
            parts[-1].flags |= NEW_SHAPE
        if self.steps.device is not None and torch.backends.cudnn.benchmark:
            shape = tuple(batch.shape for part in parts for batch in part.batches)
            if shape not in self._shapes:
                self._shapes.add(shape)
                parts[-1].flags |= NEW_SHAPE

    def _first_step(self, optimizer: Optimizer) -> None:
        finish_with_multiprocessing(self.at_exit)
        device = device_of(optimizer)
        self.steps.device = self.memory.device = self.ending.device = device
        self.place = origins.place_on_machine(device)
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            # now: at its end the program may have destroyed the group
            self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
            self.backend = str(distributed.get_backend())
        try:
            modules, optimizers = all_objects()
            self.training.register(optimizers, modules)
            # one that is there and has yet to step may be the training's
            heaviest = self.training.heaviest(optimizer)
            self.model.follow(heaviest, modules, optimizers)
            # now: a program of few steps may have dropped its model before its record is written
            self.model.count_parameters(parameters_of([heaviest]), is_over=False)
            self._time_communication("cpu" if device is None else "cuda")
        except Exception as error:  # noqa: BLE001  # the steps are counted all the same
            self.notes.fault("what is trained", error)
        self._check_threads()
        self._check_devices(optimizer)

    def _follow(self) -> None:
        """Follow the optimizer that leads now, if it is another one than the expected."""
        entry = self.training.leader
        leader = None if entry is None else entry.reference()
        if leader is not None and self.model.follows_another_than(leader):
            self.model.follow(leader, *all_objects())

    def _time_communication(self, device: str) -> None:
        data_parallel = self.model.modules.data_parallel
        if len(data_parallel) == 1:
            every = self.spec.sampled_communication[device]
            self.communication = CommunicationSamples(data_parallel[0], every, self.spec.warmup_steps)
        elif data_parallel:
            self.notes.note("communication is not timed: several DistributedDataParallel are trained")

    def _check_devices(self, optimizer: Optimizer) -> None:
        kinds = {parameter.device.type for parameter in parameters_of([optimizer])}
        if others := kinds - {"cpu", "cuda"}:
            self.notes.note(f"steps are timed by the host: the parameters are on {', '.join(sorted(others))}")

    def _check_threads(self) -> None:
        given, threads = os.environ.get("OMP_NUM_THREADS", ""), torch.get_num_threads()
        if given.isdigit() and int(given) != threads:
            self.notes.note(f"the program set its threads to {threads}, not {given}")

    def _without_gradients(self, flags: int) -> None:
        step = self.steps.open
        step.flags |= flags
        if not step.mode_changes or step.mode_changes[-1][1]:
            step.change_mode(perf_counter(), trains=False)
        if flags & NO_GRAD:
            self.memory.begin_evaluation()

    # the record

    def record(self, ended: str) -> dict[str, Any]:
        """Return all that was measured so far as JSON values; the device is waited for.

        Args:
            ended: ``seen`` while the training continues, ``steps`` or ``itself`` at its end.
        """
        if self.steps.device is not None:
            torch.cuda.synchronize(self.steps.device)
        return process_record(self, ended)

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that the training has imported."""
        return origins.versions(self.steps.device is not None)

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
