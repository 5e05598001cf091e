"""Requested runs of an experiment: a first few, and more if a round requests them.

An experiment with ``repeats: {min: …, max: …}`` first makes ``min`` runs of every point. One that chooses
its device counts first makes two runs on the fewest devices. A round then checks the results, and may request
more repeats or other device counts; the next round follows when those runs have finished, until one requests
none. The rounds are in ``results/{experiment}/repeats``.
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
"""First runs, on the fewest devices, of a study that chooses its counts: a single run shows no scatter."""

OTHER_ANSWER = 0.05
"""Probability that an unmeasured count is the answer, at or below which no more counts are measured."""

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
it" request more runs, the others do not. "over the budget": more are needed, but exceed it. "not needed": the
answer does not depend on it.
"""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class JudgedPoint(_Record):
    """One device count of one series after a round.

    Args:
        point: ``d2.bucket-view-on``.
        asked: Repeats requested before this round.
        completed: Those of them that have a throughput.
        half_width_fraction: Half the width of the throughput's interval over the throughput; None with
            fewer than two completed.
        verdict: Whether and why more are needed.
        next_asked: Repeats requested from now on.
    """

    point: str
    asked: int
    completed: int
    half_width_fraction: float | None
    verdict: Verdict
    next_asked: int


class UnmeasuredPoint(_Record):
    """A device count that was not measured, with its expected values.

    Args:
        chance: Probability that it is, or makes, another answer.
        speedup: Over the series' fewest devices; the median of the draws.
        speedup_low: Lower end of a band with 95 % of the draws.
        speedup_high: Upper end of that band.
        device_hours: Expected cost of one run, as billed.
    """

    devices: int
    chance: float
    speedup: float
    speedup_low: float
    speedup_high: float
    device_hours: float


class SeriesChoice(_Record):
    """The answer of a series so far, and its unmeasured device counts.

    Args:
        devices: The answer; None if no point meets the criteria, or none is measured.
        other_answer: Probability that an unmeasured count gives another answer.
        unmeasured: Counts that have no run, fewest devices first.
    """

    series: str
    devices: int | None
    other_answer: float
    unmeasured: list[UnmeasuredPoint] = []


class Round(_Record):
    """Content of ``round{number}.json``: every point of an experiment with its verdict.

    Args:
        number: Rounds are counted from 1.
        rule: The rule of the verdicts.
        points: Every point, in the order of the configuration.
        choices: One for each series of a study that chooses its device counts; else none.
        spent_device_hours: Cost of all runs before this round, as billed, in a study that chooses.
        budget_device_hours: The most that the study may spend, if that is limited.
        spent_by_sisters: Cost of all runs of the same experiment on other partitions, which share the budget.
        wins: Chance that the partition gives the answer across partitions; None without others.
    """

    record_version: Literal[1] = 1
    experiment: str
    number: int
    rule: RepeatsKey
    points: list[JudgedPoint]
    choices: list[SeriesChoice] = []
    spent_device_hours: float | None = None
    budget_device_hours: float | None = None
    spent_by_sisters: float = 0.0
    wins: float | None = None

    @property
    def is_outdone(self) -> bool:
        """Whether the partition is measured no further, as others are better."""
        return self.wins is not None and self.wins <= OTHER_ANSWER

    @property
    def requests_more(self) -> bool:
        """Whether another round follows."""
        return any(point.next_asked > point.asked for point in self.points)


def round_file(folder: Path, number: int) -> Path:
    """Return the path of a round's file below the experiment's folder; rounds are counted from 1."""
    return folder / FOLDER / f"round{number}.json"


def read_round(path: Path) -> Round:
    """Read a round.

    Raises:
        RecordError: the file is missing or damaged.
    """
    return read_record(path, Round)


def iter_rounds(file_of: Callable[[int], str | Path | None]) -> Iterator[Round]:
    """Yield the rounds in order, up to one that requests no more runs.

    Args:
        file_of: Returns the file of a round; None ends the iteration.

    Raises:
        RecordError: a file is damaged.
    """
    for number in count(1):
        path = file_of(number)
        if path is None:
            return
        judged = read_round(Path(path))
        yield judged
        if not judged.requests_more:
            return


def judged_rounds(get: Callable[..., Any], experiment: str, before: int | None = None) -> Iterator[Round]:
    """Yield the rounds of an experiment that are up to date for Snakemake.

    If the file of a round exists and is out of date, ``get`` raises, and Snakemake calls again when it is
    made. If there is none, the iteration ends, and ``required_rounds`` requests it: after ``get``, Snakemake
    would not check whether the later tables are out of date.

    Args:
        get: The ``get`` of the checkpoint ``judge_round``.
        experiment: The experiment's name.
        before: The first round to leave out.

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
    """Return the numbers of the rounds so far, and of the next one; none for an experiment without rounds."""
    if not spec.has_rounds:
        return []
    judged = list(rounds)
    more = not judged or judged[-1].requests_more
    return list(range(1, len(judged) + 1 + more))


def known_rounds(spec: AnyExperiment, folder: Path) -> list[Round]:
    """Read the rounds on disk that are valid for this experiment, up to a damaged one.

    They stay valid with a larger ``max``, more device counts to choose among and another budget. With another
    ``min`` or ``until_interval``, or with counts that are chosen instead of all, the rounds start again.

    Args:
        spec: The experiment.
        folder: The experiment's results.
    """
    valid: list[Round] = []
    if not spec.has_rounds:
        return valid
    rule = spec.repeats
    try:
        for judged in iter_rounds(lambda number: _existing(round_file(folder, number))):
            same_rule = (judged.rule.min, judged.rule.until_interval) == (rule.min, rule.until_interval)
            if not same_rule or bool(judged.choices) != spec.chooses_devices:
                break
            valid.append(judged)
    except RecordError:
        pass
    return valid


def _existing(path: Path) -> Path | None:
    return path if path.exists() else None


def is_settled(spec: AnyExperiment, rounds: Sequence[Round]) -> bool:
    """Whether no round can request further runs."""
    if not spec.has_rounds:
        return True
    return bool(rounds) and rounds[-1].rule == spec.repeats and not rounds[-1].requests_more


def requested_repeats(spec: AnyExperiment, rounds: Iterable[Round]) -> dict[str, int]:
    """Return the number of requested repeats, by the name of each point.

    Args:
        spec: The experiment.
        rounds: The rounds so far; not read if the experiment has none.
    """
    repeats = first_repeats(spec)
    if not spec.has_rounds:
        return repeats
    most = spec.repeats.max
    for judged in rounds:
        for point in judged.points:
            if point.next_asked > repeats.get(point.point, most):
                repeats[point.point] = min(point.next_asked, most)
    return repeats


def first_repeats(spec: AnyExperiment) -> dict[str, int]:
    """Return the number of repeats before any round, by the name of each point."""
    if not spec.chooses_devices:
        return {point.name: spec.min_repeats for point in points(spec)}
    repeats: dict[str, int] = {}
    for series in points_by_series(spec).values():
        fewest = min(series, key=lambda point: point.world_size)
        repeats |= {point.name: FIRST_OF_BASELINE if point is fewest else 0 for point in series}
    return repeats


def requested_runs(
    runs: Sequence[RunDefinition], spec: AnyExperiment, rounds: Iterable[Round]
) -> list[RunDefinition]:
    """Return the runs to make: the first ones, and those that rounds have requested.

    Args:
        runs: All of an experiment, up to the most repeats.
        spec: The experiment.
        rounds: The rounds so far; not read if the experiment has none.
    """
    if not spec.has_rounds:
        return list(runs)
    repeats = requested_repeats(spec, rounds)
    return [run for run in runs if run.repeat <= repeats[run.point]]
