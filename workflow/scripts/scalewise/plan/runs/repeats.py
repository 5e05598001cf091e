"""Repeats of a point that are asked for: a first few, and more where the rounds say so.

An experiment with ``repeats: {min: …, max: …}`` first makes ``min`` runs of every point. A round then judges
the decision, or with ``until_interval`` each point's interval, and may ask for more; the next round follows
when those have finished, until one asks for none. The rounds stand in ``results/{experiment}/repeats``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from scalewise.plan.config.experiment import Repeats
from scalewise.plan.runs.runs import Run
from scalewise.records import RecordError, read_record

FOLDER = "repeats"
"""Folder of the rounds, in the results of an experiment."""

Verdict = Literal[
    "too wide",
    "undecided",
    "other session",
    "narrow enough",
    "decided",
    "most repeats",
    "too few completed",
]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JudgedPoint(_Record):
    """One device count of one series after a round.

    Args:
        point: ``d2.bucket-view-on``.
        asked: Repeats asked for before this round.
        completed: Those of them that have a throughput.
        half_width_fraction: Half the width of the throughput's interval over the throughput; None with
            fewer than two completed.
        confidence: Confidence that the interval has, 0 to 1.
        verdict: ``too wide``, ``undecided`` and ``other session`` alone ask for more.
        next_asked: Repeats asked for from now on.
    """

    point: str
    asked: int
    completed: int
    half_width_fraction: float | None
    confidence: float
    verdict: Verdict
    next_asked: int


class Round(_Record):
    """``round{number}.json``: every point of an experiment, judged.

    Args:
        number: Rounds are counted from 1.
        rule: The rule that the points were judged by.
        points: Every point, in the order of the configuration.
    """

    record_version: Literal[1] = 1
    experiment: str
    number: int
    rule: Repeats
    points: list[JudgedPoint]

    @property
    def asks_for_more(self) -> bool:
        """Whether another round follows."""
        return any(point.next_asked > point.asked for point in self.points)


def round_file(folder: Path, number: int) -> Path:
    """Path of a round's file below the experiment's folder; rounds are counted from 1."""
    return folder / FOLDER / f"round{number}.json"


def read_round(path: Path) -> Round:
    """A round that has been judged.

    Raises:
        RecordError: the file is missing or damaged.
    """
    return read_record(path, Round)


def iter_rounds(file_of: Callable[[int], str | Path | None]) -> Iterator[Round]:
    """The rounds one after the other, the last of which asks for nothing more.

    Args:
        file_of: The file of a round; None ends the walk.

    Raises:
        RecordError: a file is damaged.
    """
    for number in count(1):
        path = file_of(number)
        if path is None:
            return
        judged = read_round(Path(path))
        yield judged
        if not judged.asks_for_more:
            return


def judged_rounds(get: Callable[..., Any], experiment: str, before: int | None = None) -> Iterator[Round]:
    """The rounds of an experiment as far as Snakemake holds them for made.

    Where a file is there that it does not hold for made, ``get`` raises, and Snakemake comes back when it
    is. Where there is none the walk ends, for ``required_rounds`` to ask for it: left to ``get``, Snakemake
    would not look whether the tables that come after are out of date, and would leave them as they are.

    Args:
        get: The ``get`` of the checkpoint ``judge_repeats``.
        experiment: The experiment's name.
        before: A round that is not looked at any more.

    Raises:
        RecordError: a file is damaged.
    """

    def file_of(number: int) -> str | None:
        if number == before or not round_file(Path("results") / experiment, number).exists():
            return None
        made: str = get(experiment=experiment, round=number).output[0]
        return made

    return iter_rounds(file_of)


def required_rounds(repeats: int | Repeats, rounds: Iterable[Round]) -> list[int]:
    """The numbers of the rounds that have been made, and of the one to make next.

    Args:
        repeats: The experiment's key; a plain number needs no round.
        rounds: Those that have been judged.
    """
    if isinstance(repeats, int):
        return []
    judged = list(rounds)
    more = not judged or judged[-1].asks_for_more
    return list(range(1, len(judged) + 1 + more))


def known_rounds(repeats: int | Repeats, folder: Path) -> list[Round]:
    """The rounds on disk as far as they hold for this rule; a damaged one ends them.

    A larger ``max`` leaves what was asked for standing. Another ``min`` or ``until_interval`` does not:
    the points are to be judged again from the beginning.

    Args:
        repeats: The experiment's key.
        folder: The experiment's results.
    """
    found: list[Round] = []
    if isinstance(repeats, int):
        return found
    try:
        for judged in iter_rounds(lambda number: _existing(round_file(folder, number))):
            if (judged.rule.min, judged.rule.until_interval) != (repeats.min, repeats.until_interval):
                break
            found.append(judged)
    except RecordError:
        pass
    return found


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def is_settled(repeats: int | Repeats, rounds: Sequence[Round]) -> bool:
    """Whether no more repeats than those asked for can follow."""
    if isinstance(repeats, int):
        return True
    return bool(rounds) and rounds[-1].rule == repeats and not rounds[-1].asks_for_more


def requested_repeats(repeats: int | Repeats, rounds: Iterable[Round]) -> Mapping[str, int]:
    """Number of repeats that are asked for, by point, where it is more than the fewest.

    Args:
        repeats: The experiment's key; a plain number looks at no round.
        rounds: Those that have been judged.
    """
    if isinstance(repeats, int):
        return {}
    return {
        point.point: min(point.next_asked, repeats.max)
        for judged in rounds
        for point in judged.points
        if point.next_asked > repeats.min
    }


def requested_runs(runs: Sequence[Run], repeats: int | Repeats, rounds: Iterable[Round]) -> list[Run]:
    """The runs to make: the fewest repeats of every point, and what the rounds have asked for.

    Args:
        runs: All of an experiment, up to the most repeats.
        repeats: The experiment's key; a plain number looks at no round and makes them all.
        rounds: Those that have been judged.
    """
    if isinstance(repeats, int):
        return list(runs)
    asked = requested_repeats(repeats, rounds)
    return [run for run in runs if run.repeat <= asked.get(run.point, repeats.min)]
