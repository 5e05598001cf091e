"""The steps of a run that are measured, and their windows. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from scalewise.measure.step_flags import (
    COPY,
    EVAL_MODE,
    EVALUATION,
    NEW_ITERATION,
    NEW_SHAPE,
    NO_GRAD,
    SAVE,
    WARM_UP,
    consecutive,
    without_usual_shapes,
)
from scalewise.ranks.results.figures import WINDOW_STEPS, throughput
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.samples import Planned, Samples, StepSamples, samples_of_steps, samples_seen
from scalewise.records import Window

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

OTHER_PHASE = 1.5
"""Ratio of the times of a sample at the begin and at the end of a run from which on it had two phases."""

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

    Raises:
        ValueError: The measured steps cannot be timed.
    """
    steps = min(rank.step_count for rank in ranks)
    flags = without_usual_shapes([_any_bit(rank.flags[index] for rank in ranks) for index in range(steps)])
    late = [index for index in range(steps) if not flags[index] & WARM_UP]
    flags = _with_copies(flags, late)
    without_gradients = [index for index in late if flags[index] & NO_GRAD and not flags[index] & EVALUATION]
    no_grad = no_grad or _no_grad([index for index in late if not flags[index] & EVALUATION], flags)
    flags = [bits & ~EVAL_MODE for bits in flags]
    notes: list[str] = []
    if no_grad == "training":
        flags = [bits if bits & EVALUATION else bits & ~NO_GRAD for bits in flags]
        notes += _note_of_training(ranks, without_gradients)
    clean = [index for index in late if not flags[index]]
    per_step, unusual = samples_of_steps(ranks, clean, planned)
    kept = [index for index in clean if index not in unusual]
    times = [index for index in without_gradients if index in set(kept)]
    longest = WINDOW_STEPS
    if no_grad == "training" and FEWEST_TIMES <= len(times) < NEARLY_ALL * len(kept):
        # from one such time to another, and windows of whole rounds: none counts for more than its share
        kept = [index for index in kept if times[0] <= index < times[-1]]
        round_steps = round(median(later - earlier for earlier, later in pairwise(times)))
        longest = max(WINDOW_STEPS // round_steps, 1) * round_steps
    training_only = False
    if not kept:
        for allowed in (NEW_ITERATION, NEW_ITERATION | EVALUATION | NO_GRAD):
            kept = [index for index in late if not flags[index] & ~allowed]
            if kept:
                training_only = allowed != NEW_ITERATION
                break
        if kept:
            what = "an evaluation" if training_only else "the begin of a data-loader iteration"
            taken = ", whose time by the host's clock is taken off" if training_only else ""
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
    _check_times(ranks, kept, training_only)
    windows = [
        *_windows(ranks, others, per_step, warmup=True, training_only=no_grad != "training"),
        *_windows(ranks, kept, per_step, warmup=False, training_only=training_only, longest=longest),
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
        cautions=[*_cautions(ranks, kept, per_step, planned), *_caution_on_phases(ranks, kept, per_step)],
    )


def _with_copies(flags: Sequence[int], late: Sequence[int]) -> list[int]:
    """Return the flags with what passes of a copy of the model are: those of a teacher train with it.

    Others are as those of the model in its mode for evaluation: samples of a moving average, or a target of
    reinforcement learning.

    Args:
        flags: Bits of all steps.
        late: Indices of the steps after the warm-up.
    """
    trained = [index for index in late if not flags[index] & EVALUATION]
    of_copies = sum(bool(flags[index] & COPY) for index in trained)
    meaning = 0 if of_copies >= NEARLY_ALL * len(trained) else NO_GRAD | EVAL_MODE
    return [bits & ~COPY | meaning if bits & COPY else bits for bits in flags]


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
    if 2 * sum(bool(flags[index] & EVAL_MODE) for index in times) > len(times):
        return None  # a validation every few steps, or rollouts of a policy
    between = [later - earlier for earlier, later in pairwise(times)]
    is_steady = len(times) >= FEWEST_TIMES and max(between) - min(between) <= 1 and max(between) <= FEW_STEPS
    by_epoch = sum(bool(flags[index] & NEW_ITERATION) for index in times) * 2 > len(times)
    return "training" if is_steady and not by_epoch else None


def _note_of_training(ranks: Sequence[ProbeRecord], steps: Sequence[int]) -> list[str]:
    seconds = sum(max(rank.step_seconds(index) for rank in ranks) for index in steps)
    no_grad_seconds = sum(max(rank.seconds_without_training[index] for rank in ranks) for index in steps)
    if not seconds or no_grad_seconds < WORTH_SAYING * seconds:
        return []
    return [
        f"Forward passes without gradients belong to the training: {no_grad_seconds / seconds:.0%} of the "
        f"time of {len(steps)} steps."
    ]


def _with_no_grad(
    ranks: Sequence[ProbeRecord], steps: Sequence[int], per_step: StepSamples, without: float | None
) -> float | None:
    """Throughput with the time of forward passes without gradients; None where it differs by nothing."""
    found = throughput(list(_windows(ranks, steps, per_step, warmup=False, training_only=False)))
    if not found or not without or abs(without / found - 1) < WORTH_SAYING:
        return None
    return found


def _cautions(
    ranks: Sequence[ProbeRecord], kept: Sequence[int], per_step: StepSamples, planned: Planned
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


def _caution_on_phases(ranks: Sequence[ProbeRecord], kept: Sequence[int], per_step: StepSamples) -> list[str]:
    """Say that a run had two phases, as with sequences that grow: their mean is the rate of neither."""
    third = len(kept) // 3
    if third < FEWEST_TIMES:
        return []
    early, late = (
        median(
            max(rank.step_seconds(index) for rank in ranks) / (per_step.of([index]) or 1) for index in part
        )
        for part in (kept[:third], kept[-third:])
    )
    if not early or 1 / OTHER_PHASE < late / early < OTHER_PHASE:
        return []
    return [
        f"A sample took {late / early:.2g} times as long in the last third of the measured steps as in the "
        "first: the rate is the mean of two phases. Measure the one that lasts, by `warmup_steps`."
    ]


def _check_times(ranks: Sequence[ProbeRecord], kept: Sequence[int], training_only: bool) -> None:
    """Check that the clocks of the ranks give the measured steps a time.

    Raises:
        ValueError: One took a negative time, or all of them none.
    """
    for rank in ranks:
        for index in kept:
            if (seconds := rank.seconds[index] or 0.0) < 0:
                raise ValueError(
                    f"step {index + 1} of rank {rank.rank} cannot be timed: it would have "
                    f"taken {seconds:.3g} s by the clock of {rank.device}. Report this to Scalewise, with "
                    "record.log."
                )
    if kept and not any(rank.step_seconds(index, training_only) for rank in ranks for index in kept):
        less = ", less the evaluations that they hold" if training_only else ""
        raise ValueError(
            f"the {len(kept)} measured steps cannot be timed: they took 0 s{less}. Let the program train for "
            "longer, with steps that hold no evaluation."
        )


def _any_bit(flags: Iterator[int]) -> int:
    together = 0
    for flag in flags:
        together |= flag
    return together


def _windows(
    ranks: Sequence[ProbeRecord],
    kept: Sequence[int],
    per_step: StepSamples,
    *,
    warmup: bool,
    training_only: bool,
    longest: int = WINDOW_STEPS,
) -> Iterator[Window]:
    """Yield windows of consecutive steps; a step is done when its slowest rank has done it."""
    for run in consecutive(kept, longest):
        seconds = max(sum(rank.step_seconds(index, training_only) for index in run) for rank in ranks)
        yield Window(
            first_step=run[0],
            steps=len(run),
            samples=round(per_step.of(run)),
            # less an evaluation by the host's clock, nothing may remain
            seconds=max(seconds, SHORTEST_SECONDS),
            warmup=warmup,
        )
