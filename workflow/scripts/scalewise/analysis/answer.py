"""The answer of an experiment, in fields: the page, the terminal and answer.json show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Certainty = Literal["clear", "likely", "doubtful", "open"]


@dataclass(frozen=True)
class Candidate:
    """A row of the table of partitions or splits.

    Args:
        label: Name of the candidate: ``4 GPUs on a100``.
        time: Time of the work with its interval, as all amounts; empty if unknown.
        cost: Cost of the same work.
        energy: Energy of the same work.
        wait: Wait in the queue.
        verdict: Clause on whether it is chosen, or why not.
    """

    label: str
    time: str = ""
    cost: str = ""
    energy: str = ""
    wait: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer of an experiment; texts are empty if unknown.

    Args:
        verdict: Sentence on the devices and options to use.
        certainty: Certainty of the verdict.
        reason: Sentence on the doubt; empty for a clear answer.
        figures: Label, value with its interval, and explanation of each; four or fewer.
        rule: Sentence on the candidate that is chosen.
        next_larger: Sentence on the next larger device count.
        limit: Sentence on the largest loss of a step, with advice.
        options: The value of each swept option with its reason, a line each.
        others: A line for each group of series that train something else.
        required: Other criteria, each with the choice that meets it.
        cautions: Weaknesses, worst first: a sentence and the action that removes it, or no action.
        to_do: The next step of the user.
        sentence: A sentence to copy into a paper or a mail.
        candidates: Partitions and splits that were compared.
    """

    verdict: str
    certainty: Certainty = "open"
    reason: str = ""
    figures: Sequence[tuple[str, str, str]] = ()
    rule: str = ""
    next_larger: str = ""
    limit: str = ""
    options: Sequence[str] = ()
    others: Sequence[str] = ()
    required: Sequence[tuple[str, str]] = ()
    cautions: Sequence[tuple[str, str]] = ()
    to_do: str = ""
    sentence: str = ""
    candidates: Sequence[Candidate] = ()
