"""Cautions on device counts that cannot be told apart from nodes or time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pandas as pd

from scalewise.analysis.blocks import SESSION_GAP_HOURS, Separation, separable, verified_blocks
from scalewise.analysis.blocks import sessions as sessions_of
from scalewise.analysis.comparison.comparable_runs import baseline_devices, comparable, reference_fingerprint
from scalewise.plan.formatting import pluralize, point_text

FURTHER_REPEATS = 3
"""Repeats to add where a device count was made at another time: as many as a test at 5 % needs."""
LISTED = 4
"""Most names in a sentence; others are counted."""


def sessions(runs: pd.DataFrame) -> pd.Series:
    """Return the session of each run, counted from 1 in the order of time; missing if its start is unknown.

    Args:
        runs: All runs that share a time line, with ``started_at`` in ISO 8601 and, where it is known,
            ``wall_seconds``.
    """
    found = sessions_of(timed(runs))
    return found.where(found > 0).astype("Int64")


def with_blocks(done: pd.DataFrame) -> pd.DataFrame:
    """Return completed runs with ``block``, their verified block or 0, and ``started``, in seconds."""
    known = timed(done)
    return done.assign(block=verified_blocks(known), started=known["started"])


def timed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with ``started`` and ``ended`` in seconds; published figures know neither."""
    known = runs.reindex(columns=["devices", "repeat", "hosts", "started_at", "wall_seconds"])
    started = pd.to_datetime(known["started_at"], utc=True, format="ISO8601", errors="coerce")
    seconds = (started - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    # of a resumed run the wall time is unknown
    walls = pd.to_numeric(known["wall_seconds"], errors="coerce").fillna(0.0)
    return known.assign(started=seconds, ended=seconds + walls)


def confounding_sentences(runs: pd.DataFrame) -> list[str]:
    """Return a sentence for each way in which nodes or time may explain a speedup, with its fix.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    compared = [(series, points, base, _separation(points, base)) for series, points, base in _compared(runs)]
    nodes, days, order = [], [], []
    for series, points, base, found in compared:
        if found.other_nodes:
            nodes.append(_shown(series, points, (base, *found.other_nodes), _nodes))
        if found.other_days:
            days.append(_shown(series, points, (base, *found.other_days), _start))
        elif not found.in_time:
            order.append(_order(series, found))
    sentences = []
    if nodes:
        sentences.append(
            f"Device count and nodes cannot be told apart ({nodes[0]}{_others(nodes)}): how nodes "
            "differ counts as scaling, and intervals do not hold it. Let all runs draw from the same few "
            "nodes (slurm.constraint, slurm.reservation, or --exclude in slurm.extra of the site file), or "
            "raise repeats when other nodes are free."
        )
    if days:
        repeats = int(runs["repeat"].max()) + FURTHER_REPEATS
        sentences.append(
            f"Device count and time cannot be told apart ({days[0]}{_others(days)}; UTC): the runs "
            f"were made in sessions more than {SESSION_GAP_HOURS:.0f} hours apart, and what changed on the "
            f"machine in between counts as scaling. Raise repeats to {repeats}: the new runs of all device "
            "counts are then made together, and intervals compare within sessions. `repeats: {min, max}` "
            "measures the baseline again by itself."
        )
    elif order:
        sentences.append(
            f"Device count and time cannot be told apart ({order[0]}{_others(order)}): what changed on "
            "the machine during the study counts as scaling. Add repeats while the queue is short: the runs "
            "of all device counts then take turns."
        )
    return sentences


def baselines_of_other_sessions(runs: pd.DataFrame) -> set[tuple[str, int]]:
    """Return series and devices of the baselines that share no session with some count.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    return {
        (series, base) for series, points, base in _compared(runs) if _separation(points, base).other_days
    }


def _separation(points: dict[int, pd.DataFrame], base: int) -> Separation:
    joined = pd.concat(points.values())
    found = timed(joined)
    return separable(found if joined.get("hosts") is not None else found.drop(columns="hosts"), base)


def _shown(
    series: str,
    points: dict[int, pd.DataFrame],
    counts: Sequence[int],
    text: Callable[[pd.DataFrame], str],
) -> str:
    return "; ".join(f"{point_text(devices, series)}: {text(points[devices])}" for devices in counts)


def _nodes(point: pd.DataFrame) -> str:
    """The nodes of a point's runs, the most used first."""
    used = pd.Series([host for names in point["hosts"].dropna() for host in str(names).split(", ")])
    names = used.value_counts().index
    shown = ", ".join(map(str, names[:LISTED]))
    more = "" if len(names) <= LISTED else f" and {len(names) - LISTED} more"
    return f"{shown}{more} in {pluralize(str(len(point)), 'run')}"


def _start(point: pd.DataFrame) -> str:
    return f"from {pd.to_datetime(point['started_at'], utc=True, format='ISO8601').min():%Y-%m-%d %H:%M} on"


def _order(series: str, found: Separation) -> str:
    """Return how the starts follow from the device counts, in words."""
    if found.ordered:
        return f"{'small' if found.order > 0 else 'large'} device counts ran first"
    return f"all runs on {point_text(found.apart[0], series)} started before or after those on other counts"


def _others(affected: Sequence[str]) -> str:
    """Number of affected series beside the first one, in words; empty where there is none."""
    return f"; likewise in {len(affected) - 1} other series" if len(affected) > 1 else ""


def _compared(runs: pd.DataFrame) -> Iterator[tuple[str, dict[int, pd.DataFrame], int]]:
    """Yield each series with the runs that its speedups join, by device count, and its baseline's devices."""
    for series, planned in runs.groupby("series", sort=False):
        base = baseline_devices(planned)
        done = planned[planned["outcome"] == "completed"]
        joined = comparable(done, reference_fingerprint(done, base))
        points = {int(point["devices"].iloc[0]): point for _, point in joined.groupby("devices")}
        if base in points and len(points) > 1:
            yield str(series), points, base
