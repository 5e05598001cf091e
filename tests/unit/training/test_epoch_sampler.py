"""Every sample once an epoch, however many ranks share it, in training and in evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.training.small_training import CPU, random_images, settings_of, trainer_of
from torch import nn

from scalewise.builtin.data.sampling import EpochSampler, SampledStep
from scalewise.builtin.loop import TrainingState, evaluation_batch, evaluation_batches, train
from scalewise.builtin.models.builders import BUILDERS
from scalewise.builtin.trainer import Trainer

WORLD_SIZES = [1, 2, 3, 4, 7]
GLOBAL_BATCH = 168
"""Divides among all of these world sizes and leaves a last step that each rank has a part of."""

every_size = pytest.mark.parametrize("samples", [1437, 1797])
every_world = pytest.mark.parametrize("world_size", WORLD_SIZES)


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
@every_size
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


@every_size
@every_world
def test_every_rank_has_two_samples_in_every_step_even_where_few_are_left(
    samples: int, world_size: int
) -> None:
    for batch in (84, samples - 1, samples):
        for rank in range(world_size):
            mine = steps(samples, rank, world_size, batch=batch)
            assert min(len(indices(step)) for step in mine) >= 2


@every_size
@every_world
@pytest.mark.parametrize("micro_batches", [2, 3])
def test_a_rank_shares_its_part_of_a_step_evenly_between_micro_batches(
    samples: int, world_size: int, micro_batches: int
) -> None:
    for rank in range(world_size):
        whole = steps(samples, rank, world_size, batch=840)
        divided = steps(samples, rank, world_size, batch=840, micro_batches=micro_batches)
        assert [step.samples for step in divided] == [step.samples for step in whole]
        for step, undivided in zip(divided, whole, strict=True):
            sizes = [len(part) for part in step.micro_batches]
            assert len(sizes) == micro_batches
            assert max(sizes) - min(sizes) <= 1
            assert indices(step).tolist() == indices(undivided).tolist()


@every_world
def test_a_rest_too_small_for_every_pass_of_every_rank_joins_the_step_before(world_size: int) -> None:
    for rank in range(world_size):
        mine = steps(168 * 3 + 10, rank, world_size, micro_batches=6)
        assert [step.samples for step in mine] == [168, 168, 178]
        assert min(len(part) for step in mine for part in step.micro_batches) >= 2


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
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


@every_size
@every_world
def test_samples_before_a_step_are_those_of_the_steps_before_it(samples: int, world_size: int) -> None:
    for rank in range(world_size):
        sampler = EpochSampler(samples, GLOBAL_BATCH - 1, rank, world_size, seed=1)
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
    assert max(sizes[False]) <= 4
    assert sum(sizes[False]) == 50


def test_an_evaluation_without_memory_is_not_taken_for_a_training_without(trainer: Trainer) -> None:
    trainer.parallel_model.module.full = True  # type: ignore[assignment]
    said = "in the evaluation after epoch 1, not in training: tried to allocate 3 GiB"
    with pytest.raises(torch.OutOfMemoryError, match=said):
        train(trainer, TrainingState.start(CPU), lambda _record: None)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("samples", [5, 360, 1437])
@pytest.mark.parametrize("batch_size", [1, 8, 100, 1024])
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


def test_a_large_batch_of_training_is_not_taken_for_evaluation() -> None:
    assert evaluation_batch(64) == 64
    assert evaluation_batch(50_000) == 1024
