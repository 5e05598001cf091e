"""What the probe costs a step of a user's program: the same loop with its hooks and without, in one process.

The hooks are taken out of torch and put back between blocks of steps, which follow each other in pairs. They
stay the same functions: first calls of new ones are slow, and a short block has few others. Of the pairs'
differences the mean is quoted, with its 95 % interval.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.amp import autocast_mode, grad_scaler
from torch.nn.functional import cross_entropy
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset, dataloader

from scalewise.analysis.statistics import mean_interval
from scalewise.measure.hooks import install
from scalewise.measure.measured_process import MeasuredProcess
from scalewise.measure.probe_spec import ProbeSpec

from .measure import Row, interleave, show

PAIRS = 400
"""Many short blocks: the two of a pair meet the same machine."""
SMALL = {"PAIRS": 2}
MOST_MICROSECONDS, MOST_RATIO = 30.0, 1.01
LONG_STEP_SECONDS = 0.01
"""From steps of this length on the ratio is judged, below it the time."""

PLACES: tuple[Any, ...] = (
    *(torch, torch.autograd, nn.Module, nn.Sequential, dataloader.DataLoader, dataloader._BaseDataLoaderIter),
    *(autocast_mode.autocast, grad_scaler.GradScaler),
)
"""Modules and classes in which the probe replaces functions."""

STEP_HOOKS: tuple[Any, ...] = (
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
)
SETTLED_STEPS = 30
"""Steps until all is done that the probe does once; it looks at 20 forward passes."""

BATCH, INPUTS, CLASSES = 64, 64, 10

Functions = dict[Any, dict[str, Any]]
"""Functions of modules and classes, by their names."""


@dataclass(frozen=True)
class Loop:
    """A training whose steps are timed.

    Args:
        what: Names it.
        width: Number of each hidden layer's outputs, by which a step grows.
        steps: Number of steps of a block.
        loader: True if a DataLoader feeds it.
    """

    what: str
    width: int
    steps: int
    loader: bool = True


LOOPS = (
    Loop("steps of a small network", 64, 20),
    Loop("steps without a DataLoader", 64, 20, loader=False),
    Loop("steps of a larger network", 512, 6),
    Loop("steps of 10 ms and more", 1280, 2),
)


def rows() -> list[Row]:
    """Time each loop with the hooks and without."""
    with tempfile.TemporaryDirectory() as folder:
        before = {place: dict(vars(place)) for place in PLACES}
        process = MeasuredProcess(ProbeSpec(Path(folder)), 0.0)
        install(process, lambda _name, _action: None)
        torch.set_num_threads(1)  # those of torch's pool would be busy while they wait for the hooks
        hooks = {
            place: {name: of for name, of in vars(place).items() if before[place].get(name, of) is not of}
            for place in PLACES
        }
        table = []
        for loop in LOOPS:
            process.begin_process()  # each is a program of its own
            table.append(row(loop, before, hooks))
        process.finish("itself")
        assert process.notes.events == []
        return table


def row(loop: Loop, before: Functions, hooks: Functions) -> Row:
    """Time blocks of a loop with the hooks and without, in turn."""
    block = training(loop)
    for _ in range(ceil(SETTLED_STEPS / loop.steps)):
        block()
    assert "__call__" in nn.Sequential.__dict__  # forward passes are seen
    timed = partial(interleave, block, block, around_reference=partial(hooks_off, before, hooks))
    timed(rounds=5)
    ours, bare = ([seconds / loop.steps for seconds in side] for side in timed(rounds=PAIRS))
    added = mean_interval([1e6 * (one - other) for one, other in zip(ours, bare, strict=True)])
    ratio = mean_interval([one / other for one, other in zip(ours, bare, strict=True)])
    is_long = median(bare) >= LONG_STEP_SECONDS
    microseconds = f"{added.estimate:+.1f} us ({added.low:+.1f} to {added.high:+.1f})"
    return Row(
        what=f"own-cost: cpu time of {loop.what}, {microseconds}",
        ours=show([1e3 * seconds for seconds in ours], "ms", 3),
        reference=show([1e3 * seconds for seconds in bare], "ms", 3),
        ratio=f"{ratio.estimate:.4f} ({ratio.low:.4f} to {ratio.high:.4f})",
        n=PAIRS,
        target=f"at most {MOST_RATIO}" if is_long else f"at most {MOST_MICROSECONDS:g} us more",
        met=ratio.estimate <= MOST_RATIO if is_long else added.estimate <= MOST_MICROSECONDS,
    )


@contextmanager
def hooks_off(before: Functions, hooks: Functions) -> Iterator[None]:
    """Make torch what it was before the probe came."""
    forward = nn.Sequential.__dict__["__call__"]
    steps = [dict(registered) for registered in STEP_HOOKS]
    for place, functions in hooks.items():
        for name in functions:
            setattr(place, name, before[place][name])
    for registered in STEP_HOOKS:
        registered.clear()
    del nn.Sequential.__call__
    try:
        yield
    finally:
        for place, functions in hooks.items():
            for name, function in functions.items():
                setattr(place, name, function)
        for registered, step in zip(STEP_HOOKS, steps, strict=True):
            registered.update(step)
        nn.Sequential.__call__ = forward  # type: ignore[method-assign]


class Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that a loader fetches a batch at a time: one by one they would be most of a step."""

    def __init__(self, samples: int) -> None:
        self.inputs, self.labels = torch.randn(samples, INPUTS), torch.randint(0, CLASSES, (samples,))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples as the batch that they are to be."""
        return self.inputs[indices], self.labels[indices]


def whole(batch: Any) -> Any:
    """Return the batch itself, of which there is nothing to collate."""
    return batch


def training(loop: Loop) -> Callable[[], None]:
    """Return a block of steps, as a user writes them."""
    torch.manual_seed(0)
    sizes = (INPUTS, loop.width, loop.width)
    layers = [
        layer for size, following in pairwise(sizes) for layer in (nn.Linear(size, following), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Linear(loop.width, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = Batches(BATCH * loop.steps)
    loader = DataLoader(dataset, BATCH, shuffle=True, collate_fn=whole)
    batches = loader if loop.loader else list(DataLoader(dataset, BATCH, collate_fn=whole))

    def block() -> None:
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()

    return block
