"""Every sample is trained on once an epoch, and no rank starves, at every small size."""

from __future__ import annotations

from collections.abc import Iterator

from scalewise.plan.runs.batches import MIN_SAMPLES_PER_RANK, shard_range, step_sizes


def sizes() -> Iterator[tuple[int, int, int]]:
    """Samples, global batch and parts: all that are possible up to 40 samples on 6 ranks."""
    for world_size in range(1, 7):
        for samples in range(world_size, 41):
            for global_batch in range(world_size, samples + 1, world_size):
                yield samples, global_batch, world_size


def test_each_sample_of_an_epoch_belongs_to_one_step_of_one_rank() -> None:
    for samples, global_batch, world_size in sizes():
        used: list[int] = []
        for size in step_sizes(samples, global_batch, world_size):
            offset = len(used)
            for rank in range(world_size):
                used += [offset + position for position in shard_range(size, rank, world_size)]
        assert used == list(range(samples)), (samples, global_batch, world_size)


def test_all_steps_have_the_stated_batch_but_the_last() -> None:
    for samples, global_batch, world_size in sizes():
        *full, last = step_sizes(samples, global_batch, world_size)
        assert set(full) <= {global_batch}
        assert last < global_batch + MIN_SAMPLES_PER_RANK * world_size


def test_ranks_differ_by_one_sample_at_most() -> None:
    for world_size in range(1, 17):
        for samples in range(100):
            counts = [len(shard_range(samples, rank, world_size)) for rank in range(world_size)]
            assert sum(counts) == samples
            assert max(counts) - min(counts) <= 1


def test_no_rank_gets_a_batch_too_small_to_normalise() -> None:
    for samples, global_batch, world_size in sizes():
        if global_batch < MIN_SAMPLES_PER_RANK * world_size:
            continue
        for size in step_sizes(samples, global_batch, world_size):
            smallest = min(len(shard_range(size, rank, world_size)) for rank in range(world_size))
            assert smallest >= 2, (samples, global_batch, world_size)


def test_no_pass_of_an_accumulated_step_is_too_small_to_normalise() -> None:
    for samples, global_batch, parts in sizes():
        if global_batch < MIN_SAMPLES_PER_RANK * parts:
            continue
        for world_size in (size for size in range(1, parts + 1) if parts % size == 0):
            passes = parts // world_size
            for size in step_sizes(samples, global_batch, parts):
                ranks = [len(shard_range(size, rank, world_size)) for rank in range(world_size)]
                smallest = min(
                    len(shard_range(mine, index, passes)) for mine in ranks for index in range(passes)
                )
                assert smallest >= MIN_SAMPLES_PER_RANK, (samples, global_batch, world_size, passes)


def test_a_full_step_has_passes_of_one_size() -> None:
    # so that a compiled model meets one shape until the last step of an epoch
    for samples, global_batch, parts in sizes():
        for size in step_sizes(samples, global_batch, parts)[:-1]:
            assert {len(shard_range(size, part, parts)) for part in range(parts)} == {
                global_batch // parts
            }, samples


def test_the_digits_fall_into_the_steps_one_expects() -> None:
    assert step_sizes(1437, 256, 2) == [256, 256, 256, 256, 256, 157]
    assert step_sizes(1437, 479, 1) == [479, 479, 479]
    assert step_sizes(1437, 359, 4) == [359, 359, 359, 360]
    assert step_sizes(1437, 476, parts=4) == [476, 476, 476, 9]
    assert step_sizes(1437, 476, parts=7) == [476, 476, 485]
    assert [len(shard_range(157, rank, 2)) for rank in range(2)] == [79, 78]
