"""Hooks on torch that report a training, whatever loop or framework it is written in."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from time import perf_counter
from types import ModuleType
from typing import Any

import torch
from torch import distributed, nn
from torch.amp import autocast_mode, grad_scaler
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

from .guards import Function, guarded, untraced
from .measured_process import MeasuredProcess
from .rank_waits import BARRIER, GROUP

SAVING = {
    "safetensors.torch": ("save_file",),
    "torch.distributed.checkpoint": ("save", "async_save"),
}
"""Functions that save, in addition to ``torch.save``, by the modules that programs import for them."""


def install(process: MeasuredProcess, watch: Callable[[str, Callable[[ModuleType], None]], None]) -> None:
    """Set all hooks of a program's process, for as long as it lives.

    Args:
        process: Receives what happens.
        watch: Acts on a module after its import.
    """
    undo = ExitStack()
    set_hooks(process, undo)
    for module, names in SAVING.items():
        action = functools.partial(replace_all, undo, names=names, around=Hooks(process).saving)
        watch(module, guarded(process.notes, f"{module} is not seen", action))
    guarded(process.notes, "waits for other ranks are not seen", lambda: watch_waits(process, undo))()
    uneven = functools.partial(hook_join, process, undo)
    watch("torch.distributed.algorithms.join", guarded(process.notes, "uneven inputs are not seen", uneven))
    os.register_at_fork(after_in_child=guarded(process.notes, "forked process", process.begin_forked_process))


def watch_waits(process: MeasuredProcess, undo: ExitStack) -> None:
    """Note where this rank waits for the others before its first step."""
    if not distributed.is_available():
        return
    left = guarded(process.notes, "end of a wait", process.leave_wait)

    def around(name: str, original: Function) -> Function:
        entered = guarded(process.notes, "begin of a wait", process.enter_wait)

        def meet(*args: Any, **kwargs: Any) -> Any:
            entered(name, args, kwargs)
            result = original(*args, **kwargs)
            left()
            return result

        return meet

    places = [(distributed, GROUP), (distributed.distributed_c10d, GROUP), (distributed, BARRIER)]
    for owner, name in places:
        replace_one(undo, owner, name, functools.partial(around, name))


def set_hooks(process: MeasuredProcess, undo: ExitStack) -> None:
    """Set the hooks on torch; one for which this torch has no place is noted.

    Args:
        process: Receives what happens.
        undo: Receives what removes them again.
    """
    hooks = Hooks(process)

    def replace(owner: Any, name: str, around: Callable[[Function], Function]) -> None:
        replace_one(undo, owner, name, around)

    places: list[tuple[str, Callable[[], None]]] = [
        ("steps", lambda: hooks.steps(undo)),
        ("skipped steps", lambda: replace(grad_scaler.GradScaler, "step", hooks.scaler_step)),
        ("batches", lambda: replace(dataloader._BaseDataLoaderIter, "__next__", hooks.next_batch)),
        ("data-loader iterations", lambda: replace(dataloader.DataLoader, "__iter__", hooks.begin_iteration)),
        ("backward passes", lambda: replace(torch.autograd, "backward", hooks.backward)),
        ("gradients", lambda: replace(torch.autograd, "grad", hooks.gradient)),
        ("precision", lambda: replace(autocast_mode.autocast, "__enter__", hooks.autocast)),
        # not Module.train, which every module within calls too
        ("evaluation", lambda: replace(nn.Module, "eval", hooks.evaluation)),
        ("saving", lambda: replace(torch, "save", hooks.saving)),
    ]
    for what, place in places:
        guarded(process.notes, f"{what} are not seen", place)()


def hook_join(process: MeasuredProcess, undo: ExitStack, module: ModuleType) -> None:
    """Hook torch's Join, within which a rank without batches waits for those that have more."""
    began = guarded(process.notes, "begin of a join", process.begin_join)
    waits = guarded(process.notes, "end of a join", process.waits_in_join)

    def enter(original: Function) -> Function:
        def enter(join: Any) -> Any:
            began()
            return original(join)

        return enter

    def remaining(original: Function) -> Function:
        def remaining(join: Any) -> Any:
            ranks = original(join)
            # else all ranks leave the loop here, after the same step
            if ranks and not join._throw_on_early_termination:
                waits()
            return ranks

        return remaining

    replace_one(undo, module.Join, "__enter__", enter)
    replace_one(undo, module.Join, "_get_num_nonjoined_procs", remaining)


def replace_one(undo: ExitStack, owner: Any, name: str, around: Callable[[Function], Function]) -> None:
    """Put a function around one of torch's."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(around(original)))
    undo.callback(setattr, owner, name, original)


def replace_all(
    undo: ExitStack, owner: Any, names: Iterable[str], around: Callable[[Function], Function]
) -> None:
    """Put a function around several of a module's."""
    for name in names:
        replace_one(undo, owner, name, around)


class Hooks:
    """Functions around torch's own that report what happens; no error of ours leaves them.

    Args:
        process: Receives the reports.
    """

    def __init__(self, process: MeasuredProcess) -> None:
        self._process = process

    def steps(self, undo: ExitStack) -> None:
        """Hook the steps of every optimizer, of any subclass and within any wrapper."""
        process, notes = self._process, self._process.notes
        before = untraced(notes, "begin of a step", process.before_step)
        after = untraced(notes, "end of a step", process.after_step)
        for register, hook in (
            (optimizers.register_optimizer_step_pre_hook, before),
            (optimizers.register_optimizer_step_post_hook, after),
        ):
            undo.callback(register(hook).remove)

    def scaler_step(self, original: Function) -> Function:
        """Wrap the step of a GradScaler, which skips the optimizer's if gradients are not finite."""
        process = self._process
        skipped = guarded(process.notes, "skipped step", process.skipped_step)
        may_skip = guarded(process.notes, "skipped step", process.step_on_device)

        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = process.training.calls
            result = original(scaler, optimizer, *args, **kwargs)
            if process.training.calls == before:
                skipped(optimizer)
            elif getattr(optimizer, "_step_supports_amp_scaling", False):
                may_skip(scaler, optimizer)
            return result

        return step

    def next_batch(self, original: Function) -> Function:
        """Wrap the wait for a batch: below the loaders of all frameworks."""
        notes = self._process.notes
        process = self._process
        received = untraced(notes, "batch", process.add_batch)
        ended = untraced(notes, "end of a loader", process.end_iteration)

        def next_batch(iterator: Any) -> Any:
            requested_at = perf_counter()
            mark = None if process.steps.device is None else process.wait_mark()
            try:
                batch = original(iterator)
            except StopIteration:
                ended(iterator)
                raise
            received(iterator, batch, requested_at, perf_counter(), mark)
            return batch

        return next_batch

    def begin_iteration(self, original: Function) -> Function:
        """Wrap the begin of a data-loader iteration, which may start processes."""
        began = guarded(self._process.notes, "begin of a loader", self._process.begin_iteration)

        def begin_iteration(loader: Any) -> Any:
            iterator = original(loader)
            began(loader, iterator)
            return iterator

        return begin_iteration

    def backward(self, original: Function) -> Function:
        """Wrap a backward pass, that of ``Tensor.backward`` too."""
        note = untraced(self._process.notes, "backward pass", self._process.backward)

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            note(tensors)
            return original(tensors, *args, **kwargs)

        return backward

    def gradient(self, original: Function) -> Function:
        """Wrap the computation of gradients that are returned instead of kept."""
        note = untraced(self._process.notes, "gradients", self._process.gradient)

        def grad(*args: Any, **kwargs: Any) -> Any:
            note()
            return original(*args, **kwargs)

        return grad

    def autocast(self, original: Function) -> Function:
        """Wrap the begin of mixed precision."""
        note = untraced(self._process.notes, "precision", self._process.autocast)

        def enter(context: Any) -> Any:
            note(context)
            return original(context)

        return enter

    def evaluation(self, original: Function) -> Function:
        """Wrap the change of a module to its mode for evaluation."""
        note = guarded(self._process.notes, "evaluation", self._process.evaluates)
        is_compiling = torch.compiler.is_compiling

        def evaluation(module: nn.Module) -> Any:
            if not is_compiling():
                note(module)
            return original(module)

        return evaluation

    def saving(self, original: Function) -> Function:
        """Wrap a function that saves."""
        process = self._process

        def save(*args: Any, **kwargs: Any) -> Any:
            process.saves()
            return original(*args, **kwargs)

        return save
