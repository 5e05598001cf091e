"""The rounds of a study in words: the answer so far, and the next runs."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.config.shape import count_devices
from scalewise.plan.formatting import format_3sig, listed
from scalewise.plan.rounds import Round
from scalewise.plan.run_definition import NO_OPTIONS

LOOKED_AGAIN = (
    "Repeats were added where the decision was not clear. A decision that is looked at again and again is "
    "wrong somewhat more often than one that is looked at once; docs/statistics.md has the rates."
)
"""A report's sentence on the confidence of an answer that repeats were added for."""


def round_line(judged: Round) -> str:
    """Return the answer so far and the next runs, one line for the terminal."""
    answers = listed(
        [
            f"{count_devices(devices)}{'' if series == NO_OPTIONS else f' with {series}'}"
            for series, devices in judged.answers.items()
            if devices is not None
        ]
    )
    so_far = " so far" if judged.further else ""
    found = f"answer{so_far}: {answers}" if answers else "no answer yet"
    return f"{judged.experiment}, round {judged.number}: {found}; {next_text(judged)}"


def next_text(judged: Round) -> str:
    """Return the next runs of a study, or why there are none, a clause."""
    if judged.further:
        runs = [f"{count_devices(more, 'run')} of {point}" for point, more in judged.further.items()]
        return f"next: {listed(runs)}"
    if judged.over_budget:
        return f"the budget ends the study, which needs more runs of {listed(judged.over_budget)}"
    return "nothing more is measured"


def round_sentences(rounds: Sequence[Round], first: dict[str, int]) -> list[str]:
    """Return the sentences of a report on the runs that rounds have requested.

    Args:
        rounds: The rounds so far; none gives no sentence.
        first: Repeats before any round, by the name of each point.
    """
    if not rounds:
        return []
    last, sentences = rounds[-1], []
    if last.chooses:
        there = {point: runs for point, runs in last.repeats.items() if runs}
        runs = [f"{point} ({count_devices(n, 'run')})" for point, n in there.items()]
        cost = f"{format_3sig(last.spent_device_hours or 0.0)} device-hours"
        sentences.append(f"{len(there)} of {len(last.repeats)} points were measured: {listed(runs)}; {cost}.")
    else:
        added = {point: n - first.get(point, n) for point, n in last.requested.items()}
        more = [f"{point} ({count_devices(n, 'more run')})" for point, n in added.items() if n > 0]
        sentences += [f"Repeats were added to {listed(more)}.", LOOKED_AGAIN] if more else []
    return [*sentences, *open_sentences(last)]


def open_sentences(judged: Round) -> list[str]:
    """Return what a round leaves undecided: runs that follow, or that the budget does not pay."""
    if judged.further:
        return [f"The study has not ended; {next_text(judged)}."]
    if judged.over_budget and judged.budget_device_hours is not None:
        return [
            f"The budget of {format_3sig(judged.budget_device_hours)} device-hours ends the study: more runs "
            f"of {listed(judged.over_budget)} are needed, and one of them may take more than the rest."
        ]
    return []
