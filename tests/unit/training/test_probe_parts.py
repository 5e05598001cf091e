"""Batches of any form, counters, optimizers, operations and memory: the parts of what measures a rank."""

import os
import sys
import time
from collections import UserDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from scalewise.measure.batches import samples_in
from scalewise.measure.discovery import TrainedModules, all_objects, find_trained
from scalewise.measure.flops import FlopCount
from scalewise.measure.origins import imported_files
from scalewise.measure.training_steps import TrainingSteps


@dataclass
class Sentences:
    tokens: torch.Tensor
    lengths: torch.Tensor


IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8)


@pytest.mark.parametrize(
    ("batch", "batch_size", "samples"),
    [
        ([IMAGES, LABELS], 8, 8),
        ((IMAGES[:5], LABELS[:5]), 8, 5),
        ({"id": "x", "image": IMAGES}, 8, 8),
        (UserDict(tokens=torch.zeros(8, 20)), 8, 8),
        (Sentences(torch.zeros(20, 8), torch.zeros(8)), 8, 8),
        ([[IMAGES, IMAGES], LABELS], 8, 8),
        ([torch.zeros(3), torch.zeros(8, 2)], None, 3),
        ([{"boxes": 1}, {"boxes": 2}], 2, 2),
        # images of 3 colours and boxes, as detection has them: in columns, of the last batch, and in samples
        ((tuple(IMAGES), tuple({"boxes": torch.zeros(n, 4)} for n in range(8))), 8, 8),
        ((tuple(IMAGES[:5]), tuple({"boxes": torch.zeros(n, 4)} for n in range(5))), 8, 5),
        ([{"image": image, "boxes": torch.zeros(2, 4)} for image in IMAGES[:5]], 8, 5),
        (list(IMAGES), 8, 8),
        ([[IMAGES[:5], IMAGES[:5]], [LABELS[:5], LABELS[:5]]], 8, 5),
        (SimpleNamespace(num_graphs=6, x=torch.zeros(90, 4)), 6, 6),
        ("text", 8, None),
        (torch.tensor(1.0), 8, None),
        (torch.zeros(20, 8), 8, None),
    ],
)
def test_samples_of_a_batch(batch: Any, batch_size: int | None, samples: int | None) -> None:
    assert samples_in(batch, batch_size) == samples


def trained_by(optimizer: torch.optim.Optimizer) -> TrainedModules:
    return find_trained(optimizer, *all_objects())


class DeepSpeedEngine(nn.Linear):
    """Stands in for the class of this name, which does not install everywhere."""


def test_engines_whose_ranks_are_no_replicas_are_named() -> None:
    engine = DeepSpeedEngine(2, 2)
    layer = type("Layer", (nn.Linear,), {"__module__": "megatron.core.layers"})(2, 2)

    assert trained_by(torch.optim.SGD(engine.parameters())).refused == "DeepSpeed"
    del engine
    assert trained_by(torch.optim.SGD(layer.parameters())).refused == "Megatron"


def test_modules_that_are_generated_or_lie_in_a_cache_are_none_of_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging-face"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place in (".", "hugging-face", "hugging-face/modules/metrics", "cache/torch/hub", "generated"):
        source = tmp_path / place / "module.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
        if place != "generated":
            os.utime(source, (0, 0))
        module = ModuleType(f"module of {place}")
        module.__file__ = str(source)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    found = [path for path in imported_files([], time.time() - 60) if path.startswith(str(tmp_path))]

    assert found == [str(tmp_path / "module.py")]


WEIGHTS = {"A": 100, "B": 100, "b": 60, "c": 10, "x": 0}
"""Parameters of modules that an optimizer updates, by the letter that stands for it."""


class Adam(torch.optim.SGD):
    """Stands for an optimizer of another class."""


def steps_of(sequence: str, named: str | None = None) -> str:
    """The optimizers whose steps end those of the training, if optimizers step in this order.

    Args:
        sequence: A letter for each update of an optimizer, which is there from the begin; after a comma, the
            program has dropped what A was.
        named: Class of the optimizer that the user names; that of c is Adam.
    """
    modules = {name: nn.ParameterList([torch.zeros(weight)]) for name, weight in WEIGHTS.items()}
    other = [torch.zeros(1, requires_grad=True)]

    def make(name: str) -> torch.optim.Optimizer:
        return (Adam if name == "c" else torch.optim.SGD)([*modules[name], *other])

    optimizers = {name: make(name) for name in WEIGHTS if name in sequence}
    steps = TrainingSteps[str](named)
    steps.register(optimizers.values(), modules.values())
    found = ""
    for name in sequence:
        if name == ",":
            optimizers["A"] = make("A")
            continue
        found += "".join(parts[-1] for parts in steps.after(optimizers[name], partial(str, name)))
    return found


@pytest.mark.parametrize(
    ("sequence", "steps"),
    [
        pytest.param("AAA", "AAA", id="one"),
        pytest.param("cAcAcA", "AAA", id="a GAN"),
        pytest.param("AcAcA", "AAA", id="a GAN that begins with the larger network"),
        pytest.param("cccAcccAcccA", "AAA", id="more updates of the critic"),
        pytest.param("ABABAB", "AAA", id="networks of one size"),
        pytest.param("x" * 40 + "A" + "x" * 40 + "A", "AA", id="an attack"),
        pytest.param("AAAxxxAxxxA", "AAAAA", id="an attack that begins later"),
        pytest.param("bbbAAA", "AAA", id="the smaller layer, then the larger"),
        pytest.param("A" + "c" * 109, "A", id="one that takes over is not followed"),
        pytest.param("AA,AAA", "AAAAA", id="one that the program makes again"),
        pytest.param("c" * 25 + "A", "c" * 25, id="one that never steps is awaited for 20 updates"),
        pytest.param("x" * 210 + "A", "x" * 210, id="one that only attacks is awaited for longer"),
    ],
)
def test_the_optimizer_with_the_most_parameters_in_the_first_updates_leads(sequence: str, steps: str) -> None:
    assert steps_of(sequence) == steps


@pytest.mark.parametrize(
    ("sequence", "steps"),
    [
        pytest.param("AcAcAc", "ccc", id="a smaller one"),
        pytest.param("AAAAAcA", "c", id="that steps later"),
        pytest.param("A" * 25 + "b", "A" * 25, id="none of that class"),
    ],
)
def test_the_optimizer_that_the_user_names_leads(sequence: str, steps: str) -> None:
    assert steps_of(sequence, "Adam") == steps


def test_an_operator_without_a_formula_is_named() -> None:
    @torch.library.custom_op("scalewise_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with FlopCount() as count:
        nn.Linear(8, 4)(twice(torch.randn(2, 8)))

    assert "scalewise_test.twice" in count.reason
