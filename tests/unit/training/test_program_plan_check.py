"""The check of a program's first steps: it names what is not as planned, both numbers and the fix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.training.probe_record_of import record

from scalewise.ranks.program.plan_check import check_plan
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.samples import Planned, samples_seen

BATCH = "batch_size_per_device"


def planned(
    samples: int = 16,
    devices: int = 2,
    passes: int = 1,
    name: str = BATCH,
    *,
    given: bool = False,
    accelerator: str = "cpu",
) -> Planned:
    return Planned("train.py", devices, samples, passes, given, frozenset({name}), accelerator)


def pair(**changed: Any) -> list[ProbeRecord]:
    return [record(rank, steps=4, **changed) for rank in (0, 1)]


def test_a_run_as_planned_has_no_message() -> None:
    assert check_plan(planned(), pair()) == ""


@pytest.mark.parametrize(
    ("plan", "records", "words"),
    [
        pytest.param(
            planned(), pair(world_size=1), ["2 devices", "world size 1", "`devices: [1]`"], id="copies"
        ),
        pytest.param(
            planned(accelerator="cuda"),
            pair(),
            ["planned were GPUs", "rank 0", "on the CPU", "LOCAL_RANK", "`accelerator: cpu`"],
            id="on the CPU",
        ),
        pytest.param(
            planned(),
            pair(cuda=True, device="NVIDIA H100"),
            ["planned were CPU processes", "on NVIDIA H100", "`accelerator: cuda`"],
            id="on a GPU",
        ),
        pytest.param(planned(), pair(world_size=4), ["4 ranks", "2 devices", "WORLD_SIZE"], id="world"),
        pytest.param(
            planned(),
            [record(0, steps=4), record(1, steps=4, weights=[1.5, -2.25000001])],
            ["rank 1", "other weights than rank 0", "DistributedDataParallel", "`.module`"],
            id="apart",
        ),
        pytest.param(
            planned(),
            pair(parallelism=[], batches=[1.0, 2.0, 3.0]),
            ["same batches", "perfect scaling", "DistributedSampler"],
            id="nothing exchanged, the same samples",
        ),
        pytest.param(
            planned(32, name="global_batch_size"),
            pair(samples=[32] * 4),
            ["64 samples", "32 were planned", "{batch_size_per_device} instead of {global_batch_size}"],
            id="per device, given that of all",
        ),
        pytest.param(
            planned(32),
            pair(samples=[8] * 4),
            ["16 samples", "32 were planned", "{global_batch_size} instead of {batch_size_per_device}"],
            id="of all, given that per device",
        ),
        pytest.param(
            planned(64, passes=4),
            pair(samples=[8] * 4),
            ["16 samples", "64 were planned", "{accumulation_steps}"],
            id="one pass",
        ),
        pytest.param(
            planned(16),
            pair(samples=[24] * 4, backward_passes=[3] * 4),
            ["48 samples", "`accumulation_steps: 3`"],
            id="passes",
        ),
        pytest.param(
            planned(100),
            pair(samples=[35] * 4),
            ["70 samples", "`batch_size_per_device: 35`"],
            id="own batch",
        ),
        pytest.param(
            planned(16),
            pair(samples=[]),
            ["cannot be seen", "`samples_per_step: planned`", "16 samples"],
            id="no loader",
        ),
        pytest.param(
            planned(1, devices=1),
            [record(steps=4, samples=[], forward_samples=92.0, backward_passes=[1] * 4, world_size=1)],
            ["92 samples", "`batch_size_per_device: 92`", "`samples_per_step: planned`"],
            id="a step an episode: no more passes are advised than were seen",
        ),
        pytest.param(
            planned(64, devices=1),
            [record(steps=4, samples=[57, 60, 71, 66], world_size=1)],
            ["vary (57, 60, 71 samples in its first", "64 were planned", "`samples_per_step: seen`"],
            id="batches of random size",
        ),
        pytest.param(
            planned(),
            pair(batches=[1.0, 2.0, 3.0]),
            ["2 ranks", "same batches", "DistributedSampler", "`same_batches: true`"],
            id="DDP on the same samples",
        ),
        pytest.param(
            planned(devices=1, samples=8),
            [record(steps=4, world_size=1, data_parallel_devices=4, cuda=True)],
            ["divides each batch among 4 GPUs", "torch.nn.DataParallel", "DistributedDataParallel"],
            id="one process on all GPUs",
        ),
        pytest.param(planned(), pair(refused="tensor parallel"), ["tensor parallel"], id="tensor parallel"),
    ],
)
def test_a_difference_is_named_with_both_numbers_and_the_fix(
    plan: Planned, records: list[ProbeRecord], words: list[str]
) -> None:
    message = check_plan(plan, records)

    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(pair(parallelism=[], weights=[1.5]), id="an all-reduce by hand: equal weights"),
        pytest.param(pair(parallelism=["fully_shard"], sharded=True, weights=[]), id="divided parameters"),
        pytest.param(pair(batches=[1.0, 1.0, 1.0]), id="batches that are all alike"),
        pytest.param(
            [
                record(rank, steps=4, batches=[1.0, 2.0, 3.0], forward_batches=[5.0 + rank, 6.0, 7.0])
                for rank in (0, 1)
            ],
            id="batches that the ranks divide by themselves",
        ),
        pytest.param(
            [record(0, steps=4, samples=[16] * 4), record(1, steps=4, samples=[0] * 4)], id="one reads"
        ),
        pytest.param(pair(samples=[16, 8, 8, 8]), id="fetched ahead"),
        pytest.param(pair(samples=[], forward_samples=8.0), id="by forward passes"),
    ],
)
def test_common_programs_have_no_difference(records: list[ProbeRecord]) -> None:
    assert check_plan(planned(), records) == ""


def test_the_check_waits_for_a_slower_rank_until_all_have_ended() -> None:
    first = [record(0, steps=4)]

    assert check_plan(planned(), first) == ""
    assert "1 processes" in check_plan(planned(), first, all_ended=True)


def test_planned_samples_count_if_the_configuration_says_so() -> None:
    assert check_plan(planned(16, given=True), pair(samples=[35] * 4)) == ""
    # but never on copies
    assert "world size 1" in check_plan(planned(16, given=True), pair(world_size=1))


def test_a_user_says_that_batches_vary_or_are_the_same_on_all_ranks() -> None:
    varied = [record(steps=4, samples=[57, 60, 71, 66], world_size=1)]
    plan = planned(64, devices=1)

    assert check_plan(replace(plan, samples_vary=True), varied) == ""
    assert check_plan(replace(planned(), same_batches=True), pair(batches=[1.0, 2.0, 3.0])) == ""


def test_samples_that_change_later_are_no_difference_at_the_end() -> None:
    later = [record(steps=30, samples=[16] * 10 + [64] * 20, world_size=1)]

    assert check_plan(planned(16, devices=1), later, all_ended=True) == ""


def test_samples_come_from_the_loader_before_forward_passes() -> None:
    assert samples_seen(pair(forward_samples=99.0)).source == "loader"
    assert samples_seen(pair(samples=[None] * 4, forward_samples=6.0)).per_step == 12
