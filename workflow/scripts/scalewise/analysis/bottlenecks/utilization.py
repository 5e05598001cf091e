"""Utilization of devices, and likely causes where it is low. Pure functions of numbers and tables."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from scalewise.analysis.analysis_spec import PROGRAM
from scalewise.analysis.bottlenecks.losses import NAMED_FROM, waiting_shares
from scalewise.analysis.formatting import MAX_PLACES, percent
from scalewise.plan.config.shape import count_devices
from scalewise.plan.runs.runs import NO_OPTIONS

BUSY_ENOUGH = 0.5
"""Utilization below which a point is flagged."""

ADVICE = {
    "loader": "Loader-bound: raise cpus_per_device or use the resident loader.",
    "resident loader": "Loader-bound: raise the batch size per device, so that fewer batches are gathered.",
    "communication": "Communication-bound: raise the batch size per device or accumulation_steps, set "
    "communication_hook, or use fewer devices.",
    "launch": "Launch-bound, by elimination: the devices waited for the program between short pieces of "
    "work. Raise the batch size per device or set compile; on CPUs, look for other programs that take them, "
    "or lower cpus_per_device.",
    "unknown": "Not loader-bound; communication was not measured. Raise the batch size per device, and "
    "compare with one device.",
    "no loader": "Not communication-bound. How long they wait for data is not known, nor what else keeps "
    "them: see whether the program reads its data ahead, raise the batch size per device, or use "
    "torch.compile.",
    "nothing known": "Loader-bound, communication-bound or neither: both waits are unknown. See whether the "
    "program reads its data ahead, raise the batch size per device, and compare with one device.",
    "loader of a program": "Loader-bound: raise cpus_per_device, and with it the workers of the program's "
    "DataLoader.",
    "communication of a program": "Communication-bound: raise the batch size per device, exchange gradients "
    "in fewer passes (accumulation under no_sync), or use fewer devices.",
    "launch of a program": "Launch-bound, by elimination: the devices waited for the program between short "
    "pieces of work. Raise the batch size per device or use torch.compile; on CPUs, look for other programs "
    "that take them.",
}
"""Likely cause -> what it is called and what to do."""


def likely_cause(
    utilization: float,
    loader_wait_fraction: float | None,
    communication_fraction: float | None,
    loader: str = "workers",
) -> str:
    """Name the likely main cause of a device's idle time, with advice.

    The time in which it was idle is shared out: what the loader and the communication do not explain is
    host overhead between kernels. NCCL's kernels count as busy, so on GPUs a wait for other devices shows
    as communication only where the collectives run on the host.

    Args:
        utilization: Share of the training in which the device was busy.
        loader_wait_fraction: Share of the step time spent waiting for data; None or NaN where nobody could
            say: no cause is then found in it, and none by what it leaves.
        communication_fraction: Share of the step time spent waiting for gradients; None or NaN where it
            was not measured.
        loader: ``resident``, ``workers``, or ``program`` for one of the program's own.

    Returns:
        One of the values of ``ADVICE``.
    """
    known = communication_fraction is not None and not pd.isna(communication_fraction)
    communication = communication_fraction if known and communication_fraction is not None else 0.0
    of = " of a program" if loader == PROGRAM else ""
    if loader_wait_fraction is None or pd.isna(loader_wait_fraction):
        if communication >= 1 - utilization - communication:
            return ADVICE[f"communication{of}"]
        return ADVICE["no loader" if known else "nothing known"]
    rest = 1 - utilization - loader_wait_fraction - communication
    if loader_wait_fraction >= max(communication, rest):
        return ADVICE["resident loader" if loader == "resident" else f"loader{of}"]
    if communication >= rest:
        return ADVICE[f"communication{of}"]
    return ADVICE[f"launch{of}" if known else "unknown"]


def cause_at(point: pd.Series) -> str:
    """The likely cause of a point of a scaling table; empty where its devices were busy, or nobody knows.

    It is also empty where the split of the step names what the devices waited for: ``limits`` says it then,
    and a guess beside a measurement helps nobody.
    """
    if pd.isna(point["mean_utilization"]) or point["mean_utilization"] >= BUSY_ENOUGH:
        return ""
    waits = waiting_shares(point)
    if waits and point["devices"] > point.get("baseline_devices", point["devices"]):
        return ""  # what its computing loses against the baseline is named there too
    if waits and pd.notna(point["loader_wait_fraction"]):
        launch = ADVICE["launch of a program" if point["loader"] == PROGRAM else "launch"]
        return "" if max(waits.values()) >= NAMED_FROM else launch
    communication = point["communication_fraction"]
    # one device has nobody to wait for
    known = 0.0 if int(point["devices"]) == 1 and pd.isna(communication) else communication
    return likely_cause(point["mean_utilization"], point["loader_wait_fraction"], known, str(point["loader"]))


def flags(scaling: pd.DataFrame) -> Iterator[str]:
    """A sentence for each cause that kept devices waiting.

    Args:
        scaling: Output of ``scaling_table``.
    """
    causes = scaling.apply(cause_at, axis=1)
    for cause, points in scaling[causes != ""].groupby(causes[causes != ""], sort=False):
        places = [
            f"{_series(point)}{count_devices(int(point['devices']))} "
            f"({percent(point['mean_utilization'], 0)})"
            for _, point in points.iterrows()
        ]
        more = len(places) - MAX_PLACES
        named = ", ".join(places[:MAX_PLACES]) + (f" and {more} more points" if more > 0 else "")
        yield f"Busy less than {percent(BUSY_ENOUGH, 0)} of the training: {named}. {cause}"


def _series(point: pd.Series) -> str:
    return "" if point["series"] == NO_OPTIONS else f"{point['series']} on "
