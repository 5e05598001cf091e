"""The parts of a step and of a start: their columns, names and looks, and advice against each loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from scalewise.analysis.analysis_spec import PROGRAM, STARTUP

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
