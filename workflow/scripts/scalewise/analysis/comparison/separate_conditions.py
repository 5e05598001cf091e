"""Runs under other conditions than their baseline, as series of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from scalewise.analysis.comparison.comparability import differences
from scalewise.analysis.comparison.comparable_runs import (
    Conditions,
    baseline_devices,
    reference_fingerprint,
)

MAX_NAMED = 2
"""Differences in the name of a series."""


def separate_conditions(runs: pd.DataFrame, known: Conditions | None = None) -> pd.DataFrame:
    """The runs with those that no speedup joins in series of their own, so that no figure mixes the two.

    A series keeps the runs that have the fingerprint of most of its baseline's, and those without a result.
    Others get a series named after what differs, with that in ``conditions``, and the planned series in
    ``planned_series``. Separating twice changes nothing.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
        known: The conditions behind each fingerprint.
    """
    if "planned_series" in runs or "fingerprint" not in runs:
        return runs if "planned_series" in runs else runs.assign(planned_series=runs["series"], conditions="")
    parts = [_separated(series, known or {}) for _, series in runs.groupby("series", sort=False)]
    if not parts:
        return runs.assign(planned_series=runs["series"], conditions="")
    return pd.concat(parts).loc[runs.index]


def _separated(series: pd.DataFrame, known: Conditions) -> pd.DataFrame:
    planned = str(series["series"].iloc[0])
    done = series[series["outcome"] == "completed"]
    fingerprints = series["fingerprint"].astype(object).fillna("").astype(str)
    base = baseline_devices(series)
    if (done["devices"] == base).any():
        reference = reference_fingerprint(done, base)
    else:
        # nothing is held against a baseline; the figures of a point still are of one kind of machine
        reference = str(fingerprints[done.index].mode().get(0, ""))
    apart = (series["outcome"] == "completed") & (fingerprints != reference)
    words = {
        name: _words(known.get(reference, {}), known.get(name, {}), name) for name in fingerprints[apart]
    }
    shared = {text for text, count in Counter(words.values()).items() if count > 1}
    words = {name: f"{text}, fingerprint {name}" if text in shared else text for name, text in words.items()}
    conditions = fingerprints.map(words).where(apart, "")
    names = conditions.map(lambda text: f"{planned} ({text})").where(apart, planned)
    return series.assign(planned_series=planned, series=names, conditions=conditions)


def _words(reference: Mapping[str, str], other: Mapping[str, str], fingerprint: str) -> str:
    """``device model T4, torch version 2.1 and 2 more``: the values under which the runs were made."""
    differing = differences(reference, other)
    if not differing:
        return f"fingerprint {fingerprint or 'not recorded'}"
    shown = ", ".join(each.second_side for each in differing[:MAX_NAMED])
    more = len(differing) - MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
