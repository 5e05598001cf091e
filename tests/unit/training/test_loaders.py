"""Each sample is used once an epoch, and batches are what a user would compute by hand from the images."""

from __future__ import annotations

import gc
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from multiprocessing import process
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import psutil
import pytest
import torch
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
from scalewise.builtin.data.sampling import EpochSampler, Indices, SampledStep, SeededBatches
from scalewise.builtin.loop import TrainingState, evaluation_batch, evaluation_batches, train
from scalewise.builtin.models.builders import BUILDERS
from scalewise.builtin.trainer import Trainer, build_loaders
from tests.small_runs import definition_of, rank_setup
from tests.unit.training.small_training import CPU, random_images, settings_of, trainer_of
from torch import nn
from torch.utils.data import DataLoader

from scalewise.execution.messages import TrainSpec
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.signals import Signals
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity
from scalewise.records import utc_now


def test_images_are_normalised_by_all_pixels_of_a_channel_also_if_they_are_all_alike() -> None:
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    images[:, 1] = 37
    preprocessing = Preprocessing(*channel_statistics(images))
    batch, _ = ResidentImages(images, torch.arange(2), preprocessing, CPU).load(torch.arange(2))
    assert batch.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert batch.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 0, 1], abs=1e-6)


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


def test_both_loaders_give_the_same_batches_and_processes_stay_for_all_epochs(
    images: torch.Tensor, plain: Preprocessing
) -> None:
    before = set(psutil.Process().children())
    made = workers(images, plain, number=2)
    started = []
    for number in range(2):
        for (batch, labels), (expected, expected_labels) in zip(
            epoch(made, number), epoch(resident(images, plain)), strict=True
        ):
            assert batch.dtype == torch.float32
            assert torch.allclose(batch, expected, atol=1e-5)
            assert labels.tolist() == expected_labels.tolist()
        started.append(set(psutil.Process().children()) - before)
    assert len(started[0]) == 2
    assert started[0] == started[1]


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


def test_a_training_mirrors_half_of_its_images_if_its_settings_say_so() -> None:
    number = 200

    def drawn(**chosen: bool) -> torch.Tensor:
        loaders = build_loaders(settings_of(**chosen), random_images(number), 0, CPU, 60)
        ((batch, _),) = epoch((loaders.train, loaders.batch_sampler), order=[np.arange(number)])
        return batch.flatten(0, 1)

    plain, changed = drawn(), drawn(horizontal_flip=True)
    kept = (changed == plain).all((1, 2))
    assert (kept | (changed == plain.flip(2)).all((1, 2))).all()
    # 100, give or take 5 standard deviations
    assert 65 < kept.sum() < 135


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


@both_loaders
def test_an_epoch_resumed_in_its_middle_has_the_same_crops_also_by_more_processes(
    images: torch.Tensor, plain: Preprocessing, make: Callable[..., Made]
) -> None:
    augmented = replace(plain, augmentation=Augmentation(crop_padding=2))
    resumed = workers(images, augmented, number=2) if make is workers else make(images, augmented)
    whole, rest = epoch(make(images, augmented), 3), epoch(resumed, 3, ORDER[1:], first=1)
    for (batch, labels), (expected, expected_labels) in zip(rest, whole[1:], strict=True):
        assert torch.equal(batch, expected)
        assert torch.equal(labels, expected_labels)


@both_loaders
def test_loading_does_not_change_the_random_numbers_of_the_training(
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


def test_the_longest_tmpdir_that_leaves_sockets_a_name_works_and_a_longer_one_is_refused(
    images: torch.Tensor, plain: Preprocessing, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = worker_loader().LONGEST_TMPDIR
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place:
        folders = [Path(place, "x" * (length - len(f"{place}/"))) for length in (longest, longest + 1)]
        for folder in folders:
            folder.mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(folder))
            # this process may have chosen a folder for its sockets before
            monkeypatch.setitem(vars(process.current_process())["_config"], "tempdir", None)
            if folder == folders[0]:
                assert len(epoch(workers(images, plain))) == len(ORDER)
                continue
            with pytest.raises(
                RuntimeError, match=rf"^TMPDIR is {folder}, 76 characters.* Set a shorter one"
            ):
                workers(images, plain)


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


GLOBAL_BATCH = 168
"""Divides among all of these world sizes and leaves a last step that each rank has a part of."""

every_world = pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])


def steps(
    samples: int,
    rank: int,
    world_size: int,
    *,
    epoch: int = 0,
    seed: int = 1,
    batch: int = GLOBAL_BATCH,
    micro_batches: int = 1,
) -> list[SampledStep]:
    sampler = EpochSampler(samples, batch, rank, world_size, seed, micro_batches)
    sampler.set_epoch(epoch)
    return list(sampler)


def indices(step: SampledStep) -> torch.Tensor:
    """Of the rank, in all micro-batches of the step."""
    return torch.from_numpy(np.concatenate(step.micro_batches))


def order(samples: int, **kwargs: int) -> list[int]:
    """The epoch of a single process."""
    return [sample for step in steps(samples, 0, 1, **kwargs) for sample in indices(step).tolist()]


@pytest.mark.fault(5)
@pytest.mark.parametrize("samples", [1437, 1797])
@every_world
def test_an_epoch_uses_every_sample_exactly_once(samples: int, world_size: int) -> None:
    # all ranks take as many steps, of the same sizes: they share each step of a single process
    parts = [steps(samples, rank, world_size) for rank in range(world_size)]
    alone = steps(samples, 0, 1)
    for whole, *shares in zip(alone, *parts, strict=True):
        sizes = [len(indices(share)) for share in shares]
        assert torch.cat([indices(share) for share in shares]).tolist() == indices(whole).tolist()
        assert {share.samples for share in shares} == {whole.samples}
        assert max(sizes) - min(sizes) <= 1
    assert sorted(sample for whole in alone for sample in indices(whole).tolist()) == list(range(samples))
    assert len(EpochSampler(samples, GLOBAL_BATCH, 0, world_size, 1)) == len(alone)


@every_world
def test_a_rank_shares_its_part_of_a_step_evenly_between_micro_batches(world_size: int) -> None:
    for rank in range(world_size):
        whole = steps(1437, rank, world_size, batch=840)
        divided = steps(1437, rank, world_size, batch=840, micro_batches=3)
        assert [step.samples for step in divided] == [step.samples for step in whole]
        for step, undivided in zip(divided, whole, strict=True):
            sizes = [len(part) for part in step.micro_batches]
            assert len(sizes) == 3
            assert max(sizes) - min(sizes) <= 1
            assert indices(step).tolist() == indices(undivided).tolist()


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    sampler = EpochSampler(1437, GLOBAL_BATCH, 0, 1, 5)
    sampler.set_epoch(3)
    torch.manual_seed(7)
    first = [sample for step in sampler for sample in indices(step).tolist()]
    torch.rand(10)
    assert [sample for step in sampler for sample in indices(step).tolist()] == first
    assert order(1437, epoch=3, seed=5) == first != sorted(first)


def test_repeats_do_not_share_the_orders_of_their_epochs() -> None:
    """Seeds of repeats follow each other: seed + epoch would give one repeat the other's orders."""
    orders = [tuple(order(1437, epoch=epoch, seed=seed)) for seed in (1, 2, 3) for epoch in range(3)]
    assert len(set(orders)) == 9


@every_world
def test_samples_before_a_step_are_those_of_the_steps_before_it(world_size: int) -> None:
    for rank in range(world_size):
        sampler = EpochSampler(1437, GLOBAL_BATCH - 1, rank, world_size, seed=1)
        sizes = [len(indices(step)) for step in sampler]
        before = [sampler.samples_before(step) for step in range(len(sizes) + 1)]
        assert before == [sum(sizes[:step]) for step in range(len(sizes) + 1)]


class Recorder(nn.Module):
    def __init__(self, image: torch.Size, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)
        self.sizes: dict[bool, list[int]] = {True: [], False: []}
        self.full = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.sizes[self.training].append(len(images))
        if self.full and not self.training:
            raise torch.OutOfMemoryError("tried to allocate 3 GiB")
        logits: torch.Tensor = self.layer(images.flatten(1))
        return logits


@pytest.fixture
def trainer(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """One rank that trains 40 samples in micro-batches of 4, and has 50 to test."""
    monkeypatch.setitem(BUILDERS, "recorder", Recorder)
    settings = settings_of(model="recorder", global_batch_size=8, accumulation_steps=2, epochs=1)
    return trainer_of(random_images(40, 50), settings)


def test_a_batch_of_evaluation_is_no_larger_than_a_pass_of_training(trainer: Trainer) -> None:
    sizes = trainer.parallel_model.module.sizes
    assert isinstance(sizes, dict)
    assert train(trainer, TrainingState.start(CPU), lambda _record: None) == "completed"
    assert set(sizes[True]) == {4}
    assert (evaluation_batch(64), evaluation_batch(50_000)) == (64, 1024)
    assert max(sizes[False]) <= 4
    assert sum(sizes[False]) == 50


def test_an_evaluation_without_memory_is_not_taken_for_a_training_without(trainer: Trainer) -> None:
    trainer.parallel_model.module.full = True  # type: ignore[assignment]
    said = "in the evaluation after epoch 1, not in training: tried to allocate 3 GiB"
    with pytest.raises(torch.OutOfMemoryError, match=said):
        train(trainer, TrainingState.start(CPU), lambda _record: None)


@pytest.mark.parametrize(
    ("samples", "world_size", "batch_size"), [(5, 7, 1), (360, 1, 100), (1437, 3, 8), (1437, 7, 1024)]
)
def test_every_test_sample_is_counted_once_in_as_many_batches_on_every_rank(
    samples: int, world_size: int, batch_size: int
) -> None:
    ranks = [list(evaluation_batches(samples, rank, world_size, batch_size)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = torch.cat([indices[:counted] for batches in ranks for indices, counted in batches])
    assert seen.sort().values.tolist() == list(range(samples))
    assert max(len(indices) for batches in ranks for indices, _ in batches) <= batch_size


@pytest.mark.parametrize(
    ("samples", "global_batch_size", "world_size", "micro_batches", "smallest"),
    [(1000, 256, 2, 1, 128), (1000, 256, 2, 4, 32), (1000, 250, 4, 1, 62), (10, 256, 2, 1, 5)],
)
def test_the_samples_of_a_micro_batch_are_those_that_the_first_step_gives_its_poorest_rank(
    samples: int, global_batch_size: int, world_size: int, micro_batches: int, smallest: int
) -> None:
    samplers = [
        EpochSampler(samples, global_batch_size, rank, world_size, 1, micro_batches)
        for rank in range(world_size)
    ]
    given = min(len(indices) for sampler in samplers for indices in next(iter(sampler)).micro_batches)
    assert {sampler.samples_of_micro_batch for sampler in samplers} == {given} == {smallest}
