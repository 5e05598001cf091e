"""Every sample once an epoch, however many ranks share it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scalewise.builtin.data.sampling import EpochSampler, SampledStep

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
    seen = torch.cat(
        [indices(step) for rank in range(world_size) for step in steps(samples, rank, world_size)]
    )
    assert sorted(seen.tolist()) == list(range(samples))


@pytest.mark.fault(5)
@every_size
@every_world
def test_all_ranks_take_the_same_number_of_steps_of_the_same_size(samples: int, world_size: int) -> None:
    sizes = [[step.samples for step in steps(samples, rank, world_size)] for rank in range(world_size)]
    assert all(of_rank == sizes[0] for of_rank in sizes)
    assert sum(sizes[0]) == samples
    assert len(EpochSampler(samples, GLOBAL_BATCH, 0, world_size, 1)) == len(sizes[0])


@every_size
@every_world
def test_ranks_share_each_step_of_a_single_process(samples: int, world_size: int) -> None:
    parts = [steps(samples, rank, world_size) for rank in range(world_size)]
    for number, whole in enumerate(steps(samples, 0, 1)):
        shares = [indices(part[number]) for part in parts]
        assert torch.cat(shares).tolist() == indices(whole).tolist()
        assert all(part[number].samples == whole.samples for part in parts)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


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


def test_each_epoch_has_an_order_of_its_own() -> None:
    orders = [order(1437, epoch=epoch) for epoch in range(4)]
    assert len({tuple(o) for o in orders}) == 4
    assert all(o != sorted(o) for o in orders)


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    torch.manual_seed(7)
    first = order(1437, epoch=3, seed=5)
    torch.rand(10)
    assert order(1437, epoch=3, seed=5) == first
    assert order(1437, epoch=3, seed=6) != first


def test_repeats_do_not_share_the_orders_of_their_epochs() -> None:
    """Seeds of repeats follow each other: seed + epoch would give one repeat the other's orders."""
    orders = [tuple(order(1437, epoch=epoch, seed=seed)) for seed in (1, 2, 3) for epoch in range(3)]
    assert len(set(orders)) == 9


def test_reading_an_epoch_again_gives_the_same_samples() -> None:
    sampler = EpochSampler(1437, GLOBAL_BATCH, 1, 2, 1)
    sampler.set_epoch(2)
    first = [indices(step).tolist() for step in sampler]
    assert [indices(step).tolist() for step in sampler] == first


@every_size
@every_world
def test_samples_before_a_step_are_those_of_the_steps_before_it(samples: int, world_size: int) -> None:
    for rank in range(world_size):
        sampler = EpochSampler(samples, GLOBAL_BATCH - 1, rank, world_size, seed=1)
        sizes = [len(indices(step)) for step in sampler]
        before = [sampler.samples_before(step) for step in range(len(sizes) + 1)]
        assert before == [sum(sizes[:step]) for step in range(len(sizes) + 1)]
