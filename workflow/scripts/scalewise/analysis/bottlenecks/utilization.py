"""Utilization of devices, and the likely cause if it is low. Pure functions of numbers and tables."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from scalewise.analysis.bottlenecks.losses import NAMED_FROM, waiting_shares
from scalewise.analysis.bottlenecks.time_parts import COMMUNICATION, LOADER, advice_against
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import MAX_PLACES, percent
from scalewise.plan.runs.run_definition import NO_OPTIONS

BUSY_ENOUGH = 0.5
"""Utilization below which a point is flagged."""

LAUNCH = "launch"
"""Idle time that neither wait explains: the program runs between short pieces of work."""
UNMEASURED, NO_LOADER, NOTHING = "communication unknown", "wait for data unknown", "both unknown"

CAUSES = {
    LOADER: "They waited for data.",
    COMMUNICATION: "They waited for communication.",
    LAUNCH: "Most likely the pieces of work are too short. Raise the batch size per device, or compile the "
    "model, and see whether other programs use the CPUs.",
    UNMEASURED: "They did not wait for data; communication was not measured. Compare with one device, and "
    "raise the batch size per device.",
    NO_LOADER: "They did not wait for communication; the wait for data is unknown. See whether the program "
    "reads its data ahead, and raise the batch size per device.",
    NOTHING: "What they waited for is unknown. See whether the program reads its data ahead, and compare "
    "with one device.",
}
"""Causes of idle devices; advice against the first two is that of the parts of a step."""


def likely_cause(
    utilization: float, loader_wait_fraction: float | None, communication_fraction: float | None
) -> str:
    """Return the likely main cause of a device's idle time.

    The time in which it was idle is shared out: what the loader and the communication do not explain is
    host overhead between kernels. NCCL's kernels count as busy, so on GPUs a wait for other devices shows
    as communication only if the collectives run on the host.

    Args:
        utilization: Share of the training in which the device was busy.
        loader_wait_fraction: Share of the step time spent waiting for data; None or NaN if unknown: no cause
            is then found in it, and none by what it leaves.
        communication_fraction: Share of the step time spent waiting for gradients; None or NaN if it was not
            measured.

    Returns:
        A key of ``CAUSES``.
    """
    known = communication_fraction is not None and not pd.isna(communication_fraction)
    communication = communication_fraction if known and communication_fraction is not None else 0.0
    if loader_wait_fraction is None or pd.isna(loader_wait_fraction):
        if communication >= 1 - utilization - communication:
            return COMMUNICATION
        return NO_LOADER if known else NOTHING
    rest = 1 - utilization - loader_wait_fraction - communication
    if loader_wait_fraction >= max(communication, rest):
        return LOADER
    if communication >= rest:
        return COMMUNICATION
    return LAUNCH if known else UNMEASURED


def cause_text(cause: str, loader: str) -> str:
    """Return what devices waited for, and what to do.

    Args:
        cause: A key of ``CAUSES``.
        loader: ``resident``, ``workers``, or ``program`` for one of the program's own.
    """
    if cause in {LOADER, COMMUNICATION}:
        return f"{CAUSES[cause]} {advice_against(cause, loader).text}"
    return CAUSES[cause]


def cause_at(point: pd.Series) -> str:
    """Return the likely cause at a point of a scaling table; empty if its devices were busy, or if unknown.

    It is also empty if the split of the step names what the devices waited for: a guess next to a measurement
    helps no reader.
    """
    if pd.isna(point["mean_utilization"]) or point["mean_utilization"] >= BUSY_ENOUGH:
        return ""
    waits = waiting_shares(point)
    if waits and point["devices"] > point.get("baseline_devices", point["devices"]):
        return ""  # what its computing loses against the baseline is named there too
    if waits and pd.notna(point["loader_wait_fraction"]):
        return "" if max(waits.values()) >= NAMED_FROM else CAUSES[LAUNCH]
    communication = point["communication_fraction"]
    # one device waits for no other
    known = 0.0 if int(point["devices"]) == 1 and pd.isna(communication) else communication
    cause = likely_cause(point["mean_utilization"], point["loader_wait_fraction"], known)
    return cause_text(cause, str(point["loader"]))


def flags(scaling: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each cause that kept devices waiting.

    Args:
        scaling: Output of ``scaling_table``.
    """
    causes = scaling.apply(cause_at, axis=1)
    for cause, points in scaling[causes != ""].groupby(causes[causes != ""], sort=False):
        places = [
            f"{percent(1 - point['mean_utilization'], 0)} on {count_devices(int(point['devices']))}"
            f"{'' if point['series'] == NO_OPTIONS else ' with ' + point['series']}"
            for _, point in points.iterrows()
        ]
        more = len(places) - MAX_PLACES
        named = ", ".join(places[:MAX_PLACES]) + (f" and at {more} more points" if more > 0 else "")
        yield f"Devices were idle for much of the training: {named}. {cause}"
