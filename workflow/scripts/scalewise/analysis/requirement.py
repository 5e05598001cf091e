"""The verdict on each doubling that a centre requires."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.statistics import ENOUGH_REPEATS, ROUNDING, Ratio
from scalewise.plan.config.centre import Requirement
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import format_exact, format_ratio, percent_in_digits, pluralize

Verdict = Literal["above", "below", "cannot tell"]
Clock = Literal["total time", "throughput"]
"""Total time is that of whole runs, start-up included; throughput is that of training steps."""

MOST_STARTUP = 0.5
"""Share of a run from which on its start-up dominates it."""


@dataclass(frozen=True)
class Doubling:
    """Two points of which the second has twice the nodes or devices of the first.

    Args:
        fewer: Nodes, or devices, of the first.
        unit: ``node`` or ``device``.
        ratio: Speed of the second over that of the first; None if unknown.
        required: The least ratio.
        by: The compared quantity.
    """

    fewer: int
    unit: str
    ratio: Ratio | None
    required: float
    by: Clock

    @property
    def verdict(self) -> Verdict:
        """The side of the required ratio on which the whole 95 % interval lies."""
        if self.ratio is None or self.ratio.n < ENOUGH_REPEATS:
            return "cannot tell"
        if self.ratio.at_least >= self.required * (1 - ROUNDING):
            return "above"
        return "below" if self.ratio.at_most < self.required else "cannot tell"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON: None if unknown."""
        ratio = self.ratio
        return {
            "unit": self.unit,
            "from": self.fewer,
            "to": 2 * self.fewer,
            "by": self.by,
            "ratio": None if ratio is None else ratio.estimate,
            "low": None if ratio is None else ratio.interval().as_dict()["low"],
            "high": None if ratio is None else ratio.interval().as_dict()["high"],
            "required": self.required,
            "verdict": self.verdict,
        }

    def sentence(self, noun: str) -> str:
        """Return the verdict as a sentence.

        Args:
            noun: Name of a device.
        """
        of = "node" if self.unit == "node" else noun
        where = f"{self.fewer} to {count_devices(2 * self.fewer, of)}"
        required = f"the required {format_exact(self.required)}"
        if self.ratio is None:
            return f"{where}: cannot tell, because one of the two has no result."
        bounds = f"{format_ratio(self.ratio.at_least)} to {format_ratio(self.ratio.at_most)}"
        if few := self.ratio.n < ENOUGH_REPEATS:
            bounds = pluralize(str(self.ratio.n), "run")
        measured = f"{where}: {format_ratio(self.ratio.estimate)}x ({bounds})"
        if self.verdict == "cannot tell":
            side = "below" if self.ratio.estimate < self.required else "above"
            return (
                f"{measured}: cannot tell. The estimate is {side} {required}"
                f"{'' if few else ', and the interval holds it'}. Add repeats."
            )
        return f"{measured}, {self.verdict} {required}."


def clock_of(requirement: Requirement | None, points: pd.DataFrame, *, is_fixed_work: bool) -> Clock:
    """Return what speeds are compared by: what the centre requires, as far as it is known.

    Args:
        requirement: The scaling that is required; None if none is.
        points: Rows of the scaling table.
        is_fixed_work: Every run does the same work, so that total times can be compared.
    """
    if points["wall_seconds"].isna().all():
        return "throughput"
    by_time = requirement is not None and requirement.by == "total_time" and is_fixed_work
    return "total time" if by_time or points[THROUGHPUT].isna().all() else "throughput"


def largest_startup(points: pd.DataFrame) -> pd.Series | None:
    """Return the row with the largest start-up as a share of its runs, which is ``share``; None if unknown.

    Args:
        points: Rows of the scaling table.
    """
    known = points.reindex(columns=["devices", "startup_seconds", "wall_seconds"]).dropna()
    if known.empty:
        return None
    shares = known["startup_seconds"] / known["wall_seconds"]
    return known.assign(share=shares).sort_values("share").iloc[-1]


def find_doublings(
    results: ExperimentResults, requirement: Requirement, *, is_fixed_work: bool = True
) -> list[Doubling]:
    """Compare each measured point of the answer's series with the one of twice the nodes or devices.

    Args:
        results: The study; without an answer, its first series is compared.
        requirement: The scaling that is required.
        is_fixed_work: See ``clock_of``.
    """
    planned = _shown(results)
    if planned.empty:
        return []
    series = str(planned["series"].iloc[0])
    compared = gains(results.runs[results.runs["series"] == series])
    clock = clock_of(requirement, planned, is_fixed_work=is_fixed_work)
    doubled = "nodes" if requirement.per == "doubling_of_nodes" else "devices"
    found = []
    for (_, fewer), (_, more) in combinations(planned.iterrows(), 2):
        if more["devices"] != 2 * fewer["devices"] or more[doubled] != 2 * fewer[doubled]:
            continue
        point, than = (series, int(more["devices"])), (series, int(fewer["devices"]))
        ratio = compared.of(clock, point, than)
        found.append(
            Doubling(int(fewer[doubled]), doubled.removesuffix("s"), ratio, requirement.ratio, clock)
        )
    return found


def _shown(results: ExperimentResults) -> pd.DataFrame:
    """Return the rows of the answer's series; of the first one without an answer."""
    rows = results.scaling.sort_values("devices")
    series = results.series or next(iter(results.scaling["series"]), None)
    shown: pd.DataFrame = rows[rows["series"] == series]
    return shown


def requirement_sentences(
    requirement: Requirement, found: Sequence[Doubling], results: ExperimentResults
) -> list[str]:
    """Return sentences on what is required and what hides it, and one with the verdict on each doubling.

    Args:
        requirement: The scaling that is required.
        found: Output of ``find_doublings``, one or more.
        results: The study.
    """
    by, noun = found[0].by, results.noun
    head = (
        f"Required is an efficiency of {format_exact(requirement.efficiency)} for each doubling of "
        f"{plural_of(requirement, noun)}, so a speedup of {format_exact(requirement.ratio)}. Compared is the "
        f"{by}, with 95 % intervals"
    )
    is_instead = requirement.by == "total_time" and by == "throughput"
    instead = ", because total times of equal work are unknown" if is_instead else ""
    first = [] if by == "throughput" else list(filter(None, [dominating_startup(_shown(results))]))
    return [f"{head}{instead}.", *first, *(each.sentence(noun) for each in found)]


def dominating_startup(points: pd.DataFrame) -> str:
    """Return a sentence on a start-up that dominates runs, with the fix; empty if none does.

    Args:
        points: Rows of the scaling table.
    """
    row = largest_startup(points)
    if row is None or row["share"] < MOST_STARTUP:
        return ""
    return (
        f"The start-up takes {percent_in_digits(row['share'])} of a run, so total times hide how the "
        "training scales. Make the runs longer."
    )


def unmet(found: Sequence[Doubling], results: ExperimentResults) -> Iterator[str]:
    """Yield a sentence on each way in which the requirement is not shown to be met, with what to do.

    Args:
        found: Output of ``find_doublings``.
        results: The study, with the device count that it recommends.
    """
    of_nodes = bool(found) and found[0].unit == "node"
    noun = "node" if of_nodes else results.noun
    below = [each.fewer for each in found if each.verdict == "below"]
    if below:
        yield f"Beyond {count_devices(min(below), noun)}, a doubling is below the required speedup."
        chosen = results.scaling[
            (results.scaling["series"] == results.series) & (results.scaling["devices"] == results.devices)
        ]
        recommended = chosen["nodes" if of_nodes else "devices"].max()
        if recommended > min(below):
            yield (
                f"The recommended {count_devices(int(recommended), noun)} are more than that. Request "
                f"{count_devices(min(below), noun)}, or change `decision`."
            )
    if any(each.verdict == "cannot tell" for each in found):
        yield "A verdict is open. Add repeats."


def plural_of(requirement: Requirement, noun: str) -> str:
    """Return the plural of what is doubled."""
    return "nodes" if requirement.per == "doubling_of_nodes" else count_devices(2, noun).removeprefix("2 ")


def verdicts(
    requirement: Requirement | None, results: ExperimentResults, *, is_fixed_work: bool
) -> dict[str, Any]:
    """Return the requirement, each doubling and the sentences on them, for JSON.

    Args:
        requirement: The scaling that is required; None if none is.
        results: The study.
        is_fixed_work: See ``find_doublings``.
    """
    found = [] if requirement is None else find_doublings(results, requirement, is_fixed_work=is_fixed_work)
    if requirement is None or not found:
        return {"required": None, "doublings": [], "sentences": []}
    return {
        "required": requirement.model_dump(mode="json"),
        "doublings": [each.as_dict() for each in found],
        "sentences": requirement_sentences(requirement, found, results),
    }
