"""Causes of slow steps: for each point the part of its step that grew most, with one advice.

A step's ideal is the baseline's; with strong scaling it is divided by so many times the devices. A part is
named if it takes a tenth of the step beyond its ideal, and the interval of that lies above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from scalewise.analysis.analysis_spec import PROGRAM
from scalewise.analysis.statistics import ENOUGH_REPEATS, Interval, difference_of, mean_interval
from scalewise.analysis.steps import COLUMNS, COMMUNICATION, COMPUTE, JITTER, LOADER, STEP_PARTS, STRAGGLER
from scalewise.config.shape import count_devices, plural_of
from scalewise.plan.formatting import percent

NAMED_FROM = 0.1
"""Share of the step, or of a run's wall time, from which on a part is named."""

NAMES = {part.key: part.name for part in STEP_PARTS} | {COMPUTE: "slower computing"}
WAITS = (COMMUNICATION, LOADER, STRAGGLER, JITTER)
"""Parts in which a device waits: each run measures them by itself."""

ADVICE = {
    COMMUNICATION: "Exchange gradients less often: double {batch}, and check the accuracy. Or set "
    "accumulation_steps or communication_hook.",
    LOADER: "Load data with more CPUs (cpus_per_device), or use the resident loader.",
    STRAGGLER: "It is not the same rank in all runs. Look for other programs on the nodes, or request whole "
    "nodes.",
    JITTER: "Give all ranks equal work in each step, and look for other programs on their CPUs. A faster "
    "network does not help.",
    COMPUTE: "Give each {noun} more work in a step: double {batch}, and check the accuracy. Also check "
    "whether {nouns} share cores, memory or power.",
    "": "Double {batch}, which reduces most of this, and check the accuracy. Or use fewer {nouns}.",
}
OTHER_ADVICE = {
    (LOADER, "resident"): "Gather fewer and larger batches: double {batch}.",
    (LOADER, PROGRAM): "Load data with more CPUs (cpus_per_device), and as many workers of the program's "
    "DataLoader.",
    (COMMUNICATION, PROGRAM): "Exchange gradients less often: double {batch}, and check the accuracy. Or "
    "accumulate gradients under no_sync.",
}
"""Advice for a part that depends on the loader."""


@dataclass(frozen=True)
class Cause:
    """The part of a point's step that costs most of its speed.

    Args:
        part: A key of ``STEP_PARTS``; empty if only several parts together are large.
        share: Share of the step, 0 to 1; its bounds are NaN below three runs.
        rank: The rank that is the slowest in all runs; None if there is none, or for another part.
        host: The host of that rank, or the one whose ranks are all slow; None likewise.
        sentence: The cause in words.
        advice: Instruction against it.
    """

    devices: int
    part: str
    share: Interval
    rank: int | None
    host: str | None
    sentence: str
    advice: str


def find_causes(
    runs: pd.DataFrame, scaling: pd.DataFrame, mode: str = "strong", noun: str = "device"
) -> list[Cause]:
    """Return the cause of each point of a series that has one, fewest devices first.

    Args:
        runs: Runs of the series, as ``collect`` returns them; all completed ones must be comparable.
        scaling: Points of the series, as ``scaling_table`` returns them.
        mode: ``strong`` or ``weak`` scaling.
        noun: Name of a device.
    """
    batch = "global_batch_size" if mode == "strong" else "batch_size_per_device"
    nouns = plural_of(noun)
    words = {"mode": mode, "noun": noun, "nouns": nouns, "batch": batch}
    parts = _parts(runs[runs["outcome"] == "completed"])
    found = []
    for _, point in scaling.sort_values("devices").iterrows():
        here, base = (parts[parts["devices"] == point[name]] for name in ("devices", "baseline_devices"))
        if len(here) and (cause := _cause(here, base, words)) is not None:
            found.append(cause)
    return found


def cause_of_answer(causes: Sequence[Cause], chosen: int | None) -> Cause | None:
    """Return the cause at the chosen point, or at the next larger one that has one; None without any.

    Args:
        causes: Output of ``find_causes`` for one series.
        chosen: Chosen device count; None without an answer, for the largest that has one.
    """
    if chosen is None:
        return max(causes, key=lambda cause: cause.devices, default=None)
    beyond = [cause for cause in causes if cause.devices >= chosen]
    return min(beyond, key=lambda cause: cause.devices, default=None)


def difference_of_means(sample: Sequence[float], reference: Sequence[float]) -> Interval:
    """Return the mean of a sample less that of another, with Welch's interval.

    A reference of zeros is known, however few they are: one device waits for no other.

    Args:
        sample: One value for each run.
        reference: One value for each run.

    Returns:
        The interval; its bounds are NaN if one sample has fewer than three values.
    """
    known = reference if any(reference) else [0.0] * ENOUGH_REPEATS
    if min(len(sample), len(known)) < ENOUGH_REPEATS:
        return Interval(fmean(sample) - fmean(known), math.nan, math.nan, min(len(sample), len(known)))
    return difference_of(mean_interval(sample), mean_interval(known))


def _parts(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs whose steps are known in parts, with seconds for each of these."""
    seconds = runs.reindex(columns=[*COLUMNS.values()]).astype(float)
    seconds.columns = pd.Index([*COLUMNS])
    rest = ["devices", "nodes", "hosts", "loader", "slowest_rank", "slowest_host", "slow_host"]
    # the part has the name of the column with the kind of loader
    known = runs.reindex(columns=rest).rename(columns={"loader": "loader_kind"}).join(seconds)
    known = known[known[[COMPUTE, COMMUNICATION, STRAGGLER]].notna().all(axis=1)]
    if known[LOADER].isna().any():
        # in the computing of some runs, then, and comparable only if it is in that of all
        known[COMPUTE] += known[LOADER].fillna(0.0)
        known[LOADER] = 0.0
    # jitter that is unknown is in the communication
    known[JITTER] = known[JITTER].fillna(0.0)
    return known.assign(step=known[[*COLUMNS]].sum(axis=1))


def _cause(here: pd.DataFrame, base: pd.DataFrame, words: Mapping[str, str]) -> Cause | None:
    """Return the part that grew most, several small ones, or the longest wait; None if none is shown.

    Args:
        here: Output of ``_parts`` at a point.
        base: The same at its baseline; empty if unknown.
        words: Values of the braces in ``ADVICE``, and the ``mode`` of scaling.
    """
    devices = int(here["devices"].iloc[0])
    where = f"On {count_devices(devices, words['noun'])}"
    place = _slow_place(here)
    waits = {part: _share(here, part) for part in WAITS}
    total = Interval(0.0, 0.0, 0.0, 0)
    losses: dict[str, Interval] = {}
    if len(base) and devices != (fewest := int(base["devices"].iloc[0])):
        ideal = base[[*COLUMNS, "step"]] / (devices / fewest if words["mode"] == "strong" else 1)
        losses = {part: _share(here, part, ideal[part].tolist()) for part in COLUMNS}
        total = _share(here, "step", ideal["step"].tolist())
        if place is not None and len(place.runs) < len(here):
            losses[STRAGGLER] = _share(place.runs, STRAGGLER)
    if (part := _largest(losses)) is not None:
        share, text = losses[part], "{where}, {share} of each step is lost to {part}."
    elif _is_shown("step", total):
        part, share, text = "", total, "{where}, {share} of each step is lost, to no single part."
    elif (part := _largest(waits)) is not None:
        share, text = waits[part], "{where}, {part} takes {share} of each step."
        text += " The baseline waits alike: the efficiency does not show it." if losses else ""
    else:
        return None
    name = NAMES.get(part, "")
    advice = OTHER_ADVICE.get((part, str(here["loader_kind"].iloc[0])), ADVICE[part]).format(**words)
    if part != STRAGGLER or place is None:
        return Cause(devices, part, share, None, None, _said(text, where, share, name), advice)
    name = f"waiting for {place}"
    advice = f"Look for other programs on {place.host or 'its nodes'}, and at the rank's share of the work."
    if here["nodes"].max() > 1 and place.host is not None:
        advice = f"Leave {place.host} out, or ask the site."
    text = _said(text, where, share, name)
    return Cause(devices, part, share, place.rank, place.host, text, advice)


def _share(runs: pd.DataFrame, part: str, ideal: Sequence[float] = (0.0,)) -> Interval:
    """Return the share of the step that a part takes beyond its ideal."""
    return difference_of_means(runs[part].tolist(), ideal).scaled(1 / float(runs["step"].mean()))


def _is_shown(part: str, share: Interval) -> bool:
    """Return whether a share is large and shown; too few runs show what they waited for, and no more."""
    is_sure = part in WAITS if math.isnan(share.low) else share.low > 0
    return share.estimate >= NAMED_FROM and is_sure


def _largest(shares: dict[str, Interval]) -> str | None:
    shown = {part: share.estimate for part, share in shares.items() if _is_shown(part, share)}
    return max(shown, key=shown.__getitem__, default=None)


class _Place(NamedTuple):
    """A slow rank, or host if ``rank`` is None, and the runs that it takes part in."""

    rank: int | None
    host: str | None
    runs: pd.DataFrame

    def __str__(self) -> str:
        if self.rank is None:
            return f"node {self.host}"
        return f"rank {self.rank}{f' on {self.host}' if self.host else ''}"


def _slow_place(runs: pd.DataFrame) -> _Place | None:
    """Return the slow rank or host of a point's runs; None if it differs between them.

    A host is slow if all its ranks, and no others, are slow in each of two runs or more that it takes part
    in; a rank if it is the slowest in all runs.
    """
    for host in sorted(set(runs["slow_host"].dropna()) - {""}):
        taken = runs[[host in str(hosts).split(", ") for hosts in runs["hosts"]]]
        if len(taken) > 1 and (taken["slow_host"] == host).all():
            return _Place(None, str(host), taken)
    if runs["slowest_rank"].notna().all() and runs["slowest_rank"].nunique() == 1:
        hosts = runs["slowest_host"].dropna().unique()
        return _Place(int(runs["slowest_rank"].iloc[0]), str(hosts[0]) if len(hosts) == 1 else None, runs)
    return None


def _said(text: str, where: str, share: Interval, name: str) -> str:
    """Return a sentence with a share such as ``21 % (7 to 36 %)``, without an interval that is unknown."""
    low, high = (percent(min(max(end, 0.0), 1.0), 0) for end in (share.low, share.high))
    is_known = not math.isnan(share.low) and low != high
    bounds = f" ({low.removesuffix(' %')} to {high})" if is_known else ""
    return text.format(where=where, share=f"{percent(share.estimate, 0)}{bounds}", part=name)
