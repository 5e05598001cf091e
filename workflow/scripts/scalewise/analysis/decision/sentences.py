"""The sentences of an answer, as templates.

``{gain:ratio}`` is a value with its form, a key of ``FORMS``; ``{devices:count}`` names the devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import format_3sig, format_exact, format_ratio

SENTENCES: Mapping[str, str] = {
    "use": "Use {devices:count}{options}.",
    "more do not pay": "{use} More do not pay.",
    "more are not shown to pay": "{use} More are not shown to pay.",
    "none meets": "No {noun} count meets your criteria.",
    "closest": "Closest is {where}: {misses}.",
    "where": "{devices:count}{of}",
    # criteria that a point misses
    "missed min_efficiency": "efficiency {distinct}{of}, below the {least} required",
    "missed deadline_minutes": "up to {value:three} minutes{queue}, more than the {limit:exact} allowed",
    "missed max_device_hours": "{value:three} device-hours, more than the {limit:exact} allowed",
    "unknown min_efficiency": "an unknown efficiency",
    "unknown deadline_minutes": "a run of unknown length",
    "unknown max_device_hours": "unknown device-hours",
    "in the queue": " in the queue and running",
    "to the target": " to the target",
    # what the runs do not show
    "more": ("{devices:count} may be worth having: {bounds} times as fast{to} as {fewer:count}."),
    "fewer": ("{devices:count} may do as well: {more:count} are {bounds} times as fast{to}."),
    "knee": "{devices:count} may balance speed and efficiency as well.",
    "efficient": "The efficiency may be below the {least} that you require: {bounds}.",
    "inefficient": ("The efficiency of {devices:count} may be above the {least} that you require: {bounds}."),
    "gain": "The gain of {devices:count} is not known well enough: {bounds}.",
    "in time": "{devices:count} may be in time, too.",
    "may meet": "It is not shown that {where} miss your criteria ({misses}).",
    "rival": "{where} may be better: {ratio:ratio}x as fast{to} as the answer by the means.",
    "hours": "A run may take up to {hours:three} device-hours.",
    "single": "A single run does not show how much repeats scatter.",
    "few": "Two runs do not show how much repeats scatter.",
    # the next larger count, with a deadline the next smaller one
    "next": (
        "{devices:count} would be {gain:ratio}x as fast{to} as {base:count}{interval}{efficiency}: {reasons}."
    ),
    "interval": " ({low:ratio} to {high:ratio})",
    "at efficiency": " at efficiency {efficiency:places}",
    "no gain": "no gain over {devices:count}",
    "not faster": "not shown to be {gain:exact} % faster than {devices:count}",
    "worse balance": "a worse balance of speed and efficiency",
    "none larger": "No larger device count was measured.",
    "apart": "{where} ran under other conditions.",
    "next smaller": "{devices:count} would take {minutes:three} minutes{queue}.",
    "next smaller late": "{devices:count} may take up to {minutes:three} minutes{queue}.",
    "waits": ", {wait:exact} of them in the queue",
    "none smaller": "No smaller device count was measured.",
}

FORMS: Mapping[str, Callable[[float], str]] = {
    "ratio": format_ratio,
    "places": "{:.2f}".format,
    "three": format_3sig,
    "exact": format_exact,
}
"""Forms of a number in a sentence."""

_PLACE = re.compile(r"\{(\w+):?(\w*)\}")


def sentence(name: str, noun: str = "device", **values: Any) -> str:
    """Return a sentence with its values.

    Args:
        name: Key of ``SENTENCES``.
        noun: ``GPU``, ``CPU process`` or ``device``.
        values: Values by their names in the template.
    """
    return fill(SENTENCES[name], noun, **values)


def fill(template: str, noun: str = "device", **values: Any) -> str:
    """Return a template with its values; see ``sentence``."""

    def filled(place: re.Match[str]) -> str:
        key, form = place.groups()
        value: Any = noun if key == "noun" else values[key]
        if form == "count":
            return count_devices(int(value), noun)
        return FORMS[form](value) if form else str(value)

    return _PLACE.sub(filled, template)
