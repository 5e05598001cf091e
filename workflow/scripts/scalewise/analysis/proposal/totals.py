"""The computing time to request: trainings x cost x margin, in the unit of the centre."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.proposal.proposal_spec import ProposalSpec
from scalewise.analysis.proposal.table import hours_name
from scalewise.analysis.statistics import Interval
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import format_3sig, percent_in_digits, significant

HOUR = 3600.0


@dataclass(frozen=True)
class Totals:
    """The cost of a training and of all of them.

    Args:
        name: The experiment and its number of devices.
        unit: Name of the unit.
        cost: Units of one training; its bounds are NaN if unknown.
        trainings: Number of trainings; None if unknown.
        margin: Share that is added.
        months: Months over which they are spread; None if unknown.
        basis: Sentence on where the cost comes from.
    """

    name: str
    unit: str
    cost: Interval
    trainings: int | None
    margin: float
    months: int | None
    basis: str

    @property
    def total(self) -> Interval | None:
        """Units of all trainings and the margin; None without a number of trainings."""
        return None if self.trainings is None else self.cost.scaled(self.trainings * (1 + self.margin))

    def text(self) -> str:
        """Return sentences on the cost and the total."""
        cost = f"One training takes {_shown(self.cost)} {self.unit}. {self.basis}"
        if self.trainings is None or self.total is None:
            return cost
        factors = f"{self.trainings:,} trainings x {_number(self.cost.estimate)}"
        margin = ""
        if self.margin:
            margin = f" x {1 + self.margin:g} (a margin of {percent_in_digits(self.margin)})"
        request = f"We request {_shown(self.total)} {self.unit}: {factors}{margin}."
        if self.months is not None:
            monthly = self.total.scaled(1 / self.months)
            request += f" Over {self.months} months, that is {_shown(monthly)} {self.unit} per month."
        return f"{request} {cost}"

    def rows(self) -> list[list[str]]:
        """Return the table of the request: headings, and a row of the cost, the number and the total."""
        head = ["experiment", f"{self.unit} per training", "trainings", "margin", f"total {self.unit}"]
        number = "–" if self.trainings is None else f"{self.trainings:,}"
        total = "–" if self.total is None else _shown(self.total)
        return [head, [self.name, _shown(self.cost), number, percent_in_digits(self.margin), total]]


def find_totals(results: ExperimentResults, spec: ProposalSpec) -> Totals | str:
    """Return the totals of the answer's point, or the reason why there are none and what supplies them."""
    points = results.scaling
    chosen = points[(points["series"] == results.series) & (points["devices"] == results.devices)]
    if chosen.empty:
        return "The study recommends no number of devices, so no cost can be stated."
    point, keys, unit = chosen.iloc[0], spec.proposal, spec.centre.unit
    hours = _hours_of_a_training(point, spec)
    if hours is None:
        return (
            "The runs are no whole trainings. Add `samples_per_training: ...`, the samples of one training "
            "in all its epochs, or measure whole trainings."
        )
    factor = keys.unit_factor if keys.unit_factor is not None else unit.factor
    # a user's factor turns hours into a unit without a name
    unit_name = "units" if unit.name == "device-hours" and factor != 1 else unit.name
    if factor == "ask":
        return (
            f"The factor from hours to {unit.name} is unknown. Add `proposal: {{unit_factor: ...}}`, the "
            f"{unit.name} for one hour of a {unit.of}."
        )
    if unit.monthly and keys.months is None:
        return f"{unit.name} are granted by the month. Add `proposal: {{months: ...}}`."
    billed = point.get("billed_devices", point["devices"])
    paid = point["nodes"] if unit.of == "node" else billed if pd.notna(billed) else point["devices"]
    if pd.isna(paid):
        return "The number of nodes is unknown."
    cost, basis = hours.scaled(float(paid) * float(factor)), _basis(point, spec)
    if factor != 1:
        of = hours_name(results.noun).removesuffix("s") if unit.of == "device" else "node-hour"
        basis += f" One {of} is {factor:g} {unit_name}"
        basis += f" ({unit.source}, read {unit.date})." if unit.source and keys.unit_factor is None else "."
    in_words = hours_name(results.noun) if unit_name == "device-hours" else unit_name
    name = f"{results.title or results.name}, {count_devices(int(point['devices']), results.noun)}"
    return Totals(name, in_words, cost, spec.trainings, keys.margin, keys.months, basis)


def _hours_of_a_training(point: pd.Series, spec: ProposalSpec) -> Interval | None:
    """Return the hours that a training takes; None if unknown."""
    n = int(point["n"])
    if spec.samples_per_training is not None:
        rate = point["throughput_samples_per_second"]
        if pd.isna(rate):
            return None
        hours = spec.samples_per_training / HOUR
        low, high = (point[f"throughput_samples_per_second_{end}"] for end in ("high", "low"))
        return Interval(hours / rate, hours / low, hours / high, n)
    if pd.isna(point["wall_seconds"]):
        return None
    wall, low, high = (point[f"wall_seconds{end}"] for end in ("", "_low", "_high"))
    return Interval(wall / HOUR, low / HOUR, high / HOUR, n)


def _basis(point: pd.Series, spec: ProposalSpec) -> str:
    if spec.samples_per_training is None:
        return "It is the geometric mean of the measured whole runs, start-up and evaluation included."
    rate = format_3sig(point["throughput_samples_per_second"])
    return (
        f"It is {spec.samples_per_training:,} samples at {rate} samples/s; start-up and evaluation are not "
        "in it."
    )


def _number(value: float) -> str:
    """Format a cost in three digits, and the last of them in its place."""
    if abs(value) < 1000:
        return significant(value, 3)
    place = 10 ** (math.floor(math.log10(value)) - 2)
    return f"{round(value / place) * place:,.0f}"


def _shown(value: Interval) -> str:
    if math.isnan(value.low) or math.isnan(value.high):
        return _number(value.estimate)
    return f"{_number(value.estimate)} ({_number(value.low)} to {_number(value.high)})"
