"""What the probe costs a step of a user's program: the same loop with its hooks and without, in one process.

The hooks are taken out of torch and put back between blocks of steps, which follow each other in pairs. They
stay the same functions: first calls of new ones are slow, and a short block has few others. Of the pairs'
differences the mean is quoted, with its 95 % interval.

    python benchmarks/run.py own-cost
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
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

from .measure import Row, interleave, spread

PAIRS = 400
"""Many short blocks: the two of a pair meet the same machine."""
SMALL = {"PAIRS": 2}
MOST_MICROSECONDS, MOST_SHARE = 30.0, 0.01
LONG_STEP_SECONDS = 0.01
"""From steps of this length on the share is judged, below it the time."""

PLACES = (
    torch,
    torch.autograd,
    nn.Module,
    nn.Sequential,
    dataloader.DataLoader,
    dataloader._BaseDataLoaderIter,
    autocast_mode.autocast,
    grad_scaler.GradScaler,
)
"""Modules and classes in which the probe replaces functions."""

STEP_HOOKS: tuple[Any, ...] = (
    optimizers._global_optimizer_pre_hooks,
    optimizers._global_optimizer_post_hooks,
)


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
SETTLED_STEPS = 30
"""Steps until all is done that the probe does once; it looks at 20 forward passes."""

BATCH, INPUTS, CLASSES = 64, 64, 10


def rows() -> list[Row]:
    """Two rows for each loop: CPU time, which is judged, and wall time."""
    with tempfile.TemporaryDirectory() as folder:
        before = {place: dict(vars(place)) for place in PLACES}
        process = MeasuredProcess(ProbeSpec(Path(folder)), 0.0)
        install(process, lambda _name, _action: None)
        torch.set_num_threads(1)  # those of torch's pool would be busy while they wait for the hooks
        ours = {place: replaced(place, before[place]) for place in PLACES}
        table = []
        for loop in LOOPS:
            process.begin_process()  # each is a program of its own
            table += compare(loop, before, ours)
        process.finish("itself")
        assert process.notes.events == []
        return table


def replaced(place: Any, before: dict[str, Any]) -> dict[str, Any]:
    """Functions of a module or class that are no longer those from before."""
    return {
        name: value for name, value in vars(place).items() if name in before and before[name] is not value
    }


def compare(loop: Loop, before: dict[Any, dict[str, Any]], ours: dict[Any, dict[str, Any]]) -> list[Row]:
    """Blocks with the hooks and without, in turn."""
    block = training(loop)
    for _ in range(ceil(SETTLED_STEPS / loop.steps)):
        block()
    assert "__call__" in nn.Sequential.__dict__  # forward passes are seen

    def without() -> None:
        with hooks_off(before, ours):
            block()

    interleave(block, without, rounds=5)
    pairs = interleave(block, without, PAIRS)
    compared = []
    for clock in ("cpu", "wall"):
        mine, other = ([getattr(pair[side], clock) / loop.steps for pair in pairs] for side in (0, 1))
        added = mean_interval([1e6 * (a - b) for a, b in zip(mine, other, strict=True)])
        share = mean_interval([a / b for a, b in zip(mine, other, strict=True)])
        is_long = spread(other).median >= LONG_STEP_SECONDS
        met = share.estimate <= 1 + MOST_SHARE if is_long else added.estimate <= MOST_MICROSECONDS
        target = f"at most {MOST_SHARE:.0%}" if is_long else f"at most {MOST_MICROSECONDS:g} us more"
        judged = clock == "cpu"
        compared.append(
            Row(
                what=f"own-cost: {clock} time of {loop.what}, {added.estimate:+.1f} us "
                f"({added.low:+.1f} to {added.high:+.1f})",
                ours=spread([1e3 * seconds for seconds in mine]).show("ms", 3),
                reference=spread([1e3 * seconds for seconds in other]).show("ms", 3),
                ratio=f"{share.estimate:.4f} ({share.low:.4f} to {share.high:.4f})",
                n=PAIRS,
                target=target if judged else "",
                met=met or not judged,
            )
        )
    return compared


@contextmanager
def hooks_off(before: dict[Any, dict[str, Any]], ours: dict[Any, dict[str, Any]]) -> Iterator[None]:
    """Torch as it was before the probe came."""
    looked_at = nn.Sequential.__dict__.get("__call__")
    step_hooks = [dict(hooks) for hooks in STEP_HOOKS]
    for place, functions in ours.items():
        for name in functions:
            setattr(place, name, before[place][name])
    for hooks in STEP_HOOKS:
        hooks.clear()
    if looked_at is not None:
        del nn.Sequential.__call__
    try:
        yield
    finally:
        for place, functions in ours.items():
            for name, function in functions.items():
                setattr(place, name, function)
        for hooks, own in zip(STEP_HOOKS, step_hooks, strict=True):
            hooks.update(own)
        if looked_at is not None:
            nn.Sequential.__call__ = looked_at  # type: ignore[method-assign]


class Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that a loader fetches a batch at a time: one by one they would be most of a step."""

    def __init__(self, samples: int) -> None:
        self.inputs, self.labels = torch.randn(samples, INPUTS), torch.randint(0, CLASSES, (samples,))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.labels[index]

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples as the batch that they are to be."""
        return self.inputs[indices], self.labels[indices]


def whole(batch: Any) -> Any:
    """The batch itself, of which there is nothing to collate."""
    return batch


def training(loop: Loop) -> Callable[[], None]:
    """A block of steps, as a user writes them."""
    torch.manual_seed(0)
    sizes = (INPUTS, loop.width, loop.width)
    layers = [
        layer for size, following in pairwise(sizes) for layer in (nn.Linear(size, following), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Linear(loop.width, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = Batches(BATCH * loop.steps)
    loader = DataLoader(dataset, BATCH, shuffle=True, collate_fn=whole)
    batches = [
        dataset.__getitems__(list(range(start, start + BATCH))) for start in range(0, len(dataset), BATCH)
    ]

    def block() -> None:
        for inputs, labels in loader if loop.loader else batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()

    return block
