"""Flags of steps, and what they say of steps that are unlike the others. Pure functions, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

EVALUATION, SAVE, NEW_ITERATION, NO_GRAD, NEW_SHAPE, WARM_UP, EVAL_MODE, COPY = (2**bit for bit in range(8))
"""Bits of a step's ``flags``, which name its work in addition to training.

EVALUATION is a batch of a DataLoader that does not train, NO_GRAD a forward pass without gradients, or
``eval()``: of a validation without a DataLoader, of rollouts or generated samples. NEW_ITERATION is the begin
of a data-loader iteration, NEW_SHAPE work done once for a shape: code that is compiled, kernels that cuDNN
tries. WARM_UP is set when the starts of a run are joined. EVAL_MODE is ``eval()`` of the
trained model, which says what forward passes without gradients may be for; it excludes no step by itself.
COPY is such a pass, or ``eval()``, of a copy of the model: a teacher's in nearly every step, or samples drawn
from a moving average.
"""

UNUSUAL_SHARE = 0.2
"""Share of steps up to which those with another number of samples are excluded, or those with a new shape.

If there are more, batches vary, or shapes change all the time, and what that costs belongs to the training.
"""


def without_usual_shapes(flags: Sequence[int]) -> list[int]:
    """Return the flags without NEW_SHAPE if so many steps have it that it belongs to the training.

    Args:
        flags: Flags of each step.
    """
    late = [bits for bits in flags if not bits & WARM_UP]
    if sum(bool(bits & NEW_SHAPE) for bits in late) > UNUSUAL_SHARE * len(late):
        return [bits & ~NEW_SHAPE for bits in flags]
    return list(flags)


def unusual_steps(steps: Sequence[int], samples: Sequence[Sequence[int | None]]) -> set[int]:
    """Return the steps in which a rank has another number of samples than usual.

    Args:
        steps: Indices of steps.
        samples: Samples of each step, for each rank; empty if no DataLoader shows them.
    """
    usual = [median(each or 0 for each in rank) if rank else None for rank in samples]
    return {
        index
        for index in steps
        if any(rank and rank[index] != number for rank, number in zip(samples, usual, strict=True))
    }


def consecutive(indices: Sequence[int], longest: int) -> Iterator[list[int]]:
    """Yield windows of consecutive steps.

    Args:
        indices: Indices of the steps, in their order.
        longest: Most steps of a window.
    """
    window: list[int] = []
    for index in indices:
        if window and (index != window[-1] + 1 or len(window) == longest):
            yield window
            window = []
        window.append(index)
    if window:
        yield window
