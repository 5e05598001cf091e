"""Batches of any form, counters, optimizers, operations and memory: the parts of what measures a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.paths import SCRIPTS
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from scalewise.measure.batches import checksum, samples_in, samples_of_inputs
from scalewise.measure.discovery import TrainedModules, all_objects, find_trained
from scalewise.measure.flops import CountedStep, FlopCount
from scalewise.measure.loader_iterations import LoaderIterations, reads_all
from scalewise.measure.measured_process import MeasuredProcess
from scalewise.measure.origins import imported_files
from scalewise.measure.probe_spec import ProbeSpec
from scalewise.measure.process_record import write_json
from scalewise.measure.steps import StepRecord
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


def test_samples_of_inputs_are_what_most_of_them_have() -> None:
    masked = {"mask": torch.zeros(4, 9), "table": torch.zeros(100)}
    assert samples_of_inputs(((torch.zeros(4, 9),), masked)) == 4
    assert samples_of_inputs(((), {})) is None


@pytest.mark.parametrize(
    ("happened", "training"),
    [
        pytest.param("tbs tbs vv", {"t"}, id="a batch, its backward pass and its step"),
        pytest.param("tbtbs tbtbs", {"t"}, id="accumulation batch by batch"),
        pytest.param("ttttbbbs tttbbbs vvv", {"t"}, id="accumulation of batches that are fetched at once"),
        pytest.param("tts tts", {"t"}, id="backward passes that are not seen"),
        pytest.param("ttbs tbs vvv bs tbs vvv bs", {"t"}, id="a validation between a batch and its step"),
        pytest.param("tubs tubs", {"t", "u"}, id="two loaders in each step"),
    ],
)
def test_an_iteration_whose_batches_are_followed_by_work_feeds_the_training(
    happened: str, training: set[str]
) -> None:
    iterations, iterators, activity = LoaderIterations(), dict[str, SimpleNamespace](), 0
    for each in happened.replace(" ", ""):
        if each in "bs":
            activity += 1
            continue
        if each not in iterators:
            iterators[each] = SimpleNamespace()
            iterations.begin(iterators[each], SimpleNamespace(batch_size=8, num_workers=0))
        iterations.add_batch(iterators[each], IMAGES, 0.0, 0.0, activity)
    iterations.check_latest(activity)

    assert {name for name, each in iterators.items() if each._scalewise_iteration.trains} == training


class Graphs:
    num_graphs = 2

    def __init__(self, features: torch.Tensor) -> None:
        self.features = features

    def to_dict(self) -> dict[str, torch.Tensor]:
        return {"edges": torch.ones(2, 4), "features": self.features}


def test_batches_are_distinguished_by_all_their_tensors_and_all_parts_of_these() -> None:
    mask, first, second = torch.ones(4, 6), torch.randn(4, 6), torch.randn(4, 6)
    long, changed = torch.zeros(3, 5000), torch.zeros(3, 5000)
    changed[2, 2500:] = 1

    assert checksum({"of": "text", "image": first}) == checksum([first])
    assert checksum([mask, first]) != checksum([mask, second])
    assert checksum([long]) != checksum([changed])
    assert checksum(Graphs(first)) != checksum(Graphs(second))
    assert checksum(["text"]) is None
    assert checksum([torch.zeros(0), torch.eye(2).to_sparse()]) is None


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


def test_modules_that_hold_all_that_is_trained_are_found_within_wrappers() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    inner[0].requires_grad_(requires_grad=False)
    outer = nn.ModuleDict({"network": inner})
    trained = trained_by(torch.optim.SGD(inner.parameters()))

    assert trained.roots == [outer]
    assert {id(outer), id(inner), id(inner[1])} <= trained.whole
    assert id(inner[0]) not in trained.whole


def test_values_that_are_not_finite_are_written_as_none(tmp_path: Any) -> None:
    write_json(tmp_path / "record.json", {"losses": {"0": float("nan"), "10": 1.5}, "off": [float("inf")]})

    assert (tmp_path / "record.json").read_text() == '{"losses": {"0": null, "10": 1.5}, "off": [null]}'
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_loss_that_cannot_be_read_costs_no_record(tmp_path: Path) -> None:
    process = MeasuredProcess(ProbeSpec(tmp_path), 0.0)
    process.losses._kept[0] = torch.empty((), device="meta")
    record = process.record("seen")

    assert record["losses"] == {}
    assert [event for event in record["events"] if event.startswith("probe: losses: ")] != []


def test_modules_that_are_generated_or_lie_in_a_cache_are_none_of_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hugging-face"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place in (
        ".",
        "hugging-face",
        "hugging-face/modules/metrics",
        "cache/torch/hub",
        "written",
        "linked",
    ):
        source = tmp_path / place / "module.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
        if place != "written":
            os.utime(source, (0, 0))
        module = ModuleType(f"module of {place}")
        module.__file__ = str(source)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    link = tmp_path / "link.py"
    link.symlink_to(source)
    monkeypatch.setattr(module, "__file__", str(link))

    found = {Path(path) for path in imported_files([], time.time() - 60)}

    assert {path.relative_to(tmp_path).as_posix() for path in found if path.is_relative_to(tmp_path)} == {
        "module.py",
        "linked/module.py",
    }


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


def test_the_time_of_the_probe_is_in_no_step_whose_parts_it_separates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = StepRecord()
    first = record.cut(10.0, 1)
    second, third = record.cut(11.0, 2), record.cut(13.0, 3)
    record.add([first])
    record.add([second])
    # the third one is a part of a step that has yet to end
    monkeypatch.setattr("scalewise.measure.steps.perf_counter", lambda: 14.5)
    record.begin_step(3)
    record.add([third, record.cut(16.0, 4)])
    record.add([record.cut(17.0, 5)])

    assert record.snapshot().columns(fed=False)["seconds"] == [None, 1.0, 2.0 + 1.5, 1.0]


def an_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)])


def test_steps_after_one_that_raised_count_although_its_optimizer_is_gone() -> None:
    steps, raised, outer, inner = TrainingSteps[str](), an_optimizer(), an_optimizer(), an_optimizer()
    steps.begin_step(raised)
    del raised
    for _ in range(2):
        steps.begin_step(outer)
        # as an optimizer that wraps another one
        steps.begin_step(inner)
        assert not steps.end_step()
        assert steps.end_step()


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(800, 10),
    )


def train(network: nn.Module, images: torch.Tensor) -> None:
    network(images).sum().backward()


def test_linear_and_convolution_by_hand() -> None:
    batch = 4
    # 10 x 10 pixels: each of 8 channels is 3 x 3 x 3 products; the first layer computes no gradient of images
    convolution = 2 * batch * 10 * 10 * 8 * 3 * 3 * 3
    linear = 2 * batch * 800 * 10
    with FlopCount() as count:
        train(convolutional(), torch.randn(batch, 3, 10, 10))

    assert count.by_format == {"fp32": 2 * convolution + 3 * linear}
    assert count.reason == ""


def test_the_count_is_that_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    tokens = torch.randn(2, 16, 32)
    with FlopCounterMode(display=False) as expected:
        train(layer, tokens)
    with FlopCount() as count:
        train(layer, tokens)

    assert sum(count.by_format.values()) == expected.get_total_flops()


def test_each_format_is_counted_by_itself() -> None:
    layer, images = nn.Linear(8, 4), torch.randn(2, 8)
    with FlopCount() as count:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(images)
        layer(images)

    assert count.by_format == {"bf16": 2 * 2 * 8 * 4, "fp32": 2 * 2 * 8 * 4}


def test_an_operator_without_a_formula_is_named() -> None:
    @torch.library.custom_op("scalewise_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with FlopCount() as count:
        nn.Linear(8, 4)(twice(torch.randn(2, 8)))

    assert "scalewise_test.twice" in count.reason


@pytest.mark.parametrize(
    ("warmup_steps", "is_plain", "compiled", "reason"),
    [
        pytest.param(1, True, False, "warmup_steps is 1", id="no step to count"),
        pytest.param(4, False, False, "something else than training", id="evaluations"),
        pytest.param(4, True, True, "compiles", id="a compiled model"),
    ],
)
def test_a_step_that_cannot_be_counted_has_its_reason(
    warmup_steps: int, is_plain: bool, compiled: bool, reason: str
) -> None:
    counted = CountedStep(warmup_steps)
    for step in range(1, 7):
        counted.after_step(step, is_plain=is_plain, compiled=compiled)

    assert counted.by_format == {}
    assert reason in counted.reason


def test_no_mode_is_left_after_the_counted_step() -> None:
    counted = CountedStep(warmup_steps=2)
    counted.after_step(1, is_plain=True, compiled=False)
    counting = _get_current_dispatch_mode()
    assert counting is not None
    # a program that has entered another mode meanwhile keeps it
    with FlopCounterMode(display=False):
        counted.after_step(2, is_plain=True, compiled=False)
        assert _get_current_dispatch_mode() not in (None, counting)
    assert _get_current_dispatch_mode() is None


MEMORY = """
import json, sys
import numpy as np
from scalewise.measure.memory import PeakMemory

def held(megabytes):
    # a separate mapping, which the system gets back when nothing refers to it
    return np.ones(megabytes * 1_000_000, dtype=np.uint8)

peaks = PeakMemory()
before = peaks.record(False)["whole_bytes"]
held(130)
peaks.begin_evaluation()
held(300)
peaks.begin_evaluation()
record = peaks.record(True)
print(json.dumps([record[key] - before for key in ("training_bytes", "whole_bytes")] + [record["kind"]]))
"""


@pytest.mark.slow
def test_the_peak_of_the_training_is_that_before_the_first_evaluation() -> None:
    """In a process that has held nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    training, whole, kind = json.loads(done.stdout)
    assert (training, whole) == (pytest.approx(130e6, rel=0.1), pytest.approx(300e6, rel=0.1))
    assert kind == "process peak RSS"


def test_a_loader_with_a_share_of_the_data_is_told_from_one_with_all() -> None:
    data = TensorDataset(torch.zeros(80))
    share: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0)
    assert reads_all(DataLoader(data, batch_size=8, shuffle=True, drop_last=True))
    assert not reads_all(DataLoader(data, batch_size=8, sampler=share))
    # too small to tell, and without a length
    assert not reads_all(DataLoader(data, batch_size=40))
    assert not reads_all(DataLoader(Endless(), batch_size=8))


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(1)
