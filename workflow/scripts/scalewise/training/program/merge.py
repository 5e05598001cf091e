"""The figures of a program's run from the records of its ranks. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from scalewise.records import MetricReading, Window
from scalewise.training.measure.throughput import WINDOW_STEPS
from scalewise.training.program.judgement import Samples, samples_seen
from scalewise.training.program.probe_records import EVALUATION, NEW_PASS, SAVE, ProbeRecord

UNUSUAL_SHARE = 0.2
"""Share of steps with another number of samples up to which these are left out; beyond, batches vary."""

REASONS = {EVALUATION: "evaluation", SAVE: "saving", NEW_PASS: "the begin of a pass over the data"}


@dataclass(frozen=True)
class MeasuredSteps:
    """The steps of a run that count, and the windows that they make.

    Args:
        windows: Windows of the warm-up, then of the measured steps.
        kept: Indices of the measured steps.
        left_out: Steps after the warm-up that no window holds, by reason.
        samples: Samples of a step and their source.
        notes: Sentences for the user.
    """

    windows: list[Window]
    kept: list[int]
    left_out: dict[str, int]
    samples: Samples
    notes: list[str]


def measured_steps(
    ranks: Sequence[ProbeRecord], warmup_steps: int, global_batch_size: int, samples_given: bool
) -> MeasuredSteps:
    """Choose the steps that tell the training's speed, and time them by their slowest rank.

    A step is left out on all ranks where any of them evaluated, saved, or began a pass over its data in it:
    the others waited inside their own. So is one with an unusual number of samples, such as the last batch
    of a pass. Where nothing is left, steps with an evaluation count, less its time by the host's clock.

    Args:
        ranks: One record for each rank.
        warmup_steps: First steps that are not measured.
        global_batch_size: Samples of a step as planned.
        samples_given: Whether the plan is to be believed, because samples cannot be seen.
    """
    steps = min(rank.step_count for rank in ranks)
    flags = [_any_bit(rank.left_out[index] for rank in ranks) for index in range(steps)]
    late = range(max(warmup_steps, 1), steps)
    seen = samples_seen(ranks)
    samples = Samples(float(global_batch_size), "configuration") if samples_given else seen
    clean = [index for index in late if not flags[index]]
    unusual: set[int] = set()
    notes: list[str] = []
    if samples.source == "loader":
        unusual = {index for index in clean if not _is_usual(ranks, index)}
        if len(unusual) > UNUSUAL_SHARE * len(clean):
            # batches of varying size: what all kept steps hold together counts
            unusual = set()
            total = sum(rank.samples[index] or 0 for rank in ranks for index in clean)
            samples = Samples(total / len(clean), "loader")
            notes.append("Batches vary in size: a step's samples are the mean over the measured steps.")
    kept = [index for index in clean if index not in unusual]
    off = False
    if not kept:
        for allowed in (NEW_PASS, NEW_PASS | EVALUATION):
            kept = [index for index in late if not flags[index] & ~allowed]
            if kept:
                off = allowed != NEW_PASS
                break
        if kept:
            what = "an evaluation" if off else "the begin of a pass over the data"
            taken = ", whose time by the host's clock is taken off" if off else ""
            notes.append(f"Every step holds {what}{taken}.")
    left_out = {
        reason: number
        for bit, reason in REASONS.items()
        if (number := sum(1 for index in late if flags[index] & bit and index not in set(kept)))
    }
    if unusual:
        left_out["another number of samples"] = len(unusual)
    per_step = samples.per_step or float(global_batch_size)
    warm = range(1, min(max(warmup_steps, 1), steps))
    windows = [
        *_windows(ranks, warm, per_step, warmup=True, off=False),
        *_windows(ranks, kept, per_step, warmup=False, off=off),
    ]
    return MeasuredSteps(windows, kept, left_out, samples, notes)


def _any_bit(flags: Iterator[int]) -> int:
    together = 0
    for flag in flags:
        together |= flag
    return together


def _is_usual(ranks: Sequence[ProbeRecord], index: int) -> bool:
    return all(not rank.samples or rank.samples[index] == _median(rank) for rank in ranks)


def _median(rank: ProbeRecord) -> float:
    return median(each or 0 for each in rank.samples)


def _windows(
    ranks: Sequence[ProbeRecord], kept: Sequence[int], per_step: float, *, warmup: bool, off: bool
) -> Iterator[Window]:
    """Consecutive steps together, at most as many as the built-in loop's windows have."""
    for run in _consecutive(kept):
        seconds = max(sum(step_seconds(rank, index, off) for index in run) for rank in ranks)
        yield Window(
            first_step=run[0],
            steps=len(run),
            samples=round(per_step * len(run)),
            seconds=seconds,
            warmup=warmup,
        )


def _consecutive(indices: Sequence[int]) -> Iterator[list[int]]:
    run: list[int] = []
    for index in indices:
        if run and (index != run[-1] + 1 or len(run) == WINDOW_STEPS):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def step_seconds(rank: ProbeRecord, index: int, off: bool = False) -> float:
    """Device seconds of a step, less those of an evaluation in it where ``off`` asks for that."""
    seconds = rank.seconds[index] or 0.0
    return max(seconds - rank.off_seconds[index], 0.0) if off else seconds


def first_step_seconds(rank: ProbeRecord) -> float | None:
    """Host seconds from the first batch or forward pass to the end of the first step."""
    if rank.first_step_began is None or rank.first_step_ended is None:
        return None
    return rank.first_step_ended - rank.first_step_began


def metric_reading(rank: ProbeRecord, wall_time: float, value: float) -> MetricReading:
    """A number that was printed at some time of day, by the training's own clock.

    Args:
        rank: The rank that printed it.
        wall_time: Seconds since the epoch, on the same host.
        value: The number.
    """
    now = wall_time - rank.clock.wall_minus_monotonic
    done = bisect_right(rank.marks, now)
    seconds = sum(step_seconds(rank, index, off=True) for index in range(1, done))
    if done:
        seconds += first_step_seconds(rank) or 0.0
    return MetricReading(seconds=seconds, step=done, value=value)
