"""The numbers with which the report decides again, in the reader's browser, under criteria of their choice.

``what_if.js`` applies the rule of ``analysis/decision`` to them, and fills the same sentences; everything
that no criterion changes is computed here once. A table of cases holds both to the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from scalewise.analysis.accuracy import accuracy_lost
from scalewise.analysis.comparison.gains import Gains
from scalewise.analysis.conclusion import Terms
from scalewise.analysis.decision.card import larger_apart, options_text
from scalewise.analysis.decision.cautions import (
    DISTURBED,
    OTHER_RATE,
    accuracy_loss,
    has_survivors,
    of_configured,
    of_disturbed,
    of_efficiency,
    of_no_grad,
)
from scalewise.analysis.decision.choice import KNOWN_WITHIN
from scalewise.analysis.decision.criteria import least_seconds
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.decision.selection import Candidates, candidates, speed
from scalewise.analysis.decision.sentences import SENTENCES
from scalewise.analysis.decision.walk import CRITERIA
from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.analysis.statistics.ratios import ROUNDING
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import goal_text, name_devices, points_text
from scalewise.plan.runs.run_definition import NO_OPTIONS

DIGITS = 12
"""Significant digits of a ratio and its bounds: far more than a verdict turns on, and fewer than all."""

POINT_COLUMNS = (
    "series", "devices", "gain", "gain_low", "gain_high", "gain_base", "efficiency_to_best", "power",
    "efficiency_high", "device_hours", "wall_seconds", "least_seconds", "longest_seconds", "share_reached",
    "speed", "faster", "runs", "doubtful", "unreliable", "notes",
)  # fmt: skip
"""Columns on a point. ``series`` is an index of ``names``; ``faster``: shown to be faster than the first
series on as many devices; ``runs``: those of it or of its baseline, the fewer; ``doubtful``: an answer on it
is not clear; ``unreliable``: a clause if too many runs ended without a result; ``notes``: sentences that
belong to it."""

PAIR_COLUMNS = ("series", "devices", "than_series", "than_devices", "n", "estimate", "at_least", "at_most")
"""Columns on the ratio of two points."""

_NOTHING_TO_CHOOSE = "There is nothing to choose among: no device count has a speedup."


def facts(
    scaling: pd.DataFrame,
    compared: Gains,
    decision: Decision,
    terms: Terms,
    choice: ChoiceSummary | None = None,
) -> dict[str, Any]:
    """Return plain values for JSON: the points, their ratios, the study's own criteria and its answer.

    Args:
        scaling: Output of ``scaling_table``, as billed.
        compared: Output of ``gains``.
        decision: The study's own, its devices by what they are.
        terms: The criteria and what else decided.
        choice: Summary of a study that chose its device counts; None of one that measures all.

    Returns:
        The facts; ``left_out`` only, with the reason, if no point can be chosen.
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
    names, noun = list(dict.fromkeys(found.points["series"])), decision.device
    doubts = [
        *_doubts(terms, found, choice, on_slurm=compared.on_slurm),
        *(text for _, text in of_configured(scaling, found.points, terms.target)),
    ]
    shown = scaling["series"] == decision.series
    apart = larger_apart(scaling[shown], found.points[found.points["series"] == decision.series], noun)
    return {
        "rule": terms.rule.model_dump(),
        "own": {"devices": decision.devices, "series": decision.series, "verdict": decision.card.verdict},
        "to_target": found.measure == "time to target",
        "names": names,
        "of": ["" if name == NO_OPTIONS else f" of {name}" for name in names],
        "with": [options_text(name, terms.options) for name in names],
        "nouns": [count_devices(number, noun).removeprefix(f"{number} ") for number in (1, 2)],
        "first": names.index(found.first),
        "best": [names.index(found.best[0]), found.best[1]],
        "queue_minutes": {str(devices): wait for devices, wait in terms.queue_minutes.items()},
        "queue_source": terms.queue_source,
        "whole_runs": terms.whole_runs,
        "chooses_devices": terms.chooses_devices,
        "notes": list(_of_chosen_counts(terms, choice)),
        "doubts": [name_devices(sentence, noun) for sentence in doubts],
        "series_doubts": [
            [
                name_devices(each, noun)
                for each in _series_doubts(found.points[found.points["series"] == name])
            ]
            for name in names
        ],
        "sentences": {**SENTENCES, **({"none larger": apart} if apart else {})},
        "criteria": CRITERIA,
        "known_within": KNOWN_WITHIN,
        "enough": ENOUGH_REPEATS,
        "rounding": ROUNDING,
        "point_columns": list(POINT_COLUMNS),
        "points": list(_points(found, names, noun)),
        "pair_columns": list(PAIR_COLUMNS),
        "pairs": list(_pairs(found, names, compared)),
    }


def _points(found: Candidates, names: Sequence[str], noun: str) -> Iterator[list[Any]]:
    points = found.points
    bases = {
        str(point["series"]): point
        for _, point in points[points["devices"] == points["baseline_devices"]].iterrows()
    }
    for _, point in points.iterrows():
        name = str(point["series"])
        single = bool(point["speedup_n"] < 2)
        of_series = points[points["series"] == name]
        # a single run has no interval, though it is compared by the scatter of the other side
        own = ({"gain_low": None, "gain_high": None} if single else {}) | {
            "series": names.index(name),
            "speed": speed(point, found.measure),
            "share_reached": point["n_reached"] / point["n"],
            "faster": bool(point["faster"]),
            "runs": point["speedup_n"],
            "doubtful": accuracy_loss(point, of_series, found.measure) > 0 or has_survivors(point, of_series),
            "efficiency_high": point["efficiency_to_best_high"],
            "least_seconds": least_seconds(point),
            "notes": list(_notes(point, bases.get(name), noun, to_target=found.measure == "time to target")),
        }
        yield [_plain(own.get(column, point.get(column))) for column in POINT_COLUMNS]


def _notes(point: pd.Series, base: pd.Series | None, noun: str, *, to_target: bool) -> Iterator[str]:
    where = count_devices(int(point["devices"]), noun)
    if point["n_unsuccessful"] > 0:
        ended = point["n_unsuccessful"] + point["n"]
        yield f"{point['n_unsuccessful']:.0f} of {ended:.0f} runs on {where} have no result."
    if to_target and point["n_reached"] < point["n"]:
        yield f"{point['n_reached']:.0f} of {point['n']:.0f} runs on {where} reached the target."
    if base is not None and (lost := accuracy_lost(point, base)):
        yield f"Accuracy: {points_text(lost)} lower than on {count_devices(int(base['devices']), noun)}."
    if pd.notna(point["billed_devices"]) and point["billed_devices"] != point["devices"]:
        yield f"Device-hours count the {count_devices(int(point['billed_devices']), noun)} that are billed."


def _pairs(found: Candidates, names: Sequence[str], compared: Gains) -> Iterator[list[Any]]:
    """Yield the ratios that a rule may need: those within a series, and over the baselines."""
    rows = [point for _, point in found.points.iterrows()]
    places = [(str(point["series"]), int(point["devices"])) for point in rows]
    bases = [(str(point["series"]), int(point["gain_base"])) for point in rows]
    wanted = [
        (point, than)
        for point in places
        for than in places
        if (point > than if point[0] == than[0] else point != than)
    ]
    wanted += [*zip(places, bases, strict=True), *((point, found.best) for point in places)]
    for point, than in dict.fromkeys(wanted):
        if (ratio := compared.of(found.measure, point, than)) is not None:
            numbers = (ratio.estimate, ratio.at_least, ratio.at_most)
            rounded = [_plain(float(f"{value:.{DIGITS}g}")) for value in numbers]
            yield [names.index(point[0]), point[1], names.index(than[0]), than[1], ratio.n, *rounded]


def _of_chosen_counts(terms: Terms, choice: ChoiceSummary | None) -> Iterator[str]:
    if terms.chooses_devices:
        unmeasured = [] if choice is None else [str(each.devices) for each in choice.unmeasured]
        left = f" Not measured: {', '.join(unmeasured)}." if unmeasured else ""
        yield f"The study measured the device counts that its own criteria needed.{left}"


def _doubts(
    terms: Terms, found: Candidates, choice: ChoiceSummary | None, *, on_slurm: bool
) -> Iterator[str]:
    """Yield doubts that no criterion removes."""
    disturbed = of_disturbed(found.points, on_slurm=on_slurm)
    yield from (sentence for harm, sentence in disturbed if harm == DISTURBED)
    yield from terms.confounded
    if terms.target is not None and found.measure == "throughput":
        yield f"No run reached {goal_text(terms.target)}, so throughput decides."
    if choice is not None:
        yield from choice.open_sentences()


def _series_doubts(points: pd.DataFrame) -> Iterator[str]:
    """Yield what is doubtful of a series by any criterion."""
    yield from (sentence for _, sentence in of_efficiency(points))
    yield from (sentence for harm, sentence in of_no_grad(points) if harm == OTHER_RATE)


def _plain(value: Any) -> Any:
    """Return a value for JSON: None if it is unknown or infinite, whole numbers without a point."""
    if isinstance(value, (str, list, bool)):
        return value
    if value is None or pd.isna(value) or math.isinf(value):
        return None
    number = float(value)
    return int(number) if number.is_integer() else number
