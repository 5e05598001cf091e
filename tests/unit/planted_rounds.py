"""Rounds of a study that chooses its device counts, with findings that a test plants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scalewise.plan.config.experiment import Repeats
from scalewise.plan.runs.rounds import (
    JudgedPoint,
    Round,
    SeriesChoice,
    UnmeasuredPoint,
    Verdict,
    round_file,
)
from scalewise.records import write_json

COUNTS = (1, 2, 4, 8, 12, 16)
RULE = Repeats(min=3, max=3)

Asked = Mapping[int, tuple[int, int, Verdict]]
"""Devices -> repeats asked for before and after a round, and the reason."""


def unmeasured(devices: int, chance: float, efficiency: float = 0.8) -> UnmeasuredPoint:
    """A count that was not measured; its band reaches from 10 % below to 10 % above."""
    speedup = devices * efficiency
    return UnmeasuredPoint(
        devices=devices,
        chance=chance,
        speedup=speedup,
        speedup_low=0.9 * speedup,
        speedup_high=1.1 * speedup,
        device_hours=0.01 * devices,
    )


def judged_point(
    name: str, before: int, after: int, verdict: Verdict, half_width: float | None = None
) -> JudgedPoint:
    """A point that has so many repeats and gets so many."""
    return JudgedPoint(
        point=name,
        asked=before,
        completed=before,
        half_width_fraction=half_width,
        verdict=verdict,
        next_asked=after,
    )


def planted_round(
    number: int,
    asked: Asked,
    devices: int | None,
    others: Mapping[int, float],
    *,
    other_answer: float | None = None,
    budget: float | None = None,
    series: Sequence[str] = ("",),
) -> Round:
    """A round of one or more series that are all alike.

    Args:
        asked: The counts that have runs or get some.
        devices: The answer so far.
        others: Devices -> chance of the counts that were not measured.
        other_answer: Their chance together; by default the sum.
    """
    names = {
        (label, count): ".".join(filter(None, (f"d{count}", label))) for label in series for count in COUNTS
    }
    verdict: Verdict = "not needed"
    return Round(
        experiment="gpt",
        number=number,
        rule=RULE,
        points=[judged_point(name, *asked.get(count, (0, 0, verdict))) for (_, count), name in names.items()],
        choices=[
            SeriesChoice(
                series=label or "all runs",
                devices=devices,
                other_answer=sum(others.values()) if other_answer is None else other_answer,
                unmeasured=[unmeasured(count, chance) for count, chance in others.items()],
            )
            for label in series
        ],
        spent_device_hours=0.1,
        budget_device_hours=budget,
    )


def leave(folder: Path, *rounds: Round) -> None:
    """The files that rounds leave."""
    for each in rounds:
        path = round_file(folder, each.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, each)


FIRST = planted_round(
    1,
    {1: (2, 2, "not needed"), 8: (0, 1, "may be the answer")},
    None,
    {2: 0.01, 4: 0.2, 8: 0.3, 12: 0.25, 16: 0.1},
)
SECOND = planted_round(
    2,
    {1: (2, 2, "not needed"), 8: (1, 1, "not needed"), 12: (0, 1, "may be the answer")},
    8,
    {2: 0.0, 4: 0.0, 12: 0.12, 16: 0.02},
)
THIRD = planted_round(
    3,
    {
        1: (2, 3, "answer rests on it"),
        8: (1, 3, "answer rests on it"),
        12: (1, 1, "not needed"),
    },
    8,
    {2: 0.0, 4: 0.0004, 16: 0.03},
)
LAST = planted_round(
    4,
    {1: (3, 3, "most repeats"), 8: (3, 3, "most repeats"), 12: (1, 1, "not needed")},
    8,
    {2: 0.0, 4: 0.0004, 16: 0.03},
)
