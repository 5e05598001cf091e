"""Intervals of single runs' own throughput: which runs they ended, and how much more the runs differ.

A run's own interval rests on the windows within it. What differs between runs, such as hosts, clocks and
neighbours, is the same in all windows of one: no interval over runs uses these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

import pandas as pd
from scipy import stats

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.plan.formatting import MAX_PLACES, percent_in_digits, pluralize, point_text
from scalewise.records import Measurements

_KNOWN = [
    *("run", "series", "devices", "outcome", THROUGHPUT),
    *("measured_steps", "warmed_up_steps", "own_half_width_fraction", "steady", "ended_by"),
]

CLEARLY = 0.01
"""Probability below which runs that differ in nothing but their windows would scatter as they do."""


def own_interval_columns(measured: Measurements) -> dict[str, float | int | bool | str | None]:
    """Steps and the own interval of a run; None for what a run of fixed steps lacks."""
    own = measured.own_interval
    return {
        "measured_steps": sum(window.steps for window in measured.windows if not window.warmup),
        "warmed_up_steps": None if own is None else own.warmup_steps,
        "own_half_width_fraction": None if own is None else own.half_width_fraction,
        "steady": None if own is None else own.steady,
        "ended_by": None if own is None else own.ended,
    }


def own_interval_notes(runs: pd.DataFrame) -> list[str]:
    """Sentences on the runs that their own intervals were to end; none where there are no such runs.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    known = runs.reindex(columns=_KNOWN)
    done = known[(known["outcome"] == "completed") & known["ended_by"].notna()]
    if done.empty:
        return []
    return [*_ended(done), *_unsteady(done), *_scattered(done)]


def _ended(done: pd.DataFrame) -> Iterator[str]:
    number = pluralize(str(len(done)), "run")
    early = done[done["ended_by"] == "interval"]
    others = done[done["ended_by"] != "interval"]
    said = f"{len(early)} of {number} ended before their most steps"
    if len(early):
        said += (
            f", after {_range(early['measured_steps'], '{:.0f}')} measured steps: half the width of a run's "
            f"own 95 % interval was {_percents(early['own_half_width_fraction'])} of its throughput by then"
        )
    if len(others):
        widths = others["own_half_width_fraction"].dropna()
        reached = f", which left {_percents(widths)}" if len(widths) else ""
        said += f". {len(others)} made all their {_range(others['measured_steps'], '{:.0f}')} steps{reached}"
    yield (
        f"{said}. Such an interval tells how well one run is known, and does not hold between runs: how much "
        "these differ is told by their repeats alone."
    )


def _unsteady(done: pd.DataFrame) -> Iterator[str]:
    unsteady = done[done["steady"] == False]  # noqa: E712  # a column of objects
    if len(unsteady):
        names = list(unsteady["run"])
        more = f" and {len(names) - MAX_PLACES} more" if len(names) > MAX_PLACES else ""
        yield (
            f"{len(unsteady)} of {pluralize(str(len(done)), 'run')} never became steady: the first half of "
            f"the steps was left out, and the rest still changed ({', '.join(names[:MAX_PLACES])}{more})."
        )


def _scattered(done: pd.DataFrame) -> Iterator[str]:
    """Tell of points whose runs differ by more than their own intervals would have it, by Cochran's Q."""
    normal = NormalDist().inv_cdf(0.975)
    for _, point in done.groupby(["series", "devices"], sort=False):
        known = point.dropna(subset=[THROUGHPUT, "own_half_width_fraction"])
        rates, widths = known[THROUGHPUT].astype(float), known["own_half_width_fraction"].astype(float)
        errors = rates * widths / normal
        if len(known) < 2 or not (errors > 0).all():
            continue
        weights = 1 / errors**2
        mean = (weights * rates).sum() / weights.sum()
        excess = float((weights * (rates - mean) ** 2).sum())
        if stats.chi2.sf(excess, len(known) - 1) >= CLEARLY:
            continue
        where = point_text(int(point["devices"].iloc[0]), str(point["series"].iloc[0]))
        apart = float((rates.max() - rates.min()) / rates.median())
        yield (
            f"{len(known)} runs on {where} agree within themselves to "
            f"{percent_in_digits(float(widths.median()))} (half the width of a run's own 95 % interval, the "
            f"median), but differ by {percent_in_digits(apart)} from the slowest to the fastest: hosts, "
            "clocks or neighbours differ between runs, which no run sees by itself. More steps would not "
            "help; more repeats would."
        )


def _range(values: pd.Series, form: str) -> str:
    low, high = form.format(float(values.min())), form.format(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _percents(values: pd.Series) -> str:
    low, high = (percent_in_digits(float(value)) for value in (values.min(), values.max()))
    if math.isclose(float(values.min()), float(values.max())) or low == high:
        return low
    return f"{low.removesuffix(' %')} to {high}"
