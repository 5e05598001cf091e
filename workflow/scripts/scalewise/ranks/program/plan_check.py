"""The check of a program's steps: devices, exchange and samples must be those of the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isclose
from statistics import median

from scalewise.config.shape import count_devices
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.samples import Planned, Samples, samples_seen, trained_samples

CHECK_AFTER_STEPS = 3
"""First steps that are compared with the plan."""

EQUAL_WEIGHTS = 1e-9
"""Relative difference of two sums of equal weights that the order of adding may cause."""

EVEN_OUT = "Give every rank as many batches, as DistributedSampler and drop_last do"


def check_plan(planned: Planned, ranks: Sequence[ProbeRecord], all_ended: bool = False) -> str:
    """Return what differs from the plan, with both numbers and the fix; empty if nothing does.

    Args:
        planned: The run.
        ranks: Records of the processes that made steps so far.
        all_ended: Whether all processes have ended, so that none will be added.
    """
    for rank in ranks:
        if rank.refused:
            return (
                f"{planned.program} uses {rank.refused}, in which ranks share samples or hold parts of a "
                "model: neither samples of a step nor speedup can be told from its steps. Measure its "
                "data-parallel part, or train it by other means."
            )
        if rank.misses_optimizer:
            return (
                f"no optimizer of the class {rank.misses_optimizer} has made a step in the first updates of "
                f"{planned.program}, which steps {' and '.join(rank.optimizers)}. Correct `optimizer`, or "
                "leave it out."
            )
        if rank.data_parallel_devices > 1:
            return (
                f"{planned.program} divides each batch among {rank.data_parallel_devices} GPUs in one "
                "process (torch.nn.DataParallel), but one process was planned for each GPU. Let it use "
                "DistributedDataParallel, or no wrapper."
            )
        if rank.cuda != (planned.accelerator == "cuda"):
            return _device_message(planned, rank)
        if rank.world_size != planned.devices:
            return _world_message(planned, rank.world_size, len(ranks))
    if len(ranks) != planned.devices:
        if not all_ended and len(ranks) < planned.devices:
            return ""
        return (
            f"{len(ranks)} processes of {planned.program} made optimizer steps, but "
            f"{count_devices(planned.devices)} were planned. Let every rank train, and nothing beside them."
        )
    return _check_exchange(planned, ranks) or _check_samples(planned, ranks)


def check_inputs(program: str, uneven: Mapping[int, int]) -> str:
    """Return that a rank waits in torch's Join while others train on; empty if none does.

    Args:
        program: The program, as the configuration names it.
        uneven: Steps of the ranks that wait, by rank.
    """
    for rank, steps in uneven.items():
        return (
            f"ranks of {program} make different numbers of steps: rank {rank} has no more batches after its "
            f"{steps}, and others train on within torch's Join. {EVEN_OUT}, or measure at most {steps} steps "
            "with those of the warm-up."
        )
    return ""


def check_ends(
    program: str, ended: ProbeRecord, others: Mapping[int, int | None], is_finished: Callable[[int], bool]
) -> str:
    """Return that a rank has ended before others were done, which then lost it; empty if it has not.

    Args:
        program: The program, as the configuration names it.
        ended: Record of the rank.
        others: Steps that other ranks have made, by rank; None for fewer, if their number is unknown.
        is_finished: Whether the process of a rank ended without an error.
    """
    for rank, steps in others.items():
        if ended.ended == "steps" and (steps is None or steps < ended.step_count):
            return (
                f"ranks of {program} make different numbers of steps: rank {ended.rank} has made its last "
                f"one, {ended.step_count}, and rank {rank} {'fewer' if steps is None else f'only {steps}'}. "
                f"{EVEN_OUT}, and let no rank skip a step."
            )
        if ended.ended == "itself" and is_finished(ended.rank):
            return (
                f"rank {ended.rank} of {program} came to its own end after {ended.step_count} steps, and "
                f"rank {rank}, after {steps}, still needed it. {EVEN_OUT}."
            )
    return ""


def _device_message(planned: Planned, rank: ProbeRecord) -> str:
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


def _world_message(planned: Planned, world_size: int, processes: int) -> str:
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


def _check_exchange(planned: Planned, ranks: Sequence[ProbeRecord]) -> str:
    """Return how it shows that ranks do not exchange gradients; empty if they do, or if it is unknown."""
    if planned.devices == 1:
        return ""
    for rank in ranks:
        if rank.sharded_over is not None and rank.sharded_over < planned.devices:
            return (
                f"the model of rank {rank.rank} of {planned.program} is divided among {rank.sharded_over} of "
                f"{planned.devices} ranks: trainings of their own would pass for perfect scaling. Give "
                f"{' and '.join(rank.parallelism)} a mesh of all {planned.devices} ranks, or of replicas and "
                f"shards that make {planned.devices} together."
            )
    fix = (
        "Wrap the model in DistributedDataParallel, and call the wrapped model: what is called by its "
        "`.module` exchanges nothing."
    )
    first = ranks[0].weights
    is_whole = not any(rank.sharded for rank in ranks)
    for rank in ranks[1:] if is_whole else []:
        if len(rank.weights) != len(first) or not all(map(_equal, first, rank.weights)):
            return (
                f"rank {rank.rank} of {planned.program} holds other weights than rank {ranks[0].rank}: they "
                f"train apart, though {planned.devices} ranks have met. {fix}"
            )
    if not planned.same_batches and _same_batches(ranks):
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


def _same_batches(ranks: Sequence[ProbeRecord]) -> bool:
    """Return whether all ranks train on the same batches; the usual reason is a missing sampler.

    The inputs of the model decide if they are known: some programs divide the batches of a loader.
    Equal batches, such as zeros, are no sign.
    """
    for sums in ([rank.forward_batches for rank in ranks], [rank.batches for rank in ranks]):
        if all(sums):
            return all(each == sums[0] for each in sums) and len(set(sums[0] or ())) > 1
    return False


def _check_samples(planned: Planned, ranks: Sequence[ProbeRecord]) -> str:
    """Return how the samples of the first steps differ from the plan, also at a run's end; empty if not."""
    if planned.samples_given:
        return ""
    first = [
        rank.model_copy(
            update={
                "samples": rank.samples[:CHECK_AFTER_STEPS],
                "backward_passes": rank.backward_passes[:CHECK_AFTER_STEPS],
            }
        )
        for rank in ranks
    ]
    samples = samples_seen(first)
    if samples.per_step is None:
        return (
            f"the samples of a step of {planned.program} cannot be seen: no DataLoader feeds it, and no "
            "forward pass of its model shows a batch. Write `samples_per_step: planned` if it trains on the "
            f"{planned.global_batch_size} samples a step that are planned."
        )
    if planned.samples_vary:
        return ""
    columns = [trained_samples(rank) for rank in first if rank.samples]
    steps = [sum(each or 0 for each in step) for step in zip(*columns, strict=False)]
    # one step may differ: loaders fetch ahead, and the last batch of an epoch is smaller
    if samples.source == "loader" and sum(each != samples.per_step for each in steps) > 1:
        return (
            f"the batches of {planned.program} vary ({', '.join(map(str, steps))} samples in its first "
            f"steps), but {planned.global_batch_size} were planned. Write `samples_per_step: seen`, which "
            "counts what its loader gives."
        )
    if _near(samples.per_step, planned.global_batch_size):
        return ""
    return (
        f"{planned.program} trains on {samples.per_step:g} samples a step over "
        f"{count_devices(planned.devices)}, but {planned.global_batch_size} were planned. "
        f"{_samples_fix(planned, samples, round(median(first[0].backward_passes or [1])))}"
    )


def _near(samples: float, planned: float) -> bool:
    """Return whether a median of a few steps may be the planned number; batches of varying size differ."""
    return isclose(samples, planned, rel_tol=1e-6)


def _samples_fix(planned: Planned, samples: Samples, backwards: int) -> str:
    """Return the likely reason for other samples, and its fix.

    Args:
        planned: The run.
        samples: Samples of a step over all ranks.
        backwards: Backward passes of a step.
    """
    devices, micro_batches = planned.devices, planned.accumulation_steps
    per_device, of_all = "{batch_size_per_device}", "{global_batch_size}"
    number = samples.per_step
    assert number is not None
    if devices > 1 and _near(number, planned.global_batch_size * devices):
        return f"Its batch size is that of one device: give it {per_device} instead of {of_all}."
    if devices > 1 and _near(number * devices, planned.global_batch_size):
        return (
            f"Its batch size is that of all devices: give it {of_all} instead of {per_device}."
            if "global_batch_size" not in planned.names
            else "It divides what it is given, or only one rank trains: look at its sampler."
        )
    if micro_batches > 1 and _near(number * micro_batches, planned.global_batch_size):
        return (
            "It makes one backward pass a step: give it {accumulation_steps}, or use `accumulation_steps: 1`."
        )
    batches = round(number * micro_batches / planned.global_batch_size)
    if micro_batches < batches <= backwards and _near(
        number * micro_batches, planned.global_batch_size * batches
    ):
        return f"A step of it holds {batches} batches: use `accumulation_steps: {batches}`."
    planned_counts = f"write `samples_per_step: planned`, which counts {planned.global_batch_size} a step"
    batch_size = number / (devices * micro_batches)
    fixed = (
        f"use `batch_size_per_device: {batch_size:g}`"
        if batch_size == round(batch_size)
        else "correct the batch size here"
    )
    if samples.source == "forward":
        return (
            "That is the first dimension of what enters the model. If it is no number of samples (episodes, "
            f"whole graphs, time first), {planned_counts}; else {fixed}, or correct its arguments."
        )
    return (
        f"If its batch size is fixed, {fixed}; else correct its arguments. If the number seen is wrong "
        f"(several loaders, packed or sequence-first batches), {planned_counts}."
    )
