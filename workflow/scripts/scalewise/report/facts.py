"""The numbers of a proposal: the measurements of an experiment, by the clock of a centre."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.points import Place
from scalewise.analysis.statistics import ENOUGH_REPEATS, ROUNDING, Interval, Ratio, runs_to_tell
from scalewise.analysis.study import Analysis
from scalewise.config.experiment import AnyExperiment, Experiment
from scalewise.config.shape import plural_of
from scalewise.plan.plan_file import Plan
from scalewise.report.totals import training_hours

CLOCKS = {"total time": ("wall_seconds", "wall_n"), "throughput": (THROUGHPUT, "n")}
"""Columns of scaling.csv by clock: the compared quantity, and the runs that know it."""


@dataclass(frozen=True)
class Facts:
    """The measurements of an experiment that a proposal is made of.

    Args:
        found: The analysis, by the clock that the centre demands.
        place: The recommended point; without one the first, whose series is then shown.
        name: Name of the experiment.
        title: Name for readers.
        experiment: Its settings.
        points: Rows of scaling.csv on that partition, those of its series first, with the ``run_samples``.
        runs: Runs of its series.
    """

    found: Analysis
    place: Place
    name: str
    title: str
    experiment: AnyExperiment
    points: pd.DataFrame
    runs: pd.DataFrame

    @property
    def rows(self) -> list[dict[Any, Any]]:
        """Return the points, a row each."""
        return self.points.to_dict("records")

    @property
    def noun(self) -> str:
        """Return the name of a device: ``GPU``, ``CPU process``."""
        return self.found.answer.device

    @property
    def plural(self) -> str:
        """Return the name of several devices: ``GPUs``."""
        return plural_of(self.noun)

    @property
    def is_equal_work(self) -> bool:
        """Return whether runs on more devices do as much work; unknown of a program with weak scaling."""
        return self.experiment.scaling == "strong" or isinstance(self.experiment, Experiment)

    def compares(self, clock: str) -> bool:
        """Return whether numbers of devices can be compared by a clock."""
        return clock == "throughput" or self.is_equal_work

    def faster(self, clock: str, more: float, fewer: float, series: str = "") -> Ratio | None:
        """Return how many times faster a device count is than another by a clock; None if unknown.

        Args:
            clock: Key of ``CLOCKS``.
            more: The one device count.
            fewer: The other one.
            series: Series of both; by default that of the proposal.
        """
        if not self.compares(clock):
            return None
        one, other = (Place(self.place.partition, series or self.place.series, int(n)) for n in (more, fewer))
        return self.found.case.points.faster(one, other, "runs" if clock == "total time" else "steps")

    def speedup(self, row: Mapping[str, Any], clock: str) -> Interval:
        """Return the speedup of a point over the fewest devices of its series; NaN if it is unknown."""
        is_known = self.compares(clock) and not pd.isna(row[CLOCKS[clock][0]])
        if is_known and row["devices"] == row["baseline_devices"]:
            return Interval(1.0, 1.0, 1.0, 0)
        ratio = self.faster(clock, row["devices"], row["baseline_devices"], row["series"])
        return Interval(math.nan, math.nan, math.nan, 0) if ratio is None else ratio.interval()

    def unknown(self, column: str) -> str:
        """Return why a column is unknown, with the fix where there is one."""
        if column in ("speedup", "parallel_efficiency") and not self.is_equal_work:
            return "runs on more devices do more work: their total times do not compare. Use strong scaling."
        if column in ("wall_seconds", "speedup", "parallel_efficiency", "device_hours"):
            if self.experiment.steps is not None:
                return "`steps` ends every run, so no total time was measured. Measure whole runs."
            return "no run was measured whole and without a resumption. Run the study again."
        if column in ("mean_utilization", "lowest_utilization") and self.noun != "GPU":
            return "only GPUs report it."
        notes = self.points["mfu_note"].dropna().unique()
        if column == "model_flops_utilization" and len(notes):
            return str(notes[0])
        return "no run could measure it."

    def origin(self, part: str, most: int = 6) -> str:
        """List the values of a part of the runs' provenance.

        Args:
            part: Name of the part.
            most: Most values to name; of the others their number is.
        """
        values = [value for each in self.found.origins.get(part, ()) for value in each.split(", ")]
        more = [f"and {len(values) - most} more"] if len(values) > most else []
        return ", ".join([*values[:most], *more]) or "unknown"


def facts_of(found: Analysis, plan: Plan, name: str) -> Facts:
    """Return the measurements that a proposal on an experiment is made of.

    Args:
        found: The analysis, by the clock that the centre demands.
        plan: The study.
        name: Name of the experiment.
    """
    place = found.case.best or found.case.group[0]
    planned = plan["experiments"][name]
    runs, scaling = (table[table["partition"] == place.partition] for table in (found.runs, found.scaling))
    samples = runs.groupby(["series", "devices"])["samples"].median().rename("run_samples")
    return Facts(
        found=found,
        place=place,
        name=name,
        title=planned["title"],
        experiment=AnalysisSpec.from_json(planned["definitions"][place.partition]).spec,
        points=scaling.join(samples, on=["series", "devices"]).sort_values(
            "series", key=lambda series: series != place.series, kind="stable"
        ),
        runs=runs[runs["series"] == place.series],
    )


@dataclass(frozen=True)
class Doubling:
    """Two points of which the second has twice the nodes, or devices, of the first.

    Args:
        fewer: Nodes or devices of the first.
        ratio: Speed of the second over that of the first; None if unknown.
        required: The least ratio.
        is_requested: The recommended point is the second one, or larger.
    """

    fewer: int
    ratio: Ratio | None
    required: float
    is_requested: bool

    @property
    def verdict(self) -> str:
        """``met`` or ``missed`` if the whole 95 % interval lies on one side, else ``open``."""
        if self.ratio is None or self.ratio.n < ENOUGH_REPEATS:
            return "open"
        if self.ratio.at_least >= self.required * (1 - ROUNDING):
            return "met"
        return "missed" if self.ratio.at_most < self.required else "open"

    @property
    def repeats(self) -> int | None:
        """Runs of each point that would tell; None if unknown."""
        return None if self.ratio is None else runs_to_tell(self.ratio, self.required)


def find_doublings(facts: Facts, clock: str, of: str, required: float) -> list[Doubling]:
    """Compare each point of the answer's series with the one of twice the nodes or devices.

    Args:
        facts: The measurements.
        clock: What must get faster.
        of: ``nodes`` or ``devices``.
        required: The least speedup of a doubling.
    """
    requested = facts.found.answer.devices or 0
    rows = [row for row in facts.rows if row["series"] == facts.place.series]
    return [
        Doubling(
            int(fewer[of]),
            facts.faster(clock, more["devices"], fewer["devices"]),
            required,
            is_requested=more["devices"] <= requested,
        )
        for fewer, more in combinations(rows, 2)
        if more["devices"] == 2 * fewer["devices"] and more[of] == 2 * fewer[of]
    ]


def verdict_of(found: Sequence[Doubling]) -> str:
    """Return the verdict on the recommended point: of all doublings up to it."""
    verdicts = [each.verdict for each in found if each.is_requested]
    return min(verdicts, key=["missed", "open", "met"].index, default="open")


def in_clock(facts: Facts, clock: str, samples: int | None) -> list[dict[Any, Any]]:
    """Return the points with runs, speedup, efficiency and cost by one clock.

    Args:
        facts: The measurements.
        clock: Key of ``CLOCKS``.
        samples: Samples of a training; None if a run is a whole one.

    Returns:
        The points; ``hours`` are those of a training, or the reason why they are unknown.
    """
    no_wall = facts.unknown("wall_seconds")
    rows = []
    for row in facts.rows:
        speedup, runs = facts.speedup(row, clock), row[CLOCKS[clock][1]]
        hours = training_hours(row, clock, samples, no_wall)
        known = math.nan if isinstance(hours, str) else hours.estimate
        rows.append(
            row
            | speedup.as_columns("speedup")
            | speedup.scaled(row["baseline_devices"] / row["devices"]).as_columns("parallel_efficiency")
            | {"clock": clock, "n": 0 if pd.isna(runs) else int(runs), "hours": hours}
            | {"device_hours": known * row["billed_devices"]}
            | {"startup_share": row["startup_seconds"] / row["wall_seconds"]}
        )
    return rows
