"""The runs of an experiment that are asked for: a first few, and more where the rounds say so.

An experiment with ``repeats: {min: …, max: …}`` first makes ``min`` runs of every point. One that chooses
its device counts first makes two runs on the fewest devices. A round then judges what is known, and may ask
for more repeats, or for counts that were not measured; the next round follows when those runs have finished,
until one asks for none. The rounds stand in ``results/{experiment}/repeats``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from scalewise.plan.config.experiment import AnyExperiment, RepeatsKey
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.runs import points, points_by_series
from scalewise.records import RecordError, read_record

FOLDER = "repeats"
"""Folder of the rounds, in the results of an experiment."""

FIRST_OF_BASELINE = 2
"""Runs on the fewest devices with which a study that chooses its counts begins: one tells no scatter."""

OTHER_ANSWER = 0.05
"""Probability that a count which was not measured is the answer, at which the others are left unmeasured."""

Verdict = Literal[
    "too wide",
    "undecided",
    "other session",
    "disturbed",
    "narrow enough",
    "decided",
    "most repeats",
    "too few completed",
    "baseline",
    "may be the answer",
    "answer rests on it",
    "over the budget",
    "not needed",
]
"""A finding on a point.

"too wide", "undecided", "other session", "disturbed", "baseline", "may be the answer" and "answer rests on
it" alone ask for more runs. "over the budget": more were needed, and could not be paid. "not needed": the
answer does not rest on it.
"""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class JudgedPoint(_Record):
    """One device count of one series after a round.

    Args:
        point: ``d2.bucket-view-on``.
        asked: Repeats asked for before this round.
        completed: Those of them that have a throughput.
        half_width_fraction: Half the width of the throughput's interval over the throughput; None with
            fewer than two completed.
        verdict: Whether and why more are needed.
        next_asked: Repeats asked for from now on.
    """

    point: str
    asked: int
    completed: int
    half_width_fraction: float | None
    verdict: Verdict
    next_asked: int


class UnmeasuredPoint(_Record):
    """A device count that was not measured, as those that were make it expect.

    Args:
        chance: Probability that it is, or makes, another answer.
        speedup: Over the series' fewest devices; the median of the possibilities.
        speedup_low: Lower end of a band that holds 95 % of them.
        speedup_high: Upper end of that band.
        device_hours: Expected of one run, as billed.
    """

    devices: int
    chance: float
    speedup: float
    speedup_low: float
    speedup_high: float
    device_hours: float


class SeriesChoice(_Record):
    """The answer of a series so far, and what was not measured of it.

    Args:
        devices: The answer; None where no point meets the criteria, or nothing is known.
        other_answer: Probability that a count which was not measured gives another answer.
        unmeasured: Counts that have no run, fewest devices first.
    """

    series: str
    devices: int | None
    other_answer: float
    unmeasured: list[UnmeasuredPoint] = []


class Round(_Record):
    """``round{number}.json``: every point of an experiment, judged.

    Args:
        number: Rounds are counted from 1.
        rule: The rule that the points were judged by.
        points: Every point, in the order of the configuration.
        choices: One for each series of a study that chooses its device counts; else none.
        spent_device_hours: Cost of all runs before this round, as billed, in a study that chooses.
        budget_device_hours: The most that the study may spend, if that is limited.
    """

    record_version: Literal[1] = 1
    experiment: str
    number: int
    rule: RepeatsKey
    points: list[JudgedPoint]
    choices: list[SeriesChoice] = []
    spent_device_hours: float | None = None
    budget_device_hours: float | None = None

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
        get: The ``get`` of the checkpoint ``judge_round``.
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


def required_rounds(spec: AnyExperiment, rounds: Iterable[Round]) -> list[int]:
    """The numbers of the rounds that have been made, and of the one to make next.

    Args:
        spec: The experiment; one whose runs are all given needs no round.
        rounds: Those that have been judged.
    """
    if not spec.has_rounds:
        return []
    judged = list(rounds)
    more = not judged or judged[-1].asks_for_more
    return list(range(1, len(judged) + 1 + more))


def known_rounds(spec: AnyExperiment, folder: Path) -> list[Round]:
    """The rounds on disk as far as they hold for this experiment; a damaged one ends them.

    A larger ``max``, more device counts to choose among and another budget leave what was asked for
    standing. Another ``min`` or ``until_interval`` does not, nor counts that are chosen in place of all: the
    points are to be judged again from the beginning.

    Args:
        spec: The experiment.
        folder: The experiment's results.
    """
    found: list[Round] = []
    if not spec.has_rounds:
        return found
    rule = spec.repeats
    try:
        for judged in iter_rounds(lambda number: _existing(round_file(folder, number))):
            same_rule = (judged.rule.min, judged.rule.until_interval) == (rule.min, rule.until_interval)
            if not same_rule or bool(judged.choices) != spec.chooses_devices:
                break
            found.append(judged)
    except RecordError:
        pass
    return found


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def is_settled(spec: AnyExperiment, rounds: Sequence[Round]) -> bool:
    """Whether no more runs than those asked for can follow."""
    if not spec.has_rounds:
        return True
    return bool(rounds) and rounds[-1].rule == spec.repeats and not rounds[-1].asks_for_more


def requested_repeats(spec: AnyExperiment, rounds: Iterable[Round]) -> dict[str, int]:
    """Number of repeats that are asked for, by the name of each point.

    Args:
        spec: The experiment.
        rounds: Those that have been judged; not looked at where all runs are given.
    """
    asked = first_repeats(spec)
    if not spec.has_rounds:
        return asked
    most = spec.repeats.max
    for judged in rounds:
        for point in judged.points:
            if point.next_asked > asked.get(point.point, most):
                asked[point.point] = min(point.next_asked, most)
    return asked


def first_repeats(spec: AnyExperiment) -> dict[str, int]:
    """Repeats that are asked for before anything is judged, by the name of each point."""
    if not spec.chooses_devices:
        return {point.name: spec.min_repeats for point in points(spec)}
    asked: dict[str, int] = {}
    for mine in points_by_series(spec).values():
        fewest = min(mine, key=lambda point: point.world_size)
        asked |= {point.name: FIRST_OF_BASELINE if point is fewest else 0 for point in mine}
    return asked


def requested_runs(
    runs: Sequence[RunDefinition], spec: AnyExperiment, rounds: Iterable[Round]
) -> list[RunDefinition]:
    """The runs to make: the first ones, and what the rounds have asked for.

    Args:
        runs: All of an experiment, up to the most repeats.
        spec: The experiment.
        rounds: Those that have been judged; not looked at where all runs are given.
    """
    if not spec.has_rounds:
        return list(runs)
    asked = requested_repeats(spec, rounds)
    return [run for run in runs if run.repeat <= asked[run.point]]
