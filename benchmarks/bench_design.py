"""Studies that choose their device counts, held against full grids by the measurements of others.

Every series of a table is studied by every criterion, in two ways: all counts with repeats until the
decision is clear (the full grid), and with counts that are chosen round by round. Cases are

- an efficiency of 0.5, 0.7 and 0.8 at least, and the knee; runs are ended by ``steps``, so one on n devices
  costs n steps' time;
- a deadline that the middle one of the counts keeps with 5 % to spare; runs are whole, of as many samples as
  the steps of the others are on that count.

Threshold cases ask for exactly the efficiency that the middle count truly has: whether it is the answer is
then noise alone, and the decision ought to say that it is not clear.

    python benchmarks/run.py design
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from scalewise.plan.config.experiment import DecisionRule, Repeats

from .measure import Row
from .published_tables import T4_STEPS, V100_REPEATS
from .replayed_studies import (
    Answer,
    Replay,
    ReplayedSeries,
    chosen_study,
    full_grid,
    published_scatter,
    read_series,
)

EFFICIENCIES = (0.5, 0.7, 0.8)
DEADLINE, KNEE, THRESHOLD = "deadline", "knee", "efficiency on the threshold"
CRITERIA = (*(f"efficiency {least}" for least in EFFICIENCIES), DEADLINE, KNEE)
SPARE = 1.05
"""Deadline over the published length of a run on the middle count: a bound of the next run that six repeats
carry lies 1 to 2 % above it, one that three carry 2 to 3 %."""
STEPS = 300
HEADLINE, FEWER = Repeats(min=6, max=10), Repeats(min=3, max=10)
"""The repeats that are judged by the targets, those of ``repeats: {}``, and half as many."""
MOST_HOURS, MOST_OTHER = 0.25, 0.02
MOST_SERIES: int | None = None
SMALL = {"CRITERIA": CRITERIA[:1], "MOST_SERIES": 2}
SEED, OTHER_SEED = 20261123, 20261124


@dataclass(frozen=True)
class Compared:
    """A case, studied in both ways.

    Args:
        criterion: Name of the rule.
        full: The answer of the full grid.
        chosen: The answer from the counts that were chosen.
        fewest_hours: Device-hours of the full grid's answer and the baseline with the fewest repeats: less
            carries no answer.
        again: The answer of a full grid with other noise, where noise is drawn and it was asked for.
    """

    criterion: str
    full: Answer
    chosen: Answer
    fewest_hours: float
    again: Answer | None

    @property
    def is_other(self) -> bool:
        """Whether the chosen counts give another answer than the full grid."""
        return self.chosen.devices != self.full.devices


@dataclass(frozen=True)
class Figures:
    """What many cases come to.

    Args:
        cases: Number of them.
        device_hours_share: Device-hours of all over those of all full grids.
        fewest_share: The same share of the answer and the baseline with the fewest repeats only.
        other_answers: Cases with another answer than the full grid's.
        other_answers_share: Their share.
        rounds: Mean number.
        most_rounds: Of any case.
        measured: Mean number of counts that have runs.
        counts: Mean number of counts.
        not_clear: Share of the decisions that say that they are not clear.
    """

    cases: int
    device_hours_share: float
    fewest_share: float
    other_answers: int
    other_answers_share: float
    rounds: float
    most_rounds: int
    measured: float
    counts: float
    not_clear: float

    @classmethod
    def of(cls, cases: Sequence[Compared]) -> Figures:
        """The figures of at least one case."""
        hours = [(each.chosen.device_hours, each.full.device_hours) for each in cases]
        other = sum(each.is_other for each in cases)
        return cls(
            cases=len(cases),
            device_hours_share=sum(ours for ours, _ in hours) / sum(full for _, full in hours),
            fewest_share=sum(each.fewest_hours for each in cases) / sum(full for _, full in hours),
            other_answers=other,
            other_answers_share=other / len(cases),
            rounds=statistics.fmean(each.chosen.rounds for each in cases),
            most_rounds=max(each.chosen.rounds for each in cases),
            measured=statistics.fmean(each.chosen.measured for each in cases),
            counts=statistics.fmean(len(each.full.repeats) for each in cases),
            not_clear=statistics.fmean(not each.chosen.clear for each in cases),
        )


@dataclass(frozen=True)
class Task:
    """A case to study.

    Args:
        series: The training.
        criterion: Name of the rule.
        repeats: Fewest and most of a point; fewer where the table has fewer.
        again: Study the full grid with other noise too.
    """

    series: ReplayedSeries
    criterion: str
    repeats: Repeats
    again: bool = False


def rows() -> list[Row]:
    """Hold chosen device counts against full grids."""
    all_series = [series for path in (T4_STEPS, V100_REPEATS) for series in read_series(path)][:MOST_SERIES]
    of = [(series, criterion) for series in all_series for criterion in CRITERIA]
    tasks = [
        *(Task(series, criterion, HEADLINE, again=True) for series, criterion in of),
        *(Task(series, criterion, FEWER) for series, criterion in of),
        *(Task(series, THRESHOLD, HEADLINE) for series in all_series if _can_be_planted(series)),
    ]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        found = list(pool.map(study, tasks, chunksize=4))
    headline, fewer, planted = found[: len(of)], found[len(of) : 2 * len(of)], found[2 * len(of) :]
    return [*_headline_rows(headline), *_fewer_rows(fewer), *_planted_rows(planted)]


def study(task: Task) -> Compared:
    """A case, in both ways."""
    series, replay = task.series, replay_of(task, SEED)
    full = full_grid(replay)
    base, least = series.counts[0], replay.repeats.min
    again = full_grid(replay_of(task, OTHER_SEED)) if task.again and series.is_noise_drawn else None
    return Compared(
        criterion=task.criterion,
        full=full,
        chosen=chosen_study(replay),
        fewest_hours=replay.device_hours({base: least, full.devices or base: least}),
        again=again,
    )


def replay_of(task: Task, seed: int) -> Replay:
    """The study of a case, the noise of all its possible runs drawn."""
    series, criterion = task.series, task.criterion
    fewest = min(len(each) for each in series.speeds.values())
    most = task.repeats.max if series.is_noise_drawn else min(task.repeats.max, fewest)
    middle = series.counts[len(series.counts) // 2]
    samples = STEPS * series.batch_size_per_device * middle
    minutes = SPARE * samples / series.true_speed(middle) / 60
    rule = {
        DEADLINE: DecisionRule(deadline_minutes=minutes),
        KNEE: DecisionRule(),
        THRESHOLD: DecisionRule(min_efficiency=min(series.efficiency(middle), 1.0)),
    }.get(criterion) or DecisionRule(min_efficiency=float(criterion.split()[-1]))
    return Replay(
        series=series,
        criterion=criterion,
        rule=rule,
        repeats=Repeats(min=min(task.repeats.min, most), max=most),
        speeds=_speeds(series, f"{criterion} {series.table} {series.name}", most, seed),
        steps=None if criterion == DEADLINE else STEPS,
        samples=samples,
    )


def _speeds(series: ReplayedSeries, key: str, most: int, seed: int) -> dict[int, list[float]]:
    """The speed of every run that a study may make."""
    speeds = {}
    for devices, shape in series.shapes.items():
        known = list(series.speeds[devices])
        if len(known) == 1:
            scatter = published_scatter()[devices == 1, shape.nodes == 1]
            # a generator for each point: one more count in a table leaves the noise of the others alone
            generator = np.random.default_rng([seed, *f"{key} {devices}".encode()])
            known = (known[0] * np.exp(scatter * generator.standard_normal(most))).tolist()
        speeds[devices] = known[:most]
    return speeds


def _can_be_planted(series: ReplayedSeries) -> bool:
    """Whether the middle count's efficiency is one that a user may ask for."""
    return 0.05 < series.efficiency(series.counts[len(series.counts) // 2]) <= 1


def _headline_rows(cases: Sequence[Compared]) -> Iterator[Row]:
    figures = Figures.of(cases)
    spent = figures.device_hours_share <= MOST_HOURS
    right = figures.other_answers_share <= MOST_OTHER
    yield _row(
        "device-hours, all criteria",
        figures,
        target=f"at most {MOST_HOURS:.0%} of the hours, {MOST_OTHER:.0%} other answers",
        met=spent and right,
    )
    for criterion in CRITERIA:
        yield _row(criterion, Figures.of([each for each in cases if each.criterion == criterion]))
    again = [(each, each.again) for each in cases if each.again is not None]
    changed = sum(each.full.devices != other.devices for each, other in again)
    yield Row(
        what="design: the full grid itself, with other noise",
        ours=f"{_of(changed, len(again))} other answers",
        n=len(again),
    )


def _fewer_rows(cases: Sequence[Compared]) -> Iterator[Row]:
    yield _row(f"repeats {FEWER.min} to {FEWER.max}", Figures.of(cases))


def _planted_rows(cases: Sequence[Compared]) -> Iterator[Row]:
    figures = Figures.of(cases)
    full = statistics.fmean(not each.full.clear for each in cases)
    yield _row(f"{THRESHOLD}: {figures.not_clear:.0%} say not clear (full grid {full:.0%})", figures)


def _row(name: str, figures: Figures, target: str = "", *, met: bool = True) -> Row:
    return Row(
        what=f"design: {name}",
        ours=f"{figures.device_hours_share:.1%} of the hours (the answer and the baseline with the fewest "
        f"repeats {figures.fewest_share:.1%})",
        reference=f"{_of(figures.other_answers, figures.cases)} other answers",
        ratio=f"{figures.rounds:.1f} rounds ({figures.most_rounds} at most), {figures.measured:.1f} of "
        f"{figures.counts:.1f} counts measured",
        n=figures.cases,
        target=target,
        met=met,
    )


def _of(found: int, n: int) -> str:
    return f"{found} of {n} ({found / n:.1%})"
