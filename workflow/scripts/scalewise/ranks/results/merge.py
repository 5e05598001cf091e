"""The figures of a run from the records of its starts and ranks. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from scalewise.measure.step_flags import (
    EVALUATION,
    NEW_ITERATION,
    NEW_SHAPE,
    NO_GRAD,
    SAVE,
    UNUSUAL_SHARE,
    WARM_UP,
    consecutive,
    unusual_steps,
    without_usual_shapes,
)
from scalewise.ranks.results.figures import WINDOW_STEPS, throughput
from scalewise.ranks.results.probe_record import FORWARD_STEPS, ProbeRecord
from scalewise.ranks.results.samples import Planned, Samples, samples_seen
from scalewise.records import MetricReading, Window

REASONS = {
    EVALUATION: "evaluation",
    SAVE: "saving",
    NEW_ITERATION: "the begin of a data-loader iteration",
    NO_GRAD: "forward passes without gradients",
    NEW_SHAPE: "a shape seen for the first time",
}

NEARLY_ALL = 0.9
"""Share of steps with forward passes without gradients from which on these belong to every step."""

FEW_STEPS = 25
"""Most steps from one time of such passes to the next at which they belong to the training."""

FEWEST_TIMES = 4
"""Times of such passes that tell whether they come steadily."""

SHORTEST_SECONDS = 1e-9
"""Least time that a record's window has."""

WORTH_SAYING = 0.02
"""Difference between two throughputs, as a share, from which on a user is to know both."""

LOST_LOSSES = 3
"""Last losses, all of them not finite, by which a training has diverged although its weights are finite."""

NoGrad = Literal["training", "evaluation"]


@dataclass(frozen=True)
class MeasuredSteps:
    """The steps of a run that count, and the windows that they make.

    Args:
        windows: Windows of all steps whose time is known, in their order.
        kept: Indices of the measured steps.
        excluded: Number of steps after the warm-up that are not measured, by reason.
        samples: Samples of a step and their source.
        no_grad: Kind of the forward passes without gradients; None if it is unknown, or there are none.
        throughput_with_no_grad: Samples a second with the time of such passes, where it is not known whether
            they train, and it matters.
        notes: Sentences for the user.
        cautions: Sentences that belong to the answer.
    """

    windows: list[Window]
    kept: list[int]
    excluded: dict[str, int]
    samples: Samples
    no_grad: NoGrad | None
    throughput_with_no_grad: float | None
    notes: list[str]
    cautions: list[str]


def join_starts(starts: Sequence[Sequence[ProbeRecord]], warmup_steps: Sequence[int]) -> list[ProbeRecord]:
    """Join the records of a run's starts into one for each rank, as if one process had trained.

    A start that was interrupted has steps beyond the checkpoint from which the next one began: these were
    made again. The first steps of each start warm up.

    Args:
        starts: Records of each start that had any, by rank, in the order of the starts.
        warmup_steps: First steps of each start that are not measured.
    """
    joined: list[ProbeRecord] = []
    for start, following, warmup in zip(starts, [*starts[1:], None], warmup_steps, strict=True):
        until = None if following is None else following[0].from_step - start[0].from_step
        parts = [_first_steps(rank, until, warmup) for rank in start]
        joined = [_followed_by(*pair) for pair in zip(joined, parts, strict=True)] if joined else parts
    return joined


COLUMNS = (
    *("marks", "seconds", "flags", "off_seconds", "samples", "wait_seconds", "backward_passes"),
    "communication_seconds",
)
"""Fields of a record that have an entry for each step."""


def _first_steps(rank: ProbeRecord, steps: int | None, warmup_steps: int) -> ProbeRecord:
    """Cut a record after so many steps, and flag those that warm up."""
    columns = {name: getattr(rank, name)[:steps] for name in COLUMNS}
    # the first step holds what is done once
    warm = range(min(max(warmup_steps, 1), len(columns["flags"])))
    columns["flags"] = [
        bits | (WARM_UP if index in warm else 0) for index, bits in enumerate(columns["flags"])
    ]
    return rank.model_copy(update=columns)


def _followed_by(earlier: ProbeRecord, later: ProbeRecord) -> ProbeRecord:
    columns = {name: [*getattr(earlier, name), *getattr(later, name)] for name in COLUMNS}
    peaks, before = later.peak_memory, earlier.peak_memory
    evaluated = [each for each in (peaks.evaluation_bytes, before.evaluation_bytes) if each is not None]
    return later.model_copy(
        update=columns
        | {
            "from_step": earlier.from_step,
            "peak_memory": peaks.model_copy(
                update={
                    "training_bytes": max(peaks.training_bytes, before.training_bytes),
                    "whole_bytes": max(peaks.whole_bytes, before.whole_bytes),
                    "evaluation_bytes": max(evaluated, default=None),
                }
            ),
            "skipped_by_scaler": earlier.skipped_by_scaler + later.skipped_by_scaler,
        }
    )


def without_measurements(rank: ProbeRecord) -> ProbeRecord:
    """Copy a record so that none of its steps is measured."""
    flags = [bits | WARM_UP for bits in rank.flags]
    untimed = [None for _ in rank.communication_seconds]
    return rank.model_copy(update={"flags": flags, "communication_seconds": untimed})


def measured_steps(
    ranks: Sequence[ProbeRecord], planned: Planned, no_grad: NoGrad | None = None
) -> MeasuredSteps:
    """Choose the steps that show the training's speed, and time them by their slowest rank.

    A step is excluded on all ranks if any of them evaluated, saved, or began a data-loader iteration in it:
    the others waited inside their own. So is one with an unusual number of samples, such as the last batch
    of an epoch, and one that paid for a shape seen for the first time. If nothing is left, steps with an
    evaluation count, less its time by the host's clock.

    Forward passes without gradients are a part of the training if they come in nearly every step, or steadily
    every few steps, as rollouts and generated samples do; ``NEW_ITERATION`` and ``SAVE`` distinguish an
    evaluation after each epoch from them.

    Args:
        ranks: One record for each rank, as ``join_starts`` returns them.
        planned: The plan of the run.
        no_grad: Kind of the forward passes without gradients by the configuration; None if it does not say.
    """
    steps = min(rank.step_count for rank in ranks)
    flags = without_usual_shapes([_any_bit(rank.flags[index] for rank in ranks) for index in range(steps)])
    late = [index for index in range(steps) if not flags[index] & WARM_UP]
    without_gradients = [index for index in late if flags[index] & NO_GRAD and not flags[index] & EVALUATION]
    no_grad = no_grad or _no_grad([index for index in late if not flags[index] & EVALUATION], flags)
    notes: list[str] = []
    if no_grad == "training":
        flags = [bits if bits & EVALUATION else bits & ~NO_GRAD for bits in flags]
        notes += _note_of_training(ranks, without_gradients)
    clean = [index for index in late if not flags[index]]
    per_step, unusual = _samples_of(ranks, clean, planned)
    kept = [index for index in clean if index not in unusual]
    times = [index for index in without_gradients if index in set(kept)]
    longest = WINDOW_STEPS
    if no_grad == "training" and FEWEST_TIMES <= len(times) < NEARLY_ALL * len(kept):
        # from one such time to another, and windows of whole rounds: none counts for more than its share
        kept = [index for index in kept if times[0] <= index < times[-1]]
        round_steps = round(median(later - earlier for earlier, later in pairwise(times)))
        longest = max(WINDOW_STEPS // round_steps, 1) * round_steps
    off = False
    if not kept:
        for allowed in (NEW_ITERATION, NEW_ITERATION | EVALUATION | NO_GRAD):
            kept = [index for index in late if not flags[index] & ~allowed]
            if kept:
                off = allowed != NEW_ITERATION
                break
        if kept:
            what = "an evaluation" if off else "the begin of a data-loader iteration"
            taken = ", whose time by the host's clock is taken off" if off else ""
            notes.append(f"Every step holds {what}{taken}.")
    counted = set(kept)
    # an evaluation holds forward passes without gradients, too
    flags = [bits & ~NO_GRAD if bits & EVALUATION else bits for bits in flags]
    excluded = {
        reason: number
        for bit, reason in REASONS.items()
        if (number := sum(1 for index in late if flags[index] & bit and index not in counted))
    }
    if unusual:
        excluded["another number of samples"] = len(unusual)
    if no_grad == "training" and (cut := len(clean) - len(unusual) - len(kept)) > 0:
        excluded["a part of a round of forward passes without gradients"] = cut
    others = [
        index
        for index in range(steps)
        if index not in counted and any(rank.seconds[index] is not None for rank in ranks)
    ]
    windows = [
        *_windows(ranks, others, per_step, warmup=True, off=no_grad != "training"),
        *_windows(ranks, kept, per_step, warmup=False, off=off, longest=longest),
    ]
    windows.sort(key=lambda window: window.first_step)
    both = None
    if no_grad is None and without_gradients and kept:
        both = _with_no_grad(ranks, sorted({*kept, *without_gradients}), per_step, throughput(windows))
    return MeasuredSteps(
        windows=windows,
        kept=kept,
        excluded=excluded,
        samples=per_step.samples,
        no_grad=no_grad,
        throughput_with_no_grad=both,
        notes=notes,
        cautions=_cautions(ranks, kept, per_step, planned),
    )


def _no_grad(steps: Sequence[int], flags: Sequence[int]) -> NoGrad | None:
    """Decide the kind of forward passes without gradients by when they come; None if that does not tell.

    Args:
        steps: Indices of the steps without an evaluation by a DataLoader.
        flags: Bits of all steps.
    """
    times = [index for index in steps if flags[index] & NO_GRAD]
    if not times:
        return None
    if len(times) >= NEARLY_ALL * len(steps):
        return "training"
    if all(flags[index] & SAVE for index in times):
        return "evaluation"
    between = [later - earlier for earlier, later in pairwise(times)]
    is_steady = len(times) >= FEWEST_TIMES and max(between) - min(between) <= 1 and max(between) <= FEW_STEPS
    by_epoch = sum(bool(flags[index] & NEW_ITERATION) for index in times) * 2 > len(times)
    return "training" if is_steady and not by_epoch else None


def _note_of_training(ranks: Sequence[ProbeRecord], steps: Sequence[int]) -> list[str]:
    seconds = sum(max(step_seconds(rank, index) for rank in ranks) for index in steps)
    off = sum(max(rank.off_seconds[index] for rank in ranks) for index in steps)
    if not seconds or off < WORTH_SAYING * seconds:
        return []
    return [
        f"Forward passes without gradients belong to the training: {off / seconds:.0%} of the time of "
        f"{len(steps)} steps."
    ]


def _with_no_grad(
    ranks: Sequence[ProbeRecord], steps: Sequence[int], per_step: _SamplesOfSteps, without: float | None
) -> float | None:
    """Throughput with the time of forward passes without gradients; None where it differs by nothing."""
    found = throughput(list(_windows(ranks, steps, per_step, warmup=False, off=False)))
    if not found or not without or abs(without / found - 1) < WORTH_SAYING:
        return None
    return found


@dataclass(frozen=True)
class _SamplesOfSteps:
    """Samples of single steps.

    Args:
        samples: Samples of a step, and their source.
        each: Samples of each step over all ranks; None if only the usual number is known.
        vary: Whether they vary by more than the last batches of epochs.
    """

    samples: Samples
    each: list[float] | None = None
    vary: bool = False

    def of(self, steps: Sequence[int]) -> float:
        if self.each is not None:
            return sum(self.each[index] for index in steps)
        return (self.samples.per_step or 0.0) * len(steps)


def _samples_of(
    ranks: Sequence[ProbeRecord], clean: Sequence[int], planned: Planned
) -> tuple[_SamplesOfSteps, set[int]]:
    """Samples of the steps, and the steps with an unusual number of them, where these are few."""
    if planned.samples_given:
        return _SamplesOfSteps(Samples(float(planned.global_batch_size), "configuration")), set()
    seen = samples_seen(ranks)
    if seen.source == "loader":
        steps = min(rank.step_count for rank in ranks)
        fed = [rank.samples for rank in ranks if rank.samples]
        each = [float(sum(samples[index] or 0 for samples in fed)) for index in range(steps)]
        unusual = unusual_steps(clean, [rank.samples for rank in ranks])
        if not unusual or (len(unusual) <= UNUSUAL_SHARE * len(clean) and not planned.samples_vary):
            return _SamplesOfSteps(seen, each), unusual
    elif (
        seen.per_step is not None
        and len({rank.backward_passes[index] for rank in ranks for index in clean}) > 1
    ):
        # forward passes are looked at in the first steps only; later ones may hold more of them or fewer
        first = median(ranks[0].backward_passes[:FORWARD_STEPS]) or 1
        each = [seen.per_step * number / first for number in ranks[0].backward_passes]
    else:
        return _SamplesOfSteps(Samples(seen.per_step or float(planned.global_batch_size), seen.source)), set()
    mean = sum(each[index] for index in clean) / max(len(clean), 1)
    return _SamplesOfSteps(Samples(mean, seen.source), each, vary=True), set()


def _cautions(
    ranks: Sequence[ProbeRecord], kept: Sequence[int], per_step: _SamplesOfSteps, planned: Planned
) -> list[str]:
    if not kept or planned.samples_vary:
        return []
    plan, each = planned.global_batch_size, per_step.each if per_step.vary else None
    if each is not None and abs(per_step.of(kept) / len(kept) / plan - 1) > WORTH_SAYING:
        return [
            f"The samples of a step change: {each[0]:g} in the first step, {each[kept[-1]]:g} in the last. "
            f"Those that were seen count, not the {plan} of the plan. Write `samples_per_step: seen`."
        ]
    seen = samples_seen(ranks)
    by_loader = seen.per_step if seen.source == "loader" else None
    if planned.samples_given and by_loader is not None and abs(by_loader / plan - 1) > WORTH_SAYING:
        return [
            f"{by_loader:g} samples a step were seen, but the {plan} of the configuration count. If the "
            "loader is right, write `samples_per_step: seen`."
        ]
    return []


def _any_bit(flags: Iterator[int]) -> int:
    together = 0
    for flag in flags:
        together |= flag
    return together


def _windows(
    ranks: Sequence[ProbeRecord],
    kept: Sequence[int],
    per_step: _SamplesOfSteps,
    *,
    warmup: bool,
    off: bool,
    longest: int = WINDOW_STEPS,
) -> Iterator[Window]:
    """Yield windows of consecutive steps; a step is done when its slowest rank has done it."""
    for run in consecutive(kept, longest):
        seconds = max(sum(step_seconds(rank, index, off) for index in run) for rank in ranks)
        yield Window(
            first_step=ranks[0].from_step + run[0],
            steps=len(run),
            samples=round(per_step.of(run)),
            # less an evaluation by the host's clock, nothing may remain
            seconds=max(seconds, SHORTEST_SECONDS),
            warmup=warmup,
        )


def step_seconds(rank: ProbeRecord, index: int, off: bool = False) -> float:
    """Return the device seconds of a step, less those of an evaluation in it if ``off`` is true."""
    seconds = rank.seconds[index] or 0.0
    return max(seconds - rank.off_seconds[index], 0.0) if off else seconds


def first_step_seconds(rank: ProbeRecord) -> float | None:
    """Host seconds from the first batch or forward pass to the end of the first step."""
    if rank.first_step_began is None or rank.first_step_ended is None:
        return None
    return rank.first_step_ended - rank.first_step_began


def metric_reading(
    rank: ProbeRecord, at: float, value: float, no_grad: NoGrad | None = None
) -> MetricReading:
    """A number that was printed at some time, by the training's own clock.

    Args:
        rank: The rank that printed it.
        at: Monotonic seconds of the rank's host.
        value: The number.
        no_grad: Kind of the forward passes without gradients; those of the training take its time.
    """
    done = bisect_right(rank.marks, at)
    seconds = sum(
        step_seconds(rank, index, off=no_grad != "training" or bool(rank.flags[index] & EVALUATION))
        for index in range(done)
    )
    if done and rank.seconds[0] is None:
        seconds += first_step_seconds(rank) or 0.0
    return MetricReading(seconds=seconds, step=done, value=value)


def divergence(ranks: Sequence[ProbeRecord]) -> str:
    """Say which weights or losses are no longer finite at the end of a run; empty if none are known to be.

    A single loss may be lost where a gradient scaler or the program itself skips the update. So if the
    weights are known to be finite, only several losses in a row count.

    Args:
        ranks: One record for each rank; the losses are those of rank 0.
    """
    step = min(rank.step_count for rank in ranks)
    if lost := [rank.rank for rank in ranks if rank.weights_finite is False]:
        return f"the weights of rank {lost[0]} are no longer finite after {step} steps"
    losses = [loss for _, loss in sorted(ranks[0].losses.items(), key=lambda each: int(each[0]))]
    last = losses[-LOST_LOSSES if ranks[0].weights_finite else -1 :]
    if last and all(loss is None for loss in last):
        return f"the loss is no longer finite after {step} steps"
    return ""


def evaluation_seconds(rank: ProbeRecord, no_grad: NoGrad | None) -> float:
    """Host seconds of a rank's evaluations."""
    evaluates = EVALUATION if no_grad == "training" else EVALUATION | NO_GRAD
    return sum(
        seconds for seconds, bits in zip(rank.off_seconds, rank.flags, strict=True) if bits & evaluates
    )
