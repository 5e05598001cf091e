"""Every sample once an epoch, however many ranks share it."""

from __future__ import annotations

import pytest
import torch

from scalewise.training.sampling import EpochSampler

WORLD_SIZES = [1, 2, 3, 4, 7]
GLOBAL_BATCH = 168
"""Divides among all of these world sizes and leaves a last step that each rank has a part of."""

every_size = pytest.mark.parametrize("samples", [1437, 1797])
every_world = pytest.mark.parametrize("world_size", WORLD_SIZES)


def steps(
    samples: int, rank: int, world_size: int, *, epoch: int = 0, seed: int = 1, batch: int = GLOBAL_BATCH
) -> list[tuple[int, torch.Tensor]]:
    sampler = EpochSampler(samples, batch, rank, world_size, seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def order(samples: int, **kwargs: int) -> list[int]:
    """The epoch of a single process."""
    return torch.cat([indices for _, indices in steps(samples, 0, 1, **kwargs)]).tolist()


@every_size
@every_world
def test_an_epoch_uses_every_sample_exactly_once(samples: int, world_size: int) -> None:
    seen = torch.cat(
        [indices for rank in range(world_size) for _, indices in steps(samples, rank, world_size)]
    )
    assert sorted(seen.tolist()) == list(range(samples))


@every_size
@every_world
def test_all_ranks_take_the_same_number_of_steps_of_the_same_size(samples: int, world_size: int) -> None:
    sizes = [[size for size, _ in steps(samples, rank, world_size)] for rank in range(world_size)]
    assert all(of_rank == sizes[0] for of_rank in sizes)
    assert sum(sizes[0]) == samples
    assert len(EpochSampler(samples, GLOBAL_BATCH, 0, world_size, 1)) == len(sizes[0])


@every_size
@every_world
def test_ranks_share_each_step_of_a_single_process(samples: int, world_size: int) -> None:
    parts = [steps(samples, rank, world_size) for rank in range(world_size)]
    for step, (size, whole) in enumerate(steps(samples, 0, 1)):
        shares = [part[step][1] for part in parts]
        assert torch.cat(shares).tolist() == whole.tolist()
        assert all(part[step][0] == size for part in parts)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@every_size
@every_world
def test_every_rank_has_two_samples_in_every_step_even_where_few_are_left(
    samples: int, world_size: int
) -> None:
    for batch in (84, samples - 1, samples):
        for rank in range(world_size):
            mine = steps(samples, rank, world_size, batch=batch)
            assert min(len(indices) for _, indices in mine) >= 2


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
    first = [indices.tolist() for _, indices in sampler]
    assert [indices.tolist() for _, indices in sampler] == first
