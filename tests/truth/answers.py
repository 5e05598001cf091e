"""The answer to a planted study, the way the product gives it, and how good it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from tests.truth.kinds import KINDS, OFF, Point, Study, draw
from tests.truth.partitions import Planted, partition_study
from tests.truth.studies import SERIES

from scalewise.analysis.comparison.confounding import confounding_sentences
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.decision import decide
from scalewise.analysis.partitions.answer import answer as answer_on_partitions
from scalewise.analysis.partitions.points import collect_points
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.runs.runs import Options

SEED = 20260131

Verdict = Literal["right", "wrong", "cannot tell"]
"""``wrong``: another point than a right one, and clear. ``cannot tell``: not clear."""


@dataclass(frozen=True)
class Given:
    """The chosen point, None for none, and whether the answer is clear."""

    point: Point | None
    is_clear: bool


def answer(study: Study, runs: pd.DataFrame) -> Given:
    """Return the product's answer to the tables of a study. Nothing else in this folder calls it."""
    if study.price:
        return _on_partitions(study, runs)
    known = known_columns(runs)
    compared = gains(known)
    options: dict[str, Options] = {
        series: ((study.option, series),) for series in dict.fromkeys(point.series for point in study.rates)
    }
    found = decide(
        "study",
        scaling_table(known, "strong", None, compared),
        option_table(known, {}),
        study.rule,
        compared=compared,
        target=study.target,
        confounded=confounding_sentences(known),
        options_of=options,
    )
    point = None if found.devices is None else Point(str(found.series), found.devices)
    return Given(point, found.clear or found.card.certainty == "Clear")


def _on_partitions(study: Study, runs: pd.DataFrame) -> Given:
    studies = []
    for name, price in study.price.items():
        rates = {point.devices: rate for point, rate in study.rates.items() if point.partition == name}
        table = runs[runs["partition"] == name].assign(global_batch_size=256, series=SERIES)
        studies.append(partition_study(name, Planted(dict(rates), price), table, {}))
    found = answer_on_partitions(collect_points(studies)).aims["cost"]
    assert found.best is not None
    point = Point(OFF, found.best.devices, found.best.partition)
    return Given(point, found.partition_status != "cannot tell")


def verdict(study: Study, given: Given) -> Verdict:
    if not given.is_clear:
        return "cannot tell"
    return "right" if given.point in study.right else "wrong"


def rates(kind: str, scatter: float, n: int, studies: int) -> Counter[Verdict]:
    """Return how many of drawn studies of a kind get which verdict."""
    study, generator = KINDS[kind], np.random.default_rng(SEED)
    tables = (draw(study, generator, scatter, n) for _ in range(studies))
    return Counter(verdict(study, answer(study, runs)) for runs in tables)
