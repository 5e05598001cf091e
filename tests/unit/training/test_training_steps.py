"""Programs with several optimizers: which of their steps are steps of the training, and that none is lost."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from scalewise.measure.counted_optimizers import CountedOptimizers, SteppedOptimizer
from scalewise.measure.training_steps import TrainingSteps

WEIGHTS = {"A": 100, "B": 100, "b": 60, "c": 10, "x": 0}
"""Parameters of modules that an optimizer updates, by the letter that stands for it."""


def steps_of(sequence: str, *, gone: str = "") -> str:
    """The optimizers whose steps end those of the training, if optimizers step in this order.

    Args:
        sequence: A letter for each step of an optimizer; a comma drops ``gone``.
        gone: The optimizer that the program drops.
    """
    optimizers = {
        name: torch.optim.SGD([torch.zeros(1, requires_grad=True)]) for name in WEIGHTS if name in sequence
    }
    entries = {name: SteppedOptimizer(optimizer, WEIGHTS[name]) for name, optimizer in optimizers.items()}
    steps = TrainingSteps[str]()
    found = ""
    for name in sequence:
        if name == ",":
            del optimizers[gone]
            continue
        entries[name].trains = True
        ended = steps.after(entries[name], entries.values(), partial(str, name))
        found += "".join(parts[-1] for parts in ended)
    return found


@pytest.mark.parametrize(
    ("sequence", "steps"),
    [
        pytest.param("AAA", "AAA", id="one"),
        pytest.param("cAcAcA", "AAA", id="a GAN"),
        pytest.param("AcAcA", "AAA", id="a GAN that begins with the larger network"),
        pytest.param("cccAcccAcccA", "AAA", id="more updates of the critic"),
        pytest.param("ABABAB", "AAA", id="networks of one size"),
        pytest.param("xxxAxxxA", "AA", id="an attack"),
        pytest.param("AAAxxxAxxxA", "AAAAA", id="an attack that begins later"),
        pytest.param("bbbAAA", "bbbAAA", id="the smaller layer, then the larger"),
        pytest.param("AAA" + "b" * 9, "AAA" + "b" * 9, id="the larger layer, then the smaller"),
        pytest.param("A" + "c" * 109, "A" + "c" * 109, id="the larger layer, then a much smaller one"),
        pytest.param("c" * 210 + "A", "c" * 210 + "A", id="one that never steps is not awaited for ever"),
    ],
)
def test_the_optimizer_with_the_most_parameters_counts_and_no_step_is_lost(sequence: str, steps: str) -> None:
    assert steps_of(sequence) == steps


def test_the_optimizer_that_replaces_one_that_is_gone_counts_at_once() -> None:
    assert steps_of("AA,ccc", gone="A") == "AAccc"


def an_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def test_steps_after_one_that_raised_count_although_its_optimizer_is_gone() -> None:
    counted, raised, other = CountedOptimizers(), an_optimizer(), an_optimizer()
    counted.begin_step(raised)
    del raised
    for _ in range(2):
        counted.begin_step(other)
        entry = counted.end_step(other)

    assert entry is not None
    assert (entry.steps, entry.is_nested) == (2, False)


def test_steps_within_those_of_another_optimizer_are_its_own_alone() -> None:
    counted, outer, inner = CountedOptimizers(), an_optimizer(), an_optimizer()
    for _ in range(2):
        counted.begin_step(outer)
        counted.begin_step(inner)
        assert counted.end_step(inner) is None
        entry = counted.end_step(outer)

    assert entry is not None
    assert (entry.steps, entry.is_nested) == (2, False)
    assert counted.entry(inner).is_nested
