"""The numbers with which the report decides again, in the reader's browser, under criteria of their choice.

``what_if.js`` applies the rules of ``analysis/decision`` to them; whatever a rule does not touch is computed
here once. A table of cases holds both to the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from scalewise.analysis.comparison.comparability import accuracy_lost
from scalewise.analysis.comparison.gains import SIGNIFICANCE, Gains
from scalewise.analysis.decision.cautions import (
    DISTURBED,
    OTHER_RATE,
    of_disturbed,
    of_efficiency,
    of_no_grad,
)
from scalewise.analysis.decision.choice import KNOWN_WITHIN, MOST_ADVISED
from scalewise.analysis.decision.criteria import SUCCESSFUL_FROM
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.decision.selection import Candidates, candidates, speed
from scalewise.analysis.decision.terms import Terms
from scalewise.analysis.formatting import goal_text
from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.analysis.statistics.ratios import ROUNDING, Ratio, half_widths, tellable_leads
from scalewise.plan.runs.runs import NO_OPTIONS

DIGITS = 12
"""Significant digits of what ratios are judged by: far more than a verdict turns on, and fewer than all."""

POINT_COLUMNS = (
    "series", "devices", "gain", "gain_base", "gain_efficiency", "power", "cost_ratio",
    "outrun_by", "device_hours", "billed_devices", "wall_seconds", "longest_seconds", "n", "n_reached",
    "n_unsuccessful", "unsuccessful", "speed", "accuracy_lost", "speedup_n",
)  # fmt: skip
"""Columns on a point; ``series`` is an index of ``names``."""

PAIR_COLUMNS = (
    "series", "devices", "than_series", "than_devices", "estimate", "at_least", "at_most", "scatter",
    "freedom_per_run", "p_above", "n", "assumed",
)  # fmt: skip
"""Columns on the ratio of two points; ``p_above`` is one-sided, that it is above 1; ``assumed`` is 1 if the
scatter is that of single runs, whose interval is not printed."""

_NOTHING_TO_CHOOSE = "There is nothing to choose among: no device count has a speedup."


def facts(
    scaling: pd.DataFrame,
    compared: Gains,
    decision: Decision,
    terms: Terms,
    choice: ChoiceSummary | None = None,
) -> dict[str, Any]:
    """Plain values for JSON: the points, their ratios, and what the study itself asked for and found.

    Args:
        scaling: Output of ``scaling_table``, as billed.
        compared: Output of ``gains``.
        decision: The study's own.
        terms: All that it follows from beside the tables.
        choice: Summary of a study that chose its device counts; None of one that measures all.

    Returns:
        The facts, or ``left_out`` alone with the reason where no point can be chosen.
    """
    found = candidates(
        scaling,
        terms.rule,
        compared,
        options=terms.options,
        target=terms.target,
        queue_minutes=terms.queue_minutes,
    )[0]
    if found.points.empty:
        return {"left_out": _NOTHING_TO_CHOOSE}
    names = list(dict.fromkeys(found.points["series"]))
    return {
        "rule": terms.rule.model_dump(),
        "own": {"devices": decision.devices, "series": decision.series},
        "measure": found.measure,
        "names": names,
        "first": names.index(found.first),
        "best": [names.index(found.best[0]), found.best[1]],
        "no_options": NO_OPTIONS,
        "queue_minutes": {str(devices): wait for devices, wait in terms.queue_minutes.items()},
        "whole_runs": terms.whole_runs,
        "chooses_devices": terms.chooses_devices,
        "unmeasured": [] if choice is None else [each.devices for each in choice.unmeasured],
        "open_anyway": list(_open_anyway(terms, found, choice, on_slurm=compared.on_slurm)),
        "doubts": [list(_doubts(found.points[found.points["series"] == name])) for name in names],
        "significance": SIGNIFICANCE,
        "known_within": KNOWN_WITHIN,
        "most_advised": MOST_ADVISED,
        "tellable_leads": [tellable_leads(1), tellable_leads(2)],
        "half_widths": [half_widths(1), half_widths(2)],
        "rounding": ROUNDING,
        "enough_repeats": ENOUGH_REPEATS,
        "successful_from": SUCCESSFUL_FROM,
        "point_columns": list(POINT_COLUMNS),
        "points": list(_points(found, names)),
        "pair_columns": list(PAIR_COLUMNS),
        "pairs": list(_pairs(found, names, compared)),
    }


def _points(found: Candidates, names: Sequence[str]) -> Iterator[list[Any]]:
    points = found.points
    bases = {
        str(point["series"]): point
        for _, point in points[points["devices"] == points["baseline_devices"]].iterrows()
    }
    for _, point in points.iterrows():
        name = str(point["series"])
        own = {
            "series": names.index(name),
            "speed": speed(point, found.measure),
            "accuracy_lost": accuracy_lost(point, bases[name]) if name in bases else 0.0,
        }
        yield [_plain(own.get(column, point.get(column))) for column in POINT_COLUMNS]


def _pairs(found: Candidates, names: Sequence[str], compared: Gains) -> Iterator[list[Any]]:
    """The ratios that a rule may ask for.

    They are those within a series, over the first series on equal devices, and over the best baseline.
    """
    known = {(str(point["series"]), int(point["devices"])): None for _, point in found.points.iterrows()}
    wanted = {
        (point, than): None
        for pair, _ in compared.listed()
        if pair.measure == found.measure and {pair.point, pair.than} <= known.keys()
        if (point := pair.point)[0] == (than := pair.than)[0] or than[0] == found.first
    } | {(point, found.best): None for point in known}
    for point, than in wanted:
        if (ratio := compared.of(found.measure, point, than)) is not None:
            yield [names.index(point[0]), point[1], names.index(than[0]), than[1], *_known(ratio)]


def _known(ratio: Ratio) -> list[Any]:
    values = (
        ratio.estimate, ratio.at_least, ratio.at_most, ratio.scatter, ratio.freedom_per_run, ratio.p_above(),
    )  # fmt: skip
    return [*(_plain(float(f"{value:.{DIGITS}g}")) for value in values), ratio.n, int(ratio.assumed)]


def _open_anyway(
    terms: Terms, found: Candidates, choice: ChoiceSummary | None, *, on_slurm: bool
) -> Iterator[str]:
    """Sentences on doubts that no criterion removes."""
    disturbed = of_disturbed(found.points, on_slurm=on_slurm)
    yield from (sentence for harm, sentence in disturbed if harm == DISTURBED)
    yield from terms.confounded
    if terms.target is not None and found.measure == "throughput":
        yield f"No run reached {goal_text(terms.target)}, so throughput decides."
    if choice is not None:
        yield from choice.open_sentences()


def _doubts(points: pd.DataFrame) -> Iterator[str]:
    """Sentences on what is doubtful of a series by any criterion."""
    yield from (sentence for _, sentence in of_efficiency(points))
    yield from (sentence for harm, sentence in of_no_grad(points) if harm == OTHER_RATE)


def _plain(value: Any) -> Any:
    """A value for JSON: None for what is not known or not finite, whole numbers without a point."""
    if isinstance(value, str):
        return value
    if value is None or pd.isna(value) or math.isinf(value):
        return None
    number = float(value)
    return int(number) if number.is_integer() else number
