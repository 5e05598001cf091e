"""The sentences of the answer across partitions, as templates; ``decision.sentences`` has their form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewise.analysis.decision.sentences import fill

GOALS: Mapping[str, str] = {
    "time": "the shortest time",
    "cost": "the lowest cost",
    "energy": "the least energy",
    "soonest": "the earliest end",
}
"""Aims as the purpose of a use."""

LABELS: Mapping[str, str] = {**GOALS, "soonest": "the earliest end (wait + run)"}
"""Aims as the heads of rows, which have amounts."""

CLOCKS: Mapping[str, str] = {
    "time to target": "{amounts} are those of the training until {target}, without start-up.",
    "total time": "{amounts} are those of a whole run, start-up included.",
    "throughput": "{amounts} are those of a million samples.",
}

UNITS: Mapping[str, str] = {
    "price": "in the unit of your prices",
    "billing": "billing units",
    "device-hours": "device-hours",
}

SENTENCES: Mapping[str, str] = {
    "place": "{devices:count} on {partition}{options}",
    # verdicts
    "use": "Use {place}: {reasons}.",
    "use for": "{place} for {goals}",
    "as good": " (or, as good, {place})",
    "with": "with {devices:count}{options}, ",
    "cannot tell": "Cannot tell which gives {goal}: {places}.",
    "no answer": "No partition can be recommended.",
    "none measured": "No result of any partition can be compared.",
    "none allowed": "No number of {devices} meets your criteria on any partition.",
    # the best point relative to another one: ratios above 1 favor it
    "time better": "{ratio:ratio}x faster than {than}",
    "time worse": "{inverse:ratio}x slower than {than}",
    "cost": "{inverse:ratio}x the cost of {than}",
    "energy": "{inverse:ratio}x the energy of {than}",
    "soonest better": "done {ratio:ratio}x sooner than {than}",
    "soonest worse": "done {inverse:ratio}x later than {than}",
    "time equal": "as fast as {than}, within {gain:exact} %",
    "cost equal": "the same cost as {than}, within {gain:exact} %",
    "energy equal": "the same energy as {than}, within {gain:exact} %",
    "soonest equal": "done as soon as {than}, within {gain:exact} %",
    "at cost": ", at {inverse:ratio}x {their} cost",
    "in time better": ", and {ratio:ratio}x faster than {them}",
    "in time worse": ", and {inverse:ratio}x slower than {them}",
    # after the other point of a row, which may be another one than that of the verdict
    "first by time": ", the fastest there",
    "first by cost": ", the cheapest there",
    "first by energy": ", the least there",
    "first by soonest": ", the earliest there",
    # of equal points, a row has the one that is better by a second aim
    "less time": "the fastest is {than}, {ratio:ratio}x as fast{equal}, but more expensive",
    "less cost": "the cheapest is {than}, {inverse:ratio}x the cost{equal}, but slower",
    "less energy": "the least is {than}, {inverse:ratio}x the energy{equal}, but slower",
    "less soonest": "the earliest is {than}, done {ratio:ratio}x sooner{equal}, but more expensive",
    "within": ", which is equal within {gain:exact} %",
    # doubts
    "some aims": "By some aims the runs cannot tell.",
    "open counts": "The partition is clear. How many {devices} give {goals} is open.",
    # rows
    "only": "no other partition has a result",
    "unmeasured": "unknown on {partitions}",
    "open time": "{than} may be as fast: {ratio:ratio}x the time",
    "open cost": "{than} may cost as little: {ratio:ratio}x the cost",
    "open energy": "{than} may need as little: {ratio:ratio}x the energy",
    "open soonest": "{than} may end as soon: {ratio:ratio}x the wait and run",
    # why a point is not compared
    "no result": "{devices:count} on {partition}: no result ({outcomes}){why}.",
    "never reached": "{devices:count} on {partition}: none of {runs} runs reached the target.",
    "no time": "{devices:count} on {partition}: the time of its runs is unknown.",
    "misses": "{place}: {misses}. Your criteria exclude it.",
    # what it rests on
    "tried": "{counts}; {runs} of each",
    "series": ", with {number} combinations of options",
    "energy from": "Energy counts from the first step on.",
    "ranges": "Ranges are 95 % intervals.",
    "rule": "A difference counts from {gain:exact} % on, and only if the whole interval shows it.",
    "single": "A single run does not show how much repeats scatter.",
    "few": "Two runs do not show how much repeats scatter.",
    "may miss": "{place} may miss your criteria.",
    "may meet": "{place} may meet your criteria ({misses}).",
    "apart": (
        "{place} and {than} ran more than {hours:exact} hours apart: what changed in between counts as a "
        "difference."
    ),
    "again": "Run both at the same time.",
    # whose waits
    "measured waits": "those of {runs} of this study{days}",
    "stated waits": "those that the site file states, for {runs}",
    "waits": "Waits in the queue are {sources}. They are no promise for later jobs.",
    # cautions
    "no price": (
        "No price is known, so cost is in device-hours, which differ in worth between kinds of {noun}s. Add "
        "price_per_device_hour to each partition in the site file."
    ),
    "some prices": "The cost on {partitions} is unknown. Add the price to the site file.",
    "other batch": (
        "The global batch is {batch:exact} on {place} and {other:exact} on {than}. Times are for equally "
        "many samples. Set a target to compare times to it."
    ),
    "accuracy": "The final accuracy of {place} is {points} lower than that of {than}.",
    "conditions": "{than} differs from {place} in more than its devices: {differences}.",
    "doubtful": "{partition}: {reason}",
    "unfinished": "{partition} has no result yet that can be compared.",
    # what to do
    "repeats": "To tell which gives {goal}, have {repeats} repeats of each: {places}.",
    "too close": "More repeats do not tell {places} apart. Choose by another aim.",
    "measure": "Measure {goal} on {partitions}, or choose by another aim.",
}


def sentence(name: str, noun: str = "device", **values: Any) -> str:
    """Return a sentence with its values.

    Args:
        name: Key of ``SENTENCES``.
        noun: Name of a device.
        values: Values by their names in the template.
    """
    return fill(SENTENCES[name], noun, **values)
