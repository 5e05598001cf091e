"""Split of a step's time: computing, communication, waiting for data, one slow rank, uneven ranks.

A step is done when its last rank has done it, and ranks that are ahead wait inside their own exchange of
gradients. The rank for which the exchange takes least over all steps is the slowest one. What it computes
longer than the others is what they lose by waiting for it. In a single step another rank may be the last:
what even the slowest rank waits for such ranks is jitter, and the rest of its exchange is communication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import pandas as pd

from scalewise.records import Window

STEP_SECONDS = (
    "step_seconds", "compute_seconds", "communication_seconds", "loader_seconds", "straggler_seconds",
    "jitter_seconds", "crosscheck_communication_seconds",
)  # fmt: skip
"""A step's time and its parts in seconds: the second to the sixth sum to the first. Where the jitter
is not known, it is in the communication."""

STEP_COLUMNS = (*STEP_SECONDS, "slowest_rank", "slowest_host", "slow_host")
"""The columns of runs.csv that tell of a run's steps."""

NAN = float("nan")


def split(windows: Sequence[Window], ranks: pd.DataFrame) -> dict[str, Any]:
    """The mean measured step of a run and its parts, in seconds.

    - communication: of the rank whose exchange took least, the slowest, as DDP counted it beside its
      backward pass, less the jitter.
    - jitter: what that rank waited in its exchange for ranks that were behind it in single steps.
    - loader: what that rank waited for its batches; not known where a program reads its data by itself.
    - compute: the rest of the step, of the slowest rank or of the median of the others, whichever is less;
      it holds the wait for data where that is not known.
    - straggler: what the slowest rank computes beyond that.
    - crosscheck: a pass with gradients exchanged less one without; it should be as long as the
      communication, or hold some of the jitter too.

    The slow host is the one whose ranks, and no others, lie beyond the widest gap between the ranks'
    computing times.

    Where nobody counted the communication (fsdp) or the ranks are not known, only what is known is given
    and the rest is NaN.

    Args:
        windows: All windows of the run, warm-up included.
        ranks: Contents of ranks.csv; a program's may have fewer columns.

    Returns:
        ``STEP_COLUMNS``.
    """
    found: dict[str, Any] = dict.fromkeys(STEP_COLUMNS, NAN) | dict.fromkeys(("slowest_host", "slow_host"))
    measured = [window for window in windows if not window.warmup]
    if not measured:
        return found
    steps = sum(window.steps for window in measured)
    step_seconds = sum(window.seconds for window in measured) / steps
    found["step_seconds"] = step_seconds
    if ranks.empty:
        return found
    waits = [float(seconds) / steps for seconds in ranks["loader_wait_seconds"]]
    loader_known = not any(map(math.isnan, waits))
    loader = [min(seconds, step_seconds) if loader_known else 0.0 for seconds in waits]
    found["loader_seconds"] = max(loader) if loader_known else NAN
    counted = _exchanged(ranks)
    if any(map(math.isnan, counted)):
        return found
    communication = [
        min(seconds, step_seconds - waited) for seconds, waited in zip(counted, loader, strict=True)
    ]
    slowest = communication.index(min(communication))
    compute = [step_seconds - waited - seconds for waited, seconds in zip(loader, communication, strict=True)]
    others = compute[:slowest] + compute[slowest + 1 :]
    fair = min(median(others), compute[slowest]) if others else compute[slowest]
    waited = min(_waited(ranks)[slowest], communication[slowest])
    found |= {
        "compute_seconds": fair,
        "communication_seconds": communication[slowest] - (0.0 if math.isnan(waited) else waited),
        "loader_seconds": loader[slowest] if loader_known else NAN,
        "straggler_seconds": compute[slowest] - fair,
        "jitter_seconds": waited,
        "crosscheck_communication_seconds": _crosscheck(ranks),
    }
    if others:
        row = ranks.iloc[slowest]
        found |= {"slowest_rank": int(row["rank"]), "slowest_host": str(row["host"])}
        found["slow_host"] = _slow_host(compute, [str(host) for host in ranks["host"]])
    return found


def _slow_host(compute: Sequence[float], hosts: Sequence[str]) -> str | None:
    """The host whose ranks, and no others, lie above the widest gap; None where there is none.

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


def _exchanged(ranks: pd.DataFrame) -> list[float]:
    """Seconds of a step in each rank's exchange; one rank has nobody to exchange with."""
    if len(ranks) == 1:
        return [0.0]
    column = "communication_seconds_per_step"
    return [float(seconds) for seconds in ranks[column]] if column in ranks else [NAN] * len(ranks)


def _waited(ranks: pd.DataFrame) -> list[float]:
    """Seconds of a step in which each rank waited inside its exchange for the last rank of that step."""
    if len(ranks) == 1:
        return [0.0]
    column = "waiting_seconds_per_step"
    return [float(seconds) for seconds in ranks[column]] if column in ranks else [NAN] * len(ranks)


def _crosscheck(ranks: pd.DataFrame) -> float:
    columns = ["exchanged_pass_seconds", "local_pass_seconds"]
    if any(column not in ranks for column in columns):
        return NAN
    exchanged, local = (ranks[column].astype(float) for column in columns)
    least = float((exchanged - local).min(skipna=False))
    return least if math.isnan(least) else max(least, 0.0)
