"""The next action after an answer, with the lines of configuration for it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.decision import cautions
from scalewise.analysis.decision.card import (
    APART,
    CPUS_OPEN,
    FEW_RUNS,
    NONE_LARGER,
    REASONS,
    SEE_CAUTIONS,
    SINGLE_RUN,
    Card,
)
from scalewise.analysis.decision.choice import MOST_ADVISED
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.plan.config.experiment import Repeats
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    format_3sig,
    pluralize,
)

_ACTIONS = {
    REASONS[cautions.DISTURBED]: (
        "Run `python workflow/scripts/cli.py redo --disturbed`, then the same command on a quiet machine."
    ),
    APART: "Run all {noun} counts under the same conditions: see the cautions.",
    CPUS_OPEN: "Use the fewest CPUs per {noun} that are not shown to be slower, or add repeats.",
    "No run reached": "Train for longer, or lower the target.",
    "A run may take": "Accept that, raise max_device_hours, or use fewer devices.",
}
"""Next actions, by a part of the reason."""


def next_action(
    experiment: AnalysisSpec,
    card: Card,
    scaling: pd.DataFrame,
    undecided: Mapping[int, int],
    every_series: pd.DataFrame,
) -> tuple[str, str]:
    """Return what to do next, and the lines of configuration for it.

    Args:
        experiment: The experiment, the way the plan defined it.
        card: Card of the answer.
        scaling: Rows of the answer's series in the scaling table, or all without an answer.
        undecided: Further repeats that would settle what is open, by device count.
        every_series: The scaling table of all series.
    """
    spec, noun = experiment.spec, experiment.noun
    if scaling["n"].sum() == 0:
        fixed = " once the reasons of the failures are fixed" if scaling["n_unsuccessful"].sum() else ""
        return f"Run the same command again{fixed}.", ""
    for reason, action in _ACTIONS.items():
        if reason in card.reason:
            return action.format(noun=noun), ""
    if card.certainty == "Open":
        if scaling["devices"].nunique() == 1:
            more = 2 * int(scaling["devices"].max())
            return f"Measure a second {noun} count.", f"devices: [{int(scaling['devices'].max())}, {more}]"
        if (scaling["n"] > 0).sum() < 2:
            return "Run the same command again.", ""
        return f"Change the criteria, or measure other {noun} counts.", ""
    is_far = bool(undecided) and max(undecided.values()) > MOST_ADVISED
    if undecided and not is_far and not spec.chooses_devices:
        done = _done(scaling).set_axis(scaling["devices"])
        most = max(int(done.get(devices, 0)) + more for devices, more in undecided.items())
        return _more_repeats(spec.repeats, every_series, most)
    if card.certainty == "Doubtful" or card.reason.endswith(SEE_CAUTIONS):
        return "Follow the first caution.", ""
    if card.reason in (SINGLE_RUN, FEW_RUNS) and not spec.chooses_devices:
        return _more_repeats(spec.repeats, every_series, ENOUGH_REPEATS)
    if card.certainty == "Likely" and not spec.chooses_devices:
        return f"Choose by cost: the runs cannot tell these {noun} counts apart.", ""
    largest = int(scaling["devices"].max())
    has_more = 2 * largest <= experiment.most_devices
    if has_more and card.next == NONE_LARGER and not spec.chooses_devices:
        devices = [*spec.device_counts, 2 * largest]
        counts = ", ".join(str(each) if isinstance(each, int) else f'"{each}"' for each in devices)
        beyond = f"To look beyond {count_devices(largest, noun)}, measure {2 * largest}, too."
        return beyond, f"devices: [{counts}]"
    return "Nothing more to measure.", ""


def _more_repeats(repeats: Repeats, every_series: pd.DataFrame, most: int) -> tuple[str, str]:
    """Return how to get to a number of repeats, and the lines of configuration for it.

    Args:
        repeats: Repeats of the configuration.
        every_series: The scaling table of all series.
        most: Repeats that are needed.
    """
    up_to = "" if repeats.are_fixed else "up to "
    if most <= repeats.max and repeats.until_interval is None:
        return f"Run the same command again: {up_to}{_further_runs(every_series, repeats.max)}.", ""
    return (
        f"Set the repeats to {most} (now {repeats.max}) and run the same command again: "
        f"{up_to}{_further_runs(every_series, most)}.",
        f"repeats: {most}" if repeats.are_fixed else f"repeats: {{max: {most}}}",
    )


def _further_runs(scaling: pd.DataFrame, repeats: int) -> str:
    """Return how many runs are left to that number of repeats, and their cost if it is known.

    Args:
        scaling: The scaling table of all series.
        repeats: Planned repeats of each point.
    """
    more = (repeats - _done(scaling)).clip(lower=0)
    runs = pluralize(f"{more.sum():.0f}", "more run")
    hours = float((more * scaling["device_hours"])[more > 0].sum(skipna=False))
    return runs if math.isnan(hours) else f"{runs}, about {format_3sig(hours)} device-hours"


def _done(points: pd.DataFrame) -> pd.Series:
    """Return the completed runs of each point, comparable or not."""
    return points["n"] + points.reindex(columns=["n_not_comparable"]).fillna(0)["n_not_comparable"]
