"""Batches are what a user would compute by hand from the images, also where processes make them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import psutil
import pytest
import torch
from tests.small_runs import definition_of, rank_setup
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from scalewise.builtin import rank as ranks
from scalewise.builtin.data import datasets
from scalewise.builtin.data.augmentation import Augmentation
from scalewise.builtin.data.loaders import (
    Batch,
    Preprocessing,
    ResidentImages,
    channel_statistics,
    resident_loader,
)
from scalewise.builtin.data.sampling import EpochSampler, Indices, SeededBatches
from scalewise.execution.messages import TrainSpec
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.signals import Signals
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity
from scalewise.records import utc_now

CPU = torch.device("cpu")


def test_a_batch_is_normalised_channel_by_channel(images: torch.Tensor) -> None:
    labels = torch.arange(SAMPLES)
    mean, std = torch.tensor([10.0, 100.0, 200.0]), torch.tensor([2.0, 50.0, 0.5])
    loader = ResidentImages(images, labels, Preprocessing(mean, std), CPU)
    batch, chosen = loader.load(torch.tensor([7, 0, 7, 49]))
    assert batch.dtype == torch.float32
    assert batch.shape == (4, 3, 6, 6)
    assert chosen.tolist() == [7, 0, 7, 49]
    for place, sample in enumerate((7, 0, 7, 49)):
        for channel in range(3):
            expected = (images[sample, channel].double() - mean[channel]) / std[channel]
            assert torch.allclose(batch[place, channel].double(), expected, rtol=1e-6, atol=1e-5)


def test_loading_leaves_the_data_as_it_was(images: torch.Tensor) -> None:
    before = images.clone()
    loader = ResidentImages(images, torch.arange(SAMPLES), Preprocessing(torch.zeros(3), torch.ones(3)), CPU)
    first, _ = loader.load(torch.arange(SAMPLES))
    first.fill_(0)
    again, _ = loader.load(torch.arange(SAMPLES))
    assert torch.equal(images, before)
    assert torch.equal(again, before.float())
    assert len(loader) == SAMPLES


def test_statistics_are_those_of_all_pixels_of_a_channel(images: torch.Tensor) -> None:
    mean, std = channel_statistics(images)
    assert mean.dtype == std.dtype == torch.float32
    for channel in range(3):
        pixels = images[:, channel].double()
        assert float(mean[channel]) == pytest.approx(float(pixels.mean()), rel=1e-6)
        assert float(std[channel]) == pytest.approx(float(pixels.std(correction=0)), rel=1e-6)


def test_a_channel_that_is_one_value_everywhere_becomes_zero_and_not_infinite() -> None:
    images = torch.full((6, 1, 4, 4), 37, dtype=torch.uint8)
    loader = ResidentImages(
        images, torch.zeros(6, dtype=torch.int64), Preprocessing(*channel_statistics(images)), CPU
    )
    batch, _ = loader.load(torch.arange(6))
    assert torch.equal(batch, torch.zeros(6, 1, 4, 4))


SAMPLES = 60
ORDER = [np.array([7, 0, 7]), np.array([59]), np.array([3, 2, 1, 0])]

Made = tuple[DataLoader[Batch], SeededBatches]


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """A loader that a test has let go of in a circle of references keeps its processes until it is found.

    They hold what this process had open when they began, a browser's pipe for one, whose end it waits for.
    """
    before = psutil.Process().children()
    yield
    gc.collect()
    assert [child for child in psutil.Process().children() if child not in before] == []


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (SAMPLES, 3, 6, 6), dtype=torch.uint8, generator=generator)


@pytest.fixture
def plain(images: torch.Tensor) -> Preprocessing:
    return Preprocessing(*channel_statistics(images))


def worker_loader() -> ModuleType:
    # it imports torchvision, which takes seconds that tests which are only collected should not pay
    return import_module("scalewise.builtin.data.worker_loader")


def workers(
    images: torch.Tensor,
    preprocessing: Preprocessing,
    number: int = 1,
    seed: int = 0,
    labels: torch.Tensor | None = None,
    timeout_seconds: int = 60,
) -> Made:
    batches = SeededBatches(seed)
    labels = torch.arange(len(images)) if labels is None else labels
    processes = {"workers": number, "timeout_seconds": timeout_seconds}
    loader = worker_loader().WorkerLoader(images, labels, preprocessing, batches, CPU, **processes)
    return loader, batches


def resident(images: torch.Tensor, preprocessing: Preprocessing, seed: int = 0) -> Made:
    batches = SeededBatches(seed)
    return resident_loader(
        ResidentImages(images, torch.arange(len(images)), preprocessing, CPU), batches
    ), batches


both_loaders = pytest.mark.parametrize("make", [workers, resident])


def epoch(made: Made, number: int = 0, order: list[Indices] | None = None, first: int = 0) -> list[Batch]:
    loader, batches = made
    batches.plan(ORDER if order is None else order, number, first)
    return list(loader)


@pytest.mark.parametrize("number", [1, 2])
def test_both_loaders_give_the_same_batches_in_the_same_order(
    images: torch.Tensor, plain: Preprocessing, number: int
) -> None:
    ours = epoch(workers(images, plain, number))
    for (batch, labels), (expected, expected_labels) in zip(
        ours, epoch(resident(images, plain)), strict=True
    ):
        assert batch.dtype == torch.float32
        assert torch.allclose(batch, expected, atol=1e-5)
        assert labels.tolist() == expected_labels.tolist()


def test_every_epoch_is_loaded_by_as_many_processes_as_were_asked_for(
    images: torch.Tensor, plain: Preprocessing
) -> None:
    before = set(psutil.Process().children())
    loader = workers(images, plain, number=2)
    started = []
    for number in range(2):
        epoch(loader, number)
        started.append(set(psutil.Process().children()) - before)
    assert len(started[0]) == 2
    assert started[0] == started[1]


@both_loaders
def test_images_are_brought_to_the_size_asked_for(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    ((batch, _),) = epoch(make(images, replace(plain, image_size=9)), order=[np.arange(8)])
    assert batch.shape == (8, 3, 9, 9)
    smooth = torch.nn.functional.interpolate(
        images[:8].float(), (9, 9), mode="bilinear", antialias=True, align_corners=False
    )
    expected = (smooth - plain.mean.view(3, 1, 1)) / plain.std.view(3, 1, 1)
    # torchvision rounds to whole pixel values, for columns and for rows
    assert (batch - expected).abs().max() < 1.01 / float(plain.std.min())


@both_loaders
def test_images_come_in_the_layout_asked_for(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        for batch, _ in epoch(make(images, replace(plain, memory_format=layout))):
            assert batch.is_contiguous(memory_format=layout)


@both_loaders
def test_crops_and_flips_leave_exactly_the_images_that_are_possible(
    images: torch.Tensor, make: Callable[..., Made]
) -> None:
    number, image = 1800, images[:1]
    augmentation = Augmentation(crop_padding=1, horizontal_flip=True)
    raw = Preprocessing(torch.zeros(3), torch.ones(3), augmentation)
    ((batch, _),) = epoch(make(image.expand(number, -1, -1, -1), raw), order=[np.arange(number)])
    padded = torch.nn.functional.pad(image[0].float(), (1, 1, 1, 1))
    crops = [padded[:, top : top + 6, left : left + 6] for top in range(3) for left in range(3)]
    possible = torch.stack(crops + [crop.flip(2) for crop in crops]).flatten(1)
    distances = torch.cdist(batch.flatten(1), possible, p=float("inf"))
    assert distances.min(1).values.max() < 0.01
    often = distances.argmin(1).bincount(minlength=len(possible))
    # 100 of each, give or take 5 standard deviations
    assert often.min() > 50
    assert often.max() < 150


@both_loaders
def test_crops_follow_from_seed_and_epoch_and_differ_between_them(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    def drawn(seed: int, number: int, *before: int) -> torch.Tensor:
        loader = make(images, replace(plain, augmentation=Augmentation(crop_padding=2)), seed=seed)
        for earlier in before:
            epoch(loader, earlier)
        return torch.cat([batch for batch, _ in epoch(loader, number)])

    assert torch.equal(drawn(1, 2), drawn(1, 2, 0, 1))
    assert not torch.equal(drawn(1, 2), drawn(1, 3))
    assert not torch.equal(drawn(1, 2), drawn(2, 2))


def test_crops_do_not_depend_on_the_number_of_processes(images: torch.Tensor, plain: Preprocessing) -> None:
    augmented = replace(plain, augmentation=Augmentation(crop_padding=2, horizontal_flip=True))
    one, two = (torch.cat([b for b, _ in epoch(workers(images, augmented, n))]) for n in (1, 2))
    assert torch.equal(one, two)


@both_loaders
def test_an_epoch_resumed_in_its_middle_has_the_same_crops(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    made = make(images, replace(plain, augmentation=Augmentation(crop_padding=2)))
    whole, rest = epoch(made, 3), epoch(made, 3, ORDER[1:], first=1)
    for (batch, labels), (expected, expected_labels) in zip(rest, whole[1:], strict=True):
        assert torch.equal(batch, expected)
        assert torch.equal(labels, expected_labels)


@both_loaders
def test_a_hook_on_torchs_loader_has_the_samples_of_each_batch_also_of_a_smaller_last_one(
    images: torch.Tensor,
    plain: Preprocessing,
    make: Callable[..., Made],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[list[int]] = []
    original = _BaseDataLoaderIter.__next__

    def hook(iterator: _BaseDataLoaderIter) -> Batch:
        batch: Batch = original(iterator)
        taken.append(batch[1].tolist())
        return batch

    made = make(images, plain)
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", hook)
    sampler = EpochSampler(SAMPLES, 16, rank=1, world_size=2, seed=1, accumulation_steps=2)
    order = [indices for step in sampler for indices in step.micro_batches]
    epoch(made, order=order)
    assert taken == [indices.tolist() for indices in order]
    assert [len(batch) for batch in taken] == [4, 4, 4, 4, 4, 4, 3, 3]
    assert made[0].batch_sampler.batch_size == 4  # type: ignore[union-attr]


@both_loaders
def test_loading_leaves_the_random_numbers_of_the_training_alone(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    augmented = replace(plain, augmentation=Augmentation(crop_padding=2))
    torch.manual_seed(5)
    epoch(make(images, augmented))
    after = torch.rand(3).tolist()
    torch.manual_seed(5)
    assert after == torch.rand(3).tolist()


class SlowLabels:
    """A file system that takes its time."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3)
        return torch.tensor(index)


def test_a_process_that_gives_nothing_for_half_the_time_that_ranks_wait_is_complained_of(
    images: torch.Tensor, plain: Preprocessing
) -> None:
    labels = cast("torch.Tensor", SlowLabels())
    made = workers(images, plain, labels=labels, timeout_seconds=2)
    with pytest.raises(RuntimeError, match=r"no batch within 1 s: one of its 1 processes hangs") as caught:
        epoch(made, order=[np.array([0])])
    # what ranks say that wait in vain for another: it would hide who is at fault
    assert "timed out" not in str(caught.value)


SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"

LOAD = """\
import os, signal, subprocess, sys
import numpy, psutil, torch
from scalewise.builtin.data.loaders import Preprocessing
from scalewise.builtin.data.sampling import SeededBatches
from scalewise.builtin.data.worker_loader import WorkerLoader

for case, folder in zip(sys.argv[2::2], sys.argv[3::2]):
    if not os.fork():
        os.environ["TMPDIR"] = folder
        output = os.open(f"{sys.argv[1]}/{case}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        break
else:
    statuses = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in sys.argv[2::2]]
    print(*sorted(statuses))
    sys.exit()
signal.signal(signal.SIGUSR1, lambda *_: print("the rank noticed", flush=True))
images = torch.zeros(100, 1, 8, 8, dtype=torch.uint8).share_memory_()
plain = Preprocessing(torch.zeros(1), torch.ones(1))
labels, planned = torch.zeros(100, dtype=torch.int64), SeededBatches(seed=0)
loader = WorkerLoader(images, labels, plain, planned, torch.device("cpu"), workers=2, timeout_seconds=20)
processes = psutil.Process().children()  # before any other thread has begun
print(len(processes), "processes", flush=True)
planned.plan(numpy.arange(100).reshape(10, 10), epoch=0)
arriving = iter(loader)
batches = [next(arriving), next(arriving)]  # one of each process
pids = [str(process.pid) for process in processes]
for name in ("USR1", "TERM"):
    subprocess.run(["kill", f"-{name}", *pids], check=True)
os.kill(os.getpid(), signal.SIGUSR1)
batches += arriving if case == "all" else [next(arriving)]
print(len(batches), "batches,", sum(each.is_running() for each in processes), "processes", flush=True)
"""
"""Keeps the loader until Python ends, as a training does whose objects refer to each other."""


@pytest.fixture(scope="module")
def loaded() -> Iterator[dict[str, list[str]]]:
    """What processes with loaders have printed, in folders whose names leave one for sockets, or none."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        longest = worker_loader().LONGEST_TMPDIR
        cases = {"some": longest, "all": longest, "none": longest + 1}
        given = []
        for letter, (case, length) in zip("xyz", cases.items(), strict=True):
            folder = Path(place, letter * (length - len(f"{place}/")))
            folder.mkdir()
            given += [case, str(folder)]
        done = subprocess.run(
            [sys.executable, "-c", LOAD, place, *given],
            env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        )
        found = {case: Path(place, f"{case}.txt").read_text().splitlines() for case in cases}
        yield found | {"statuses": done.stdout.split(), "folder": [place]}


@pytest.mark.slow
def test_a_tmpdir_whose_name_leaves_none_for_sockets_is_refused_with_the_cure(
    loaded: dict[str, list[str]],
) -> None:
    assert loaded["statuses"] == ["0", "0", "1"]
    last = loaded["none"][-1]
    assert last.startswith(f"RuntimeError: TMPDIR is {loaded['folder'][0]}/zzz")
    assert "76 characters" in last
    assert "Set a shorter one" in last


@pytest.mark.fault(28)
@pytest.mark.parametrize(("how_many", "batches"), [("some", 3), ("all", 10)])
@pytest.mark.slow
def test_a_rank_with_loader_processes_ends_whether_its_epoch_is_done_or_not(
    loaded: dict[str, list[str]], how_many: str, batches: int
) -> None:
    """In a TMPDIR of the longest name that leaves its sockets one."""
    assert loaded["statuses"] == ["0", "0", "1"]
    assert loaded[how_many] == ["2 processes", "the rank noticed", f"{batches} batches, 2 processes"]


def test_loaders_are_built_before_the_process_group_begins_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(dataset="digits", model="linear", global_batch_size=8, loader="workers")
    files = RankFiles(tmp_path)
    spec = TrainSpec(
        definition=definition_of(settings),
        dataset=tmp_path / "digits",
        folder=tmp_path,
        started_at=utc_now(),
    )
    files.begin(rank_setup(shape="1x1", training=spec))
    begun: list[str] = []
    place = Identity(0, 0, 1, 1, "node-a", None, 0), "0", torch.device("cpu")

    @contextmanager
    def process_group(*_given: object) -> Iterator[None]:
        begun.append("process group")
        yield

    monkeypatch.setattr(ranks, "initialize_rank", lambda *_given: place)
    monkeypatch.setattr(datasets, "load", lambda _path: None)
    monkeypatch.setattr(ranks, "build_loaders", lambda *_given: begun.append("loaders"))
    monkeypatch.setattr(ranks, "process_group", process_group)
    monkeypatch.setattr(ranks, "train_and_record", lambda *_given: begun.append("training"))
    before = signal.getsignal(signal.SIGUSR1)
    try:
        ranks.run_rank(files, time.monotonic(), Signals())
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert begun == ["loaders", "process group", "training"]
