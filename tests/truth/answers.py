"""How good the product's answers to planted studies are."""

from collections import Counter
from typing import Literal

import numpy as np
import pandas as pd
from tests.truth.kinds import KINDS, Study, draw
from tests.unit.analysis.planted import make_spec, make_tables

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.study import Part, conclude
from scalewise.plan.runs import Options

SEED = 20260131

Verdict = Literal["right", "wrong", "cannot tell"]
"""``wrong``: another point than a right one, and clear. ``cannot tell``: not clear."""


def verdict(study: Study, runs: pd.DataFrame) -> Verdict:
    """Return how good the product's answer to the runs of a study is."""
    options: dict[str, Options] = {
        series: ((study.option, series),) for series in dict.fromkeys(point.series for point in study.rates)
    }
    rule = study.rule.model_dump(exclude_none=True) | ({"by": "cost"} if study.price else {})
    keys = {} if study.target is None else {"target": {"accuracy": study.target}}
    parts, tables = [], []
    for name in dict.fromkeys(point.partition for point in study.rates):
        counts = sorted({point.devices for point in study.rates if point.partition == name})
        spec = AnalysisSpec("study", make_spec(counts, decision=rule, **keys), accelerator="cuda")
        parts.append(Part(name, spec, price=study.price.get(name, 1.0)))
        tables.append(make_tables(runs[runs["partition"] == name]))
    found = conclude("study", parts, tables, options=options).answer
    if not found.is_clear:
        return "cannot tell"
    return "right" if (found.series, found.devices, found.partition) in study.right else "wrong"


def rates(kind: str, scatter: float, n: int, studies: int) -> Counter[Verdict]:
    """Return how many of drawn studies of a kind get which verdict."""
    study, generator = KINDS[kind], np.random.default_rng(SEED)
    return Counter(verdict(study, draw(study, generator, scatter, n)) for _ in range(studies))
