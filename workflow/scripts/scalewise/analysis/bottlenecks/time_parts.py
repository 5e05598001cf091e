"""The parts of a step and of a start: names, looks, how records split into them, and advice against each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import PROGRAM, STARTUP
from scalewise.records import Window

COMPUTE, COMMUNICATION, LOADER = "compute", "communication", "loader"
STRAGGLER, JITTER = "straggler", "jitter"


@dataclass(frozen=True)
class Part:
    """A part of a bar of time.

    Args:
        key: Name in decision.json and in the style sheet; of a step's part also the cause of its loss.
        column: Column of runs.csv and scaling.csv with its seconds; empty if it has none.
        name: Name that readers see.
        colour: Fill, the same in light and dark, as ``#rrggbb``.
        hatch: Matplotlib's pattern, by which parts differ without colours too.
    """

    key: str
    column: str
    name: str
    colour: str
    hatch: str


STEP_PARTS = (
    Part(COMPUTE, "compute_seconds", "computing", "#0173b2", ""),
    Part(COMMUNICATION, "communication_seconds", "communication", "#de8f05", "////"),
    Part(LOADER, "loader_seconds", "waiting for data", "#029e73", "...."),
    Part(STRAGGLER, "straggler_seconds", "one slow rank", "#cc78bc", "xxxx"),
    Part(JITTER, "jitter_seconds", "uneven ranks", "#ca9161", "----"),
)
"""A step is made of these, from the bottom of a bar to its top. The colours are seaborn's ``colorblind``."""

EXCESS = Part("excess", "", "slower computing", "#56b4e9", "\\\\\\\\")
"""The computing that ideal scaling would not have."""
UNKNOWN = Part("unknown", "", "not measured", "#e0e0e0", "\\\\\\\\")

COMPUTE_WITH_LOADER = "computing and waiting for data"
"""Name of the computing if the wait for data is unknown."""

COLUMNS = {part.key: part.column for part in STEP_PARTS}
LOSSES = {part.key: part.name for part in STEP_PARTS} | {
    COMPUTE: EXCESS.name,
    STRAGGLER: "waiting for one slow rank",
    JITTER: "waiting for uneven ranks",
}
"""Names of the losses to each part, in sentences."""


# --- advice -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """Advice against a loss.

    Args:
        text: Instruction.
        key: Key of the experiment whose value helps if it is doubled: ``batch`` for the batch size that the
            mode of scaling has; empty if no key helps.
    """

    text: str
    key: str = ""


LARGER_BATCH = "batch"
CPUS = "cpus_per_device"

ADVICE = {
    COMMUNICATION: Advice(
        "Exchange gradients less often: double the batch size, and check the accuracy. Or set "
        "accumulation_steps or communication_hook.",
        LARGER_BATCH,
    ),
    LOADER: Advice("Load data with more CPUs, or use the resident loader.", CPUS),
    STRAGGLER: Advice("Check what else runs on the hosts of the slow ranks, or request whole nodes."),
    JITTER: Advice(
        "Give all ranks equal work in each step, and look for other programs on their CPUs. A faster network "
        "does not help."
    ),
    COMPUTE: Advice(
        "Give each device more work in a step: double the batch size, and check the accuracy. Also check "
        "whether devices share cores, memory or power.",
        LARGER_BATCH,
    ),
}
RESIDENT_LOADER = Advice("Gather fewer and larger batches: double the batch size.", LARGER_BATCH)
SEVERAL = Advice("A larger batch size reduces most of this. Or use fewer devices.", LARGER_BATCH)
OF_PROGRAMS = {
    COMMUNICATION: Advice(
        "Exchange gradients less often: double the batch size, and check the accuracy. Or accumulate "
        "gradients under no_sync.",
        LARGER_BATCH,
    ),
    LOADER: Advice("Load data with more CPUs, and as many workers of the program's DataLoader.", CPUS),
}
"""Advice for a program, which has none of the built-in options."""


def advice_against(cause: str, loader: str) -> Advice:
    """Return the advice against a loss.

    Args:
        cause: A key of ``STEP_PARTS``.
        loader: ``resident``, ``workers`` or ``program``.
    """
    if cause == LOADER and loader == "resident":
        return RESIDENT_LOADER
    return OF_PROGRAMS.get(cause, ADVICE[cause]) if loader == PROGRAM else ADVICE[cause]


# --- start-up -----------------------------------------------------------------------------------------

PREPARATION = "preparation_seconds"
START_PARTS: Mapping[str, str] = {
    column: column.removesuffix("_seconds").replace("_", " ") for column in STARTUP
}
"""A start is made of these, in the order in which they come; a program has a preparation."""


def known_start_parts(runs: pd.DataFrame) -> dict[str, str]:
    """Return the parts of a start that the runs know, by their columns.

    Args:
        runs: Contents of runs.csv.
    """
    known = [column for column in STARTUP if column in runs.columns and runs[column].notna().any()]
    if PREPARATION not in known:
        known = [column for column in STARTUP if column != PREPARATION]
    return {column: START_PARTS[column] for column in known}


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
