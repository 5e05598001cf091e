"""The way from a table of runs to the decision, as an experiment goes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.card_figures import Figure
from scalewise.analysis.decision.criteria import as_billed
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule


def figure(decision: Decision, label: str) -> Figure:
    """The figure of the answer's card with a label."""
    return next(each for each in decision.card.figures if each.label == label)


def decision_on(
    runs: pd.DataFrame,
    rule: DecisionRule | None = None,
    *,
    name: str = "study",
    scaling: str = "strong",
    swept: Mapping[str, Sequence[Any]] | None = None,
    billed: Mapping[int, float] | None = None,
    conditions: Mapping[str, Mapping[str, str]] | None = None,
    **others: Any,
) -> Decision:
    """The decision on a table of runs; ``others`` are further arguments of ``decide``."""
    known = known_columns(runs, conditions)
    compared = gains(known)
    table = as_billed(scaling_table(known, scaling, conditions, compared), billed or {})
    options = option_table(known, swept or {}, conditions)
    return decide(
        name,
        table,
        options,
        rule or DecisionRule(),
        compared=compared,
        options_of={
            str(series): tuple((key, runs[key].iloc[0]) for key in swept or {})
            for series, runs in known.groupby("series", sort=False)
        },
        **others,
    )
