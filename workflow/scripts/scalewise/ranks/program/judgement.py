"""Findings of all ranks of a program, held against the plan: figures of something else are worth nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from statistics import median

from scalewise.plan.config.shape import count_devices
from scalewise.ranks.results.rank_record import ProbeRecord
from scalewise.ranks.results.samples import Planned, Samples, samples_seen

CHECK_AFTER_STEPS = 3
"""First steps that are compared with the plan."""

EQUAL_WEIGHTS = 1e-9
"""Relative difference up to which two sums of equal weights may differ by the order of adding."""


def contradiction(planned: Planned, ranks: Sequence[ProbeRecord], all_ended: bool = False) -> str:
    """A sentence on what is not as planned, with both numbers and the fix; empty where nothing is.

    Args:
        planned: The run.
        ranks: Records of the processes that made steps so far.
        all_ended: Whether no further one is to come.
    """
    for rank in ranks:
        if rank.refused:
            return (
                f"{planned.program} uses {rank.refused}, in which ranks share samples or hold parts of a "
                "model: neither samples of a step nor speedup can be told from its steps. Measure its "
                "data-parallel part, or train it by other means."
            )
        if rank.data_parallel_devices > 1:
            return _divided_by_one_process(planned, rank.data_parallel_devices)
        if rank.cuda != (planned.accelerator == "cuda"):
            return _other_device(planned, rank)
        if rank.world_size != planned.devices:
            return _other_world(planned, rank.world_size, len(ranks))
    if len(ranks) != planned.devices:
        if not all_ended and len(ranks) < planned.devices:
            return ""
        return (
            f"{len(ranks)} processes of {planned.program} made optimizer steps, but "
            f"{count_devices(planned.devices)} were planned. Let every rank train, and nothing beside them."
        )
    return _apart(planned, ranks) or _other_samples(planned, ranks)


def _other_device(planned: Planned, rank: ProbeRecord) -> str:
    if rank.cuda:
        return (
            f"planned were CPU processes, but rank {rank.rank} of {planned.program} trains on {rank.device}. "
            "Set `accelerator: cuda` in the site file, or leave CUDA_VISIBLE_DEVICES out of the experiment's "
            "environment."
        )
    return (
        f"planned were GPUs, but rank {rank.rank} of {planned.program} trains on the CPU. Let it move model "
        "and batches to the GPU of LOCAL_RANK, or set `accelerator: cpu` in the site file."
    )


def _divided_by_one_process(planned: Planned, devices: int) -> str:
    return (
        f"{planned.program} divides each batch among {devices} GPUs in one process (torch.nn.DataParallel), "
        "but one process was planned for each GPU. Let it use DistributedDataParallel, or no wrapper."
    )


def _other_world(planned: Planned, world_size: int, processes: int) -> str:
    if world_size == 1:
        return (
            f"planned were {count_devices(planned.devices)}, but {planned.program} trains in processes that "
            f"know nothing of each other (world size 1, {processes} of them seen so far): copies of one "
            "training would pass for perfect scaling. Let it call torch.distributed.init_process_group and "
            "wrap the model in DistributedDataParallel, or use `devices: [1]`; a program that starts its own "
            "ranks takes `starts: itself`."
        )
    return (
        f"the process group of {planned.program} has {world_size} ranks, but "
        f"{count_devices(planned.devices)} were planned. Let it take the number from WORLD_SIZE, or from "
        "{devices} in its arguments."
    )


def _apart(planned: Planned, ranks: Sequence[ProbeRecord]) -> str:
    """Say that ranks do not exchange gradients; empty where they do, or where nobody can say."""
    if planned.devices == 1 or any(rank.sharded for rank in ranks):
        return ""
    fix = (
        "Wrap the model in DistributedDataParallel, and call the wrapped model: what is called by its "
        "`.module` exchanges nothing."
    )
    first = ranks[0].weights
    for rank in ranks[1:]:
        if len(rank.weights) != len(first) or not all(map(_equal, first, rank.weights)):
            return (
                f"rank {rank.rank} of {planned.program} holds other weights than rank {ranks[0].rank}: they "
                f"train apart, though {planned.devices} ranks have met. {fix}"
            )
    if not planned.same_batches and same_samples(ranks):
        wrapped = any(rank.parallelism for rank in ranks)
        nothing = "" if wrapped else ", and nothing that exchanges gradients was seen"
        return (
            f"all {planned.devices} ranks of {planned.program} train on the same batches{nothing}: copies of "
            "one training would pass for perfect scaling. Give each rank its own samples, as "
            f"DistributedSampler does.{'' if wrapped else f' {fix}'} If they share them on purpose, write "
            "`same_batches: true`."
        )
    return ""


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return isclose(one, other, rel_tol=EQUAL_WEIGHTS, abs_tol=EQUAL_WEIGHTS)


def same_samples(ranks: Sequence[ProbeRecord]) -> bool:
    """Whether all of several ranks train on the same batches, which is a sampler forgotten as a rule.

    What enters the model decides if both are seen: some programs divide the batches of a loader.
    Batches that are all alike, as of zeros, tell nothing.
    """
    if len(ranks) < 2:
        return False
    for sums in ([rank.forward_batches for rank in ranks], [rank.batches for rank in ranks]):
        if all(sums):
            return all(each == sums[0] for each in sums) and len(set(sums[0] or ())) > 1
    return False


def first_samples(ranks: Sequence[ProbeRecord]) -> list[int]:
    """Samples of each of the first steps over all ranks; empty where no DataLoader shows them."""
    columns = [rank.samples[:CHECK_AFTER_STEPS] for rank in ranks if rank.samples]
    return [sum(each or 0 for each in step) for step in zip(*columns, strict=False)]


def _other_samples(planned: Planned, ranks: Sequence[ProbeRecord]) -> str:
    """Say that the first steps hold other samples than planned; at a run's end, they are compared, too."""
    first = [
        rank.model_copy(
            update={
                "samples": rank.samples[:CHECK_AFTER_STEPS],
                "backward_passes": rank.backward_passes[:CHECK_AFTER_STEPS],
            }
        )
        for rank in ranks
    ]
    seen = samples_seen(first)
    if planned.samples_given:
        return ""
    if seen.per_step is None:
        return (
            f"the samples of a step of {planned.program} cannot be seen: no DataLoader feeds it, and no "
            "forward pass of its model shows a batch. Write `samples_per_step: planned` if it trains on the "
            f"{planned.global_batch_size} samples a step that are planned."
        )
    if planned.samples_vary:
        return ""
    each = first_samples(first)
    # one of them may be another one's: loaders fetch ahead, and the last batch of a pass is smaller
    if seen.source == "loader" and sum(samples != seen.per_step for samples in each) > 1:
        return (
            f"the batches of {planned.program} vary ({', '.join(map(str, each))} samples in its first "
            f"steps), but {planned.global_batch_size} were planned. Write `samples_per_step: seen`, which "
            "counts what its loader gives."
        )
    if _near(seen.per_step, planned.global_batch_size):
        return ""
    return (
        f"{planned.program} trains on {seen.per_step:g} samples a step over "
        f"{count_devices(planned.devices)}, but {planned.global_batch_size} were planned. "
        f"{_fix_of_samples(planned, seen, round(median(first[0].backward_passes or [1])))}"
    )


def _near(seen: float, planned: float) -> bool:
    """Whether a median of a few steps may be the planned number; batches of varying size differ."""
    return isclose(seen, planned, rel_tol=1e-6)


def _fix_of_samples(planned: Planned, seen: Samples, backwards: int) -> str:
    devices, passes = planned.devices, planned.accumulation_steps
    per_device = "{batch_size_per_device}"
    of_all = "{global_batch_size}"
    number = seen.per_step
    assert number is not None
    if devices > 1 and _near(number, planned.global_batch_size * devices):
        return f"Its batch size is that of one device: give it {per_device} instead of {of_all}."
    if devices > 1 and _near(number * devices, planned.global_batch_size):
        return (
            f"Its batch size is that of all devices: give it {of_all} instead of {per_device}."
            if "global_batch_size" not in planned.names
            else "It divides what it is given, or only one rank trains: look at its sampler."
        )
    if passes > 1 and _near(number * passes, planned.global_batch_size):
        return (
            "It makes one backward pass a step: give it {accumulation_steps}, or use `accumulation_steps: 1`."
        )
    batches = round(number * passes / planned.global_batch_size)
    if passes < batches <= backwards and _near(number * passes, planned.global_batch_size * batches):
        return f"A step of it holds {batches} batches: use `accumulation_steps: {batches}`."
    planned_counts = f"write `samples_per_step: planned`, which counts {planned.global_batch_size} a step"
    own = number / (devices * passes)
    fixed = f"use `batch_size_per_device: {own:g}`" if own == round(own) else "correct the batch size here"
    if seen.source == "forward":
        return (
            "That is the first dimension of what enters the model. If it is no number of samples (episodes, "
            f"whole graphs, time first), {planned_counts}; else {fixed}, or correct its arguments."
        )
    return (
        f"If its batch size is fixed, {fixed}; else correct its arguments. If the number seen is wrong "
        f"(several loaders, packed or sequence-first batches), {planned_counts}."
    )
