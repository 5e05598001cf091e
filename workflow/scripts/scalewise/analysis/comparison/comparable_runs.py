"""The runs that are comparable with their baseline, and series for those under other conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from scalewise.analysis.comparison.comparability import Difference, differences, named
from scalewise.analysis.comparison.fingerprint import DEVICE_MODEL
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import format_ratio

Conditions = Mapping[str, Mapping[str, str]]
"""Conditions by the id of their fingerprint."""


def reference_fingerprint(series: pd.DataFrame, base: int) -> str:
    """The fingerprint that most of the baseline's completed runs have.

    Of several with equally many, the one that most runs of the whole series have. Empty where the runs
    have none.

    Args:
        series: Completed runs of one series.
        base: Devices of its baseline.
    """
    fingerprints = _fingerprints(series)
    at_base = fingerprints[series["devices"] == base].value_counts()
    everywhere = fingerprints.value_counts()
    ranked = sorted(at_base.index, key=lambda name: (-at_base[name], -everywhere[name], name))
    return str(ranked[0]) if ranked else ""


NEVER_MORE = {"out-of-memory", "diverged"}
"""Outcomes that another try would repeat."""


def baseline_devices(series: pd.DataFrame) -> int:
    """The fewest devices of a series; those on which its training is known to be impossible do not count.

    Where it is impossible everywhere, the fewest of all.

    Args:
        series: All runs of one series.
    """
    possible = [
        int(point["devices"].iloc[0])
        for _, point in series.groupby("devices")
        if not set(point["outcome"]) <= NEVER_MORE
    ]
    return min(possible, default=int(series["devices"].min()))


def comparable(done: pd.DataFrame, reference: str) -> pd.DataFrame:
    """The runs that have the fingerprint of the baseline.

    Args:
        done: Completed runs. Without a column ``fingerprint`` all are comparable.
        reference: Fingerprint of the baseline.
    """
    return done[_fingerprints(done) == reference]


def left_out(done: pd.DataFrame, base_done: pd.DataFrame, reference: str, known: Conditions) -> str:
    """A phrase on the runs of a point that no speedup joins, and why; empty without such runs.

    Where the point has comparable runs too, the ratio to them is shown as what it is: the gain of what
    differs, at equal devices.

    Args:
        done: Completed runs of the point, at least one.
        base_done: Completed runs of the baseline.
        reference: Fingerprint of the baseline.
        known: Conditions of each fingerprint.
    """
    fingerprints = _fingerprints(done)
    others = done[fingerprints != reference]
    if others.empty or base_done.empty:
        return ""  # without a baseline there is nothing to compare with, and the table says so
    differing = [_differing(reference, name, known) for name in sorted(set(fingerprints[others.index]))]
    gain = ""
    if len(differing) == 1 and differing[0] and (ratio := _gain(others, comparable(done, reference))):
        gain = f" ({format_ratio(ratio)}x the others' rate)"
    of_models = any(difference.field == DEVICE_MODEL for each in differing for difference in each)
    fix = "; `partitions` in the site file compare kinds of GPU" if of_models else ""
    return (
        f"{len(others)} of {len(done)} runs on {count_devices(int(done['devices'].iloc[0]))} "
        f"{'is' if len(others) == 1 else 'are'} not comparable with the baseline: "
        f"{named(difference for each in differing for difference in each)}{gain}{fix}"
    )


def _differing(reference: str, fingerprint: str, known: Conditions) -> list[Difference]:
    conditions = [known.get(name) for name in (reference, fingerprint)]
    if None in conditions:
        conditions = [{"fingerprint": name or "not recorded"} for name in (reference, fingerprint)]
    return differences(*(each or {} for each in conditions))


def _gain(runs: pd.DataFrame, over: pd.DataFrame) -> float | None:
    """Return how many times as fast runs are as others, by walls for want of throughput; None if unknown."""
    rate, other_rate = (each["throughput_samples_per_second"].median() for each in (runs, over))
    if rate > 0 and other_rate > 0:
        return float(rate / other_rate)
    wall, other_wall = (each["wall_seconds"].median() for each in (runs, over))
    return float(other_wall / wall) if wall > 0 and other_wall > 0 else None


def held_equal(runs: pd.DataFrame, known: Conditions) -> dict[str, list[str]]:
    """The conditions that were equal among all runs that a series compares, with their values.

    A condition with several values, such as a swept option, differs between series and in none of them.

    Args:
        runs: All runs of the study.
        known: Conditions of each fingerprint.
    """
    done = runs[runs["outcome"] == "completed"]
    references = [
        reference_fingerprint(done[done["series"] == series["series"].iloc[0]], baseline_devices(series))
        for _, series in runs.groupby("series", sort=False)
    ]
    compared = [known[reference] for reference in references if reference in known]
    return {
        name: list(dict.fromkeys(conditions[name] for conditions in compared if name in conditions))
        for name in dict.fromkeys(name for conditions in compared for name in conditions)
    }


def _fingerprints(runs: pd.DataFrame) -> pd.Series:
    if "fingerprint" not in runs:
        return pd.Series("", index=runs.index)
    return runs["fingerprint"].fillna("").astype(str)


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
