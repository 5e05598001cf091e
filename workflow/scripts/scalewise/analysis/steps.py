"""The parts of a run's mean training step, from the records of its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import pandas as pd

from scalewise.records import Window

COMPUTE, COMMUNICATION, LOADER = "compute", "communication", "loader"
STRAGGLER, JITTER = "straggler", "jitter"


@dataclass(frozen=True)
class Part:
    """A part of a bar of time.

    Args:
        key: Name in this package.
        column: Column of runs.csv and scaling.csv with its seconds; empty if it has none.
        name: Name that readers see.
        colour: Fill, as ``#rrggbb``.
    """

    key: str
    column: str
    name: str
    colour: str


STEP_PARTS = (
    Part(COMPUTE, "compute_seconds", "computing", "#0173b2"),
    Part(COMMUNICATION, "communication_seconds", "communication", "#de8f05"),
    Part(LOADER, "loader_seconds", "waiting for data", "#029e73"),
    Part(STRAGGLER, "straggler_seconds", "waiting for one slow rank", "#cc78bc"),
    Part(JITTER, "jitter_seconds", "waiting for uneven ranks", "#ca9161"),
)
"""A step is made of these, from the bottom of a bar to its top. The colours are seaborn's ``colorblind``."""

UNKNOWN = Part("unknown", "", "not measured", "#e0e0e0")

COLUMNS = {part.key: part.column for part in STEP_PARTS}

STEP_SECONDS = ("step_seconds", *COLUMNS.values())
"""A step's time and its parts, in seconds: the second to the sixth sum to the first. The communication
contains the jitter if that is unknown."""

STEP_COLUMNS = (*STEP_SECONDS, "slowest_rank", "slowest_host", "slow_host")
"""Columns of runs.csv on a run's steps."""

NAN = float("nan")


def split(windows: Sequence[Window], ranks: pd.DataFrame) -> dict[str, Any]:
    """Return the mean measured step of a run and its parts, in seconds.

    - communication: time in the exchange of gradients of the rank whose exchange is shortest, the slowest
      rank, without the jitter.
    - jitter: time that it waits there for ranks that are behind it in single steps.
    - loader: time that it waits for its batches; computing contains it if unknown.
    - compute: the rest of the step, of that rank or of the median of the others, whichever is less.
    - straggler: time that the slowest rank computes beyond that.

    The slow host is the one whose ranks, and no others, lie beyond the widest gap between the ranks'
    computing times.

    Args:
        windows: All windows of the run, warm-up included.
        ranks: Contents of ranks.csv.

    Returns:
        ``STEP_COLUMNS``; NaN or None for what is unknown, as is the communication of fsdp.
    """
    found: dict[str, Any] = dict.fromkeys(STEP_COLUMNS, NAN) | dict.fromkeys(("slowest_host", "slow_host"))
    measured = [window for window in windows if not window.warmup]
    steps = sum(window.steps for window in measured)
    if not steps:
        return found
    step = sum(window.seconds for window in measured) / steps
    found["step_seconds"] = step
    if ranks.empty:
        return found
    waits = (ranks["loader_wait_seconds"].astype(float) / steps).clip(upper=step)
    loader = waits if waits.notna().all() else 0.0 * ranks["rank"]
    found["loader_seconds"] = waits.max(skipna=False)
    exchanged = _of_ranks(ranks, "communication_seconds_per_step")
    if exchanged.isna().any():
        return found
    communication = exchanged.clip(upper=step - loader)
    slowest = int(communication.argmin())
    compute = (step - loader - communication).tolist()
    others = compute[:slowest] + compute[slowest + 1 :]
    fair = min(median(others), compute[slowest]) if others else compute[slowest]
    jitter = min(_of_ranks(ranks, "waiting_seconds_per_step")[slowest], communication[slowest])
    found |= {
        "compute_seconds": fair,
        "communication_seconds": communication[slowest] - (0.0 if math.isnan(jitter) else jitter),
        "loader_seconds": waits[slowest] if waits.notna().all() else NAN,
        "straggler_seconds": compute[slowest] - fair,
        "jitter_seconds": jitter,
    }
    if others:
        row = ranks.iloc[slowest]
        found |= {"slowest_rank": int(row["rank"]), "slowest_host": str(row["host"])}
        found["slow_host"] = _slow_host(compute, [str(host) for host in ranks["host"]])
    return found


def _of_ranks(ranks: pd.DataFrame, column: str) -> pd.Series:
    """Return the seconds of a step by rank; a single one exchanges nothing and waits for none."""
    if len(ranks) == 1:
        return pd.Series([0.0])
    return ranks[column].astype(float)


def _slow_host(compute: Sequence[float], hosts: Sequence[str]) -> str | None:
    """Return the host whose ranks, and no others, lie above the widest gap; None if there is none.

    Args:
        compute: Seconds of each rank.
        hosts: Host of each rank.
    """
    order = sorted(range(len(compute)), key=compute.__getitem__)
    gaps = [compute[after] - compute[before] for before, after in pairwise(order)]
    slow = order[gaps.index(max(gaps)) + 1 :]
    host = hosts[slow[0]]
    whole = {rank for rank, other in enumerate(hosts) if other == host}
    return host if set(slow) == whole and len(whole) < len(hosts) else None
