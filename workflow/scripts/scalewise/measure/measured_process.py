"""One process as its hooks see it: it keeps the steps, and writes the record."""

from __future__ import annotations

import atexit
import os
import platform
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

# by name: a program may replace the functions in their module
from time import perf_counter, time
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import origins
from .batches import checksum, samples_of_inputs
from .communication import CommunicationSamples
from .counted_optimizers import CountedOptimizers, SteppedOptimizer
from .discovery import (
    Trained,
    all_objects,
    are_finite,
    compiled_frames,
    device_of,
    no_figures,
    parameter_figures,
    parameters_of,
    what_is_trained,
)
from .early_end import EarlyEnd
from .ending import Ending, finish_with_multiprocessing
from .guards import Notes, hidden
from .kept_steps import NEW_SHAPE, NO_GRAD, SAVE
from .loader_passes import CHECKED_BATCHES, LoaderPasses
from .losses import LossTrend
from .memory import MemoryPhase, PeakMemory
from .probe_spec import ProbeSpec
from .root_calls import RootCalls
from .steps import FORWARD_STEPS, Step, StepRecord
from .training_steps import TrainingSteps
from .written import write_json, write_text

COUNTED_EVERY_SECONDS = 2.0
"""Least seconds from one count of steps that is written to the next."""

NO_STEP_BACKWARDS = 50
"""Backward passes without an optimizer step, after which the process says so."""


class MeasuredProcess:
    """Findings of the hooks of one process, and what is done after each of its steps.

    Args:
        spec: Says what to measure.
        started: Monotonic seconds of the process's start, if the system does not report it.
    """

    def __init__(self, spec: ProbeSpec, started: float) -> None:
        self.spec = spec
        self._early_steps = max(FORWARD_STEPS, spec.check_after, spec.warmup_steps)
        self.notes = Notes()
        self.optimizers = CountedOptimizers()
        self._root_calls: RootCalls | None = None
        self.torch_imported = perf_counter()
        self.begin_process(origins.process_started(started))
        self._began_at = time() - (perf_counter() - self.started)
        """Time of day at which the process began, by the clock as it was then."""

    def begin_program(self) -> None:
        """Leave a file for the process that watches this one, and a record at the end."""
        self._write_started()
        atexit.register(self.at_exit)

    # what a training says by itself, if it is measured in its own process

    def begin_training(self, from_step: int, last_step: int | None, device: torch.device) -> None:
        """Begin the first step now.

        Args:
            from_step: Optimizer steps that the training has made before.
            last_step: Optimizer steps after which it ends at the latest; None for another end.
            device: Trains.
        """
        steps = max((last_step or 0) - from_step - self.spec.warmup_steps, 0)
        self.spec = replace(self.spec, from_step=from_step, steps=steps)
        self._early_end = EarlyEnd(self.spec, self.steps, self.notes) if self.spec.until_interval else None
        self.steps.device = self.memory.device = device if device.type == "cuda" else None
        self.resume()

    def pause(self, phase: MemoryPhase) -> None:
        """End the training for now: what follows is in no step."""
        self.memory.enter(phase)

    def resume(self) -> None:
        """Begin the next step now."""
        self.memory.enter("train")
        self.steps.begin_step(self.backwards)

    @property
    def is_over(self) -> bool:
        """Whether the throughput is known well enough, for which the training was made."""
        return self._early_end is not None and self._early_end.is_due(self.steps.done)

    def begin_process(self, started: float | None = None) -> None:
        """Begin anew, as nothing but the hooks is left in a process that was forked."""
        self.stop()
        self.pid = os.getpid()
        self.started = origins.process_started(perf_counter()) if started is None else started
        self.rank = int(os.environ.get("RANK") or 0)
        self.world_size = 1
        self.backend: str | None = None
        self.notes.begin_process()
        self.steps = StepRecord()
        self._early_end = EarlyEnd(self.spec, self.steps, self.notes) if self.spec.until_interval else None
        self.optimizers.begin_process()
        self._training_steps = TrainingSteps[Step]()
        self.passes = LoaderPasses()
        self.losses = LossTrend()
        self.memory = PeakMemory(resets=not self.spec.watched)
        self.ending = Ending()
        self.trained = Trained()
        self._forward_checksums: list[int | None] = []
        self.backwards = 0
        self.precision: dict[tuple[str, torch.dtype], int] = {}
        self._communication: CommunicationSamples | None = None
        self._figures = no_figures()
        self._place: dict[str, Any] = {}
        self._looked_at: weakref.ref[Optimizer] | None = None
        """The optimizer whose modules are looked at."""
        self._next_count = 0.0
        self._compiled_frames = 0
        self._shapes: set[tuple[int | None, ...]] = set()
        """Samples of each batch of a step, as far as some step had them."""
        self._versions: dict[str, str] | None = None
        self._ended = False

    # what the hooks tell, in the order of a step

    def loader_began(self, loader: Any, iterator: Any, seconds: float) -> None:
        """Note that a pass over a DataLoader has begun, which took so long."""
        step = self.steps.open
        step.loaders = [*step.loaders, (self.passes.begin(iterator, loader), seconds)]

    def wait_mark(self) -> Any:
        """Mark the begin of a wait for a batch on the device; None without a GPU that is trained on."""
        try:
            return self.steps.wait_mark()
        except Exception as error:  # noqa: BLE001  # nothing of ours may end a user's program
            self.notes.fault("batch", error)
            return None

    def loaded(self, iterator: Any, batch: Any, asked: float, given: float, mark: Any) -> None:
        """Note a batch, with the monotonic seconds and the device's mark at which the wait for it began."""
        step = self.steps.open
        found = self.passes.batch(iterator, batch, asked, given, self.backwards + self.steps.done)
        if mark is not None:
            found.marks = mark, self.steps.wait_mark()
        step.batches = (*step.batches, found)

    def loader_ended(self, iterator: Any) -> None:
        """Note the end of a pass."""
        self.passes.end(iterator, self.backwards + self.steps.done)

    def autocast(self, context: Any) -> None:
        """Note that a context of mixed precision was entered."""
        if context._enabled:
            key = context.device, context.fast_dtype
            self.precision[key] = self.precision.get(key, 0) + 1

    def forward(self, args: Any, kwargs: Any) -> None:
        """Note a forward pass of what is trained, with gradients or without."""
        step, trains = self.steps.open, torch.is_grad_enabled()
        if not trains:
            self._without_gradients()
        elif not step.turns or not step.turns[-1][1]:
            step.turn(perf_counter(), trains=True)
        if trains and self.steps.done < FORWARD_STEPS:
            step.forwards = [*step.forwards, samples_of_inputs((args, kwargs))]
            if len(self._forward_checksums) < CHECKED_BATCHES:
                self._forward_checksums.append(checksum((args, kwargs)))

    def backward(self, tensors: Any) -> None:
        """Note a backward pass, and now and then its loss."""
        self.backwards += 1
        if self.steps.done % self.losses.every == 0:
            self.losses.keep(self.steps.done, tensors)
            if self.backwards == NO_STEP_BACKWARDS and not self._place:
                finish_with_multiprocessing(self.at_exit)
                self.notes.note(f"no optimizer step was seen in {NO_STEP_BACKWARDS} backward passes")
                self._write_started()

    def evaluates(self, module: nn.Module) -> None:
        """Note that a module was put into its mode for evaluation."""
        if id(module) in self.trained.whole:
            self._without_gradients()

    def saves(self) -> None:
        """Note that something was saved."""
        self.steps.open.flags |= SAVE

    def after_step(self, optimizer: Optimizer, *_given: Any) -> None:
        """Note that an optimizer has made a step; after the last one this raises SystemExit."""
        entry = self.optimizers.ends(optimizer)
        if entry is not None:
            self._end_part(optimizer, entry)

    def skipped_step(self, optimizer: Optimizer) -> None:
        """Note that a scaler has skipped the update of a step."""
        entry = self.optimizers.skips(optimizer)
        self.optimizers.skipped += self._training_steps.leader in (None, entry)
        self._end_part(optimizer, entry)

    def step_on_device(self, scaler: Any, optimizer: Optimizer) -> None:
        """Note a step of a fused optimizer, whose kernel itself skips the update if a scaler says so."""
        if self._training_steps.leader in (None, self.optimizers.entry(optimizer)):
            # one that is disabled has no states
            state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
            self.optimizers.add_flags(list(state.get("found_inf_per_device", {}).values()))

    # what is done with it

    def _end_part(self, optimizer: Optimizer, entry: SteppedOptimizer) -> None:
        steps, training = self.steps, self._training_steps
        if not self._place:
            self._first_step(optimizer)
        elif self.ending.attempts:
            if entry is training.leader:
                self.ending.end()
            return
        if steps.device is not None and torch.cuda.is_current_stream_capturing():
            self.notes.note("steps are captured in a CUDA graph: those that it replays are not seen")
            return
        leader = training.leader
        for parts in training.after(entry, self.optimizers.known(), self._cut):
            if training.leader is not leader:
                leader = training.leader
                self._look_at_leader(leader)
            self._end_step(parts)

    def _cut(self) -> Step:
        return self.steps.cut(perf_counter(), self.backwards)

    def _end_step(self, parts: list[Step]) -> None:
        steps = self.steps
        step = parts[-1]
        self._look_at_shape(parts)
        steps.add(parts)
        done = steps.done
        if self.spec.watched and step.at >= self._next_count:
            self._next_count = step.at + COUNTED_EVERY_SECONDS
            write_text(self._file("steps"), str(done))
        if done <= self._early_steps:
            self._after_early_step(done)
        if self._communication is not None:
            self._communication.after_step(done)
        last_step = self.spec.last_step
        if self._early_end is not None:
            self._early_end.after_step(done)
            last_step = self._early_end.last_step
        if done == last_step and self.spec.watched:
            try:
                self.finish("steps")
            except Exception as error:  # noqa: BLE001  # without a record it ends all the same
                self.notes.fault("record", error)
            self.ending.end()

    def _look_at_shape(self, parts: list[Step]) -> None:
        """Flag a step that paid for a shape: something was compiled, or cuDNN tried its kernels."""
        frames = compiled_frames()
        is_new = frames != self._compiled_frames
        self._compiled_frames = frames
        if self.steps.device is not None and torch.backends.cudnn.benchmark:
            shape = tuple(batch.samples for part in parts for batch in part.batches)
            is_new |= shape not in self._shapes
            self._shapes.add(shape)
        if is_new:
            parts[-1].flags |= NEW_SHAPE

    def _first_step(self, optimizer: Optimizer) -> None:
        device = device_of(optimizer)
        self.steps.device = self.memory.device = self.ending.device = device
        self._place = origins.place_on_machine(device)
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            # now: at its end the program may have destroyed the group
            self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
            self.backend = str(distributed.get_backend())
        if self.spec.watched:
            finish_with_multiprocessing(self.at_exit)
        try:
            modules, optimizers = all_objects()
            self.optimizers.know(optimizers, modules)
            # one that is there and has yet to step may be the training's
            leading = max(optimizers, key=lambda each: self.optimizers.entry(each).weight)
            if self.optimizers.entry(leading).weight <= self.optimizers.entry(optimizer).weight:
                leading = optimizer
            self._looked_at = weakref.ref(leading)
            self.trained = what_is_trained(leading, modules, optimizers)
            self._look_at_roots()
            self._sample_communication("cpu" if device is None else "cuda")
        except Exception as error:  # noqa: BLE001  # the steps are counted all the same
            self.notes.fault("what is trained", error)
        self._look_at_threads()
        self._look_at_devices(optimizer)

    def _look_at_leader(self, leader: SteppedOptimizer | None) -> None:
        """Look at the modules of the optimizer that leads now, if they were not looked at before."""
        optimizer = None if leader is None else leader.reference()
        if optimizer is None or self._looked_at is None or self._looked_at() is optimizer:
            return
        self._looked_at = weakref.ref(optimizer)
        self.trained = what_is_trained(optimizer, *all_objects())
        self._look_at_roots()

    def _look_at_roots(self) -> None:
        self.stop()
        if self.trained.calls_are_compiled:
            self.notes.note(
                "forward passes are not looked at: they may be a part of a function that is compiled"
            )
            return
        self._root_calls = RootCalls(self.trained.roots, hidden(self.notes, "forward pass", self.forward))

    def _sample_communication(self, device: str) -> None:
        if len(self.trained.data_parallel) == 1:
            self._communication = CommunicationSamples(
                self.trained.data_parallel[0],
                self.spec.sampled_communication[device],
                self.spec.warmup_steps,
            )
        elif self.trained.data_parallel:
            self.notes.note("communication is not timed: several DistributedDataParallel are trained")

    def _look_at_devices(self, optimizer: Optimizer) -> None:
        kinds = {parameter.device.type for parameter in parameters_of([optimizer])}
        if others := kinds - {"cpu", "cuda"}:
            self.notes.note(f"steps are timed by the host: the parameters are on {', '.join(sorted(others))}")

    def _look_at_threads(self) -> None:
        given, threads = os.environ.get("OMP_NUM_THREADS", ""), torch.get_num_threads()
        if given.isdigit() and int(given) != threads:
            self.notes.note(f"the program set its threads to {threads}, not {given}")

    def _after_early_step(self, done: int) -> None:
        measuring, checked = done == max(self.spec.warmup_steps, 1), done == self.spec.check_after
        if not self.spec.watched:
            return
        if measuring:
            write_text(self._file("measuring"), "")
        if checked:
            self.write_record("seen")
        if measuring or checked:
            self.steps.begin_step(self.backwards)

    def _without_gradients(self) -> None:
        step = self.steps.open
        if step.turns and not step.turns[-1][1]:
            return
        step.turn(perf_counter(), trains=False)
        step.flags |= NO_GRAD
        if self.spec.watched:
            self.memory.enter("evaluate")

    def finish(self, ended: str) -> None:
        """Write the record once, in the process that made the steps."""
        if self._ended or os.getpid() != self.pid:
            return
        if self.steps.done or self.backwards >= NO_STEP_BACKWARDS:
            self._ended = True
            if self.steps.done:
                write_text(self._file("steps"), str(self.steps.done))
            self.write_record(ended)

    def at_exit(self) -> None:
        """Do what is left to do as the process ends."""
        if os.getpid() != self.pid:
            return
        try:
            self.finish("itself")
        except Exception as error:  # noqa: BLE001  # the program has ended well
            self.notes.fault("record", error)
        self.ending.at_exit()

    def stop(self) -> None:
        """Look at no more forward passes."""
        if self._root_calls is not None:
            self._root_calls.stop()
            self._root_calls = None

    def _file(self, kind: str, folder: Path | None = None) -> Path:
        return (folder or self.spec.folder) / f"{self.rank}.{self.pid}.{kind}"

    def _found(self, what: str, find: Callable[[], Any], otherwise: Any) -> Any:
        """Return a finding, or ``otherwise`` if it raises: the rest of the record is written all the same."""
        try:
            return find()
        except Exception as error:  # noqa: BLE001
            self.notes.fault(what, error)
            return otherwise

    def _write_started(self) -> None:
        record = {
            "pid": self.pid,
            "host": platform.node(),
            "python": platform.python_version(),
            "torch_imported_seconds": self.torch_imported - self.started,
            "backwards": self.backwards,
            "events": self.notes.events,
        }
        # of the environment's rank, under which it was written first
        rank = int(os.environ.get("RANK") or 0)
        write_json(self.spec.folder / f"{rank}.{self.pid}.started.json", record)

    def write_record(self, ended: str, folder: Path | None = None) -> None:
        """Write what was measured so far.

        Args:
            ended: ``seen`` while the training goes on, ``steps`` or ``itself`` at its end.
            folder: Receives the record; None for that of the probe's files.
        """
        if self.steps.device is not None:
            torch.cuda.synchronize(self.steps.device)
        self.passes.conclude(self.backwards + self.steps.done)
        steps = self.steps.snapshot()
        trained = parameters_of(self.optimizers.of_training(self._training_steps.leader))
        # at its own end the program may have dropped what it trained
        if trained and (ended != "itself" or not self._figures["parameters"]):
            self._figures = parameter_figures(trained, self.trained)
        training = self.passes.training
        workers = None if training is None else training.workers
        self._place = self._place or origins.place_on_machine(steps.device)
        if workers and self._place["affinity"] and workers > len(self._place["affinity"]):
            self.notes.note(f"a DataLoader of {workers} processes has {len(self._place['affinity'])} CPUs")
        local_rank = os.environ.get("LOCAL_RANK", "")
        record = {
            "ended": ended,
            "rank": self.rank,
            "from_step": self.spec.from_step,
            "world_size": self.world_size,
            "local_rank": int(local_rank) if local_rank.isdigit() else None,
            "pid": self.pid,
            "backend": self.backend,
            **self._place,
            "process_started": self.started,
            "torch_imported": self.torch_imported,
            "first_step_began": steps.first_step_began,
            "first_step_ended": steps.first_step_ended,
            "steps": steps.done,
            **steps.columns(fed=training is not None),
            "loader_workers": workers,
            "backwards": self.backwards,
            "optimizers": self.optimizers.record(),
            "skipped_by_scaler": self.optimizers.count_skipped(),
            **self._figures,
            "weights_finite": self._found("weights", lambda: are_finite(trained), None),
            "parallelism": self.trained.parallelism,
            "data_parallel_devices": self.trained.data_parallel_devices,
            "refused": self.trained.refused,
            "precision": {
                f"{device}:{str(dtype).removeprefix('torch.')}": number
                for (device, dtype), number in self.precision.items()
            },
            "compiled": self.trained.compiled or bool(compiled_frames()),
            "losses": self._found("losses", self.losses.record, {}),
            "batches": self.passes.checksums or None,
            "forward_batches": self._forward_checksums or None,
            "communication_seconds": None
            if self._communication is None
            else self._communication.step_seconds(),
            "peak_memory": self.memory.record(steps.evaluated),
            "versions": self._found("versions", self._known_versions, {}),
            "imported_files": self._found("imported files", self._imported_files, {}),
            "own_interval": None
            if self._early_end is None or self.rank or ended == "seen"
            else self._early_end.conclude(self.steps.done, ended),
            "events": self.notes.events,
        }
        kind = "seen" if ended == "seen" and self.spec.watched else "record"
        write_json(self._file(f"{kind}.json", folder), record)

    def _known_versions(self) -> dict[str, str]:
        if self._versions is None or self.spec.watched:
            self._versions = origins.versions(self.steps.device is not None)
        return self._versions

    def _imported_files(self) -> dict[str, str]:
        if not self.spec.watched:
            return {}  # those of Scalewise: the commit tells them
        not_imported = [Path(__file__).parent, *self.spec.not_imported]
        return origins.imported_files(not_imported, self._began_at)
