"""Blocks of runs that were made side by side, and whether time, nodes and device count are separable.

A study submits its runs in blocks: each repeat of all points, in shuffled order. A queue may start them in
another order, so blocks are verified by the times at which runs started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

SESSION_GAP_HOURS = 6.0
"""Pause after which runs belong to another session. Load, heat and network of a shared machine follow the
day, of which this is a quarter; what waits for a queue or over lunch is one session still."""

ORDERED = 0.7
"""Least correlation of the ranks of starts and device counts with which the two are not separable. Shuffled
blocks of 2 repeats or more give about 0.5 at most; below it the intervals hold a steady drift."""

OVERLAP_SECONDS = 1.0
"""Least time that two runs share a node: clocks of nodes differ."""

HOST_VARIANCE_RATIO = 9.0
"""Least ratio of what nodes do to a speedup and what its interval holds of it: a third of the width is left
where nodes alone differ. Nodes drawn at random give 1 on average. In simulated studies of four device counts
they give more than this, by chance and truly, in 6 % at 3 repeats on 2 nodes, 3 % at 3 on 4 nodes, 0.2 % at 6
on 4 nodes and in none on 16."""


def sessions(runs: pd.DataFrame) -> pd.Series:
    """Return the session of each run, counted from 1 in the order of time; 0 if its start is unknown.

    A session ends where no run continues and none starts for ``SESSION_GAP_HOURS``.

    Args:
        runs: All runs that share a time line, with ``started`` and ``ended`` in seconds; the end may be NaN.
    """
    known = runs[["started", "ended"]].astype(float).reset_index(drop=True).sort_values("started")
    # a run may start before another one and continue after it
    busy_until = known["ended"].fillna(known["started"]).cummax().shift()
    found = ((known["started"] - busy_until) > SESSION_GAP_HOURS * 3600).cumsum() + 1
    numbers = found.where(known["started"].notna(), 0).astype(int).sort_index()
    return numbers.set_axis(runs.index).rename("session")


def verified_blocks(runs: pd.DataFrame) -> pd.Series:
    """Return the verified block of each run, counted from 1; 0 for none.

    The runs of one repeat in one session are a block if all of them started before any run of the next
    block, and after all of the one before. A repeat that interleaves with another one is none.

    Args:
        runs: Completed runs of an experiment on one partition: ``repeat``, ``started`` and ``ended``.
    """
    keys = ["session", "repeat"]
    known = runs.assign(session=sessions(runs).to_numpy())[[*keys, "started"]]
    spans = known[known["session"] > 0].groupby(keys)["started"].agg(["min", "max"])
    spans = spans.sort_values(["min", "max"])
    first, last = spans["min"].to_numpy(float), spans["max"].to_numpy(float)
    # a block interleaves if an earlier one still starts runs, or if it does so after a later one began
    before = np.concatenate([[-np.inf], np.maximum.accumulate(last)[:-1]])
    after = np.concatenate([first[1:], [np.inf]])
    alone = (first > before) & (last < after)
    numbers = {key: number for number, key in enumerate(spans.index[alone], start=1)}
    found = [numbers.get(key, 0) for key in zip(known["session"], known["repeat"], strict=True)]
    return pd.Series(found, index=runs.index, name="block")


def with_blocks(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with their start and end in seconds, their session and their verified block.

    Args:
        runs: Runs of an experiment on one partition: ``started_at`` in ISO 8601 and ``wall_seconds``.
    """
    started = pd.to_datetime(runs["started_at"], utc=True, format="ISO8601", errors="coerce")
    seconds = (started - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    # of a resumed run the wall time is unknown
    timed = runs.assign(started=seconds, ended=seconds + runs["wall_seconds"].fillna(0.0))
    done = timed[timed["outcome"] == "completed"]
    if done.empty:
        return timed.assign(session=0, block=0)
    found = {"session": sessions(done), "block": verified_blocks(done)}
    return timed.assign(**{name: each.reindex(timed.index, fill_value=0) for name, each in found.items()})


def siblings(runs: pd.DataFrame) -> pd.Series:
    """Return which runs shared a node with another run of the study at some time.

    Args:
        runs: Runs of a study: ``started``, ``ended`` and ``hosts``, separated by commas.
    """
    on_host = runs[["started", "ended"]].astype(float).reset_index(drop=True)
    on_host = on_host.assign(run=on_host.index, host=runs["hosts"].str.split(", ").to_numpy()).explode("host")
    on_host = on_host.dropna().sort_values("started")
    busy_until = on_host.groupby("host")["ended"].cummax().groupby(on_host["host"]).shift()
    next_start = on_host.groupby("host")["started"].shift(-1)
    shared = (busy_until - on_host["started"] > OVERLAP_SECONDS) | (
        on_host["ended"] - next_start > OVERLAP_SECONDS
    )
    found = np.isin(np.arange(len(runs)), on_host.loc[shared, "run"])
    return pd.Series(found, index=runs.index, name="siblings")


@dataclass(frozen=True)
class Separation:
    """Facts that tell if device count, time and nodes are separable in the runs of one series.

    Args:
        order: Correlation of the ranks of start and device count: 1 if small counts ran first.
        apart: Device counts all of whose runs started before or after those of all other counts.
        other_days: Device counts that share no session with the baseline.
        other_nodes: Device counts whose nodes differ from the baseline's by more than the scatter shows.
    """

    order: float = 0.0
    apart: tuple[int, ...] = ()
    other_days: tuple[int, ...] = ()
    other_nodes: tuple[int, ...] = ()

    @property
    def ordered(self) -> bool:
        """Whether the device counts ran in the order of their size."""
        return abs(self.order) >= ORDERED

    @property
    def in_time(self) -> bool:
        """Whether time and device count are separable."""
        return not (self.ordered or self.apart or self.other_days)


def separable(runs: pd.DataFrame, baseline: int) -> Separation:
    """Return how far device count, time and nodes are separable.

    Args:
        runs: Completed, comparable runs of one series: ``devices``, ``started``, ``ended`` and ``hosts``,
            separated by commas. All that is unknown is taken to be separable.
        baseline: Devices that the others are compared with.
    """
    known = runs.assign(session=sessions(runs).to_numpy())
    known = known[known["started"].notna()]
    points = {devices: known[known["devices"] == devices] for devices in sorted(set(known["devices"]))}
    repeated = {devices: point for devices, point in points.items() if len(point) > 1}
    order, apart = 0.0, []
    if baseline in repeated and len(repeated) > 1:
        joined = pd.concat(repeated.values())
        if joined["started"].nunique() > 1:
            order = float(joined["started"].rank().corr(joined["devices"].rank()))
        for devices, point in repeated.items():
            others = joined.loc[joined["devices"] != devices, "started"]
            if point["started"].min() > others.max() or point["started"].max() < others.min():
                apart.append(devices)
    days: list[int] = []
    if baseline in points:
        of_baseline = set(points[baseline]["session"])
        days = [devices for devices, point in points.items() if of_baseline.isdisjoint(point["session"])]
    return Separation(order, tuple(apart), tuple(days), tuple(_on_other_nodes(runs, baseline)))


def _on_other_nodes(runs: pd.DataFrame, baseline: int) -> list[int]:
    hosts: dict[int, list[list[str]]] = defaultdict(list)
    for devices, names in runs[["devices", "hosts"]].dropna().itertuples(index=False):
        hosts[int(devices)].append(names.split(", "))
    if baseline not in hosts:
        return []
    of_baseline = {host for run in hosts[baseline] for host in run}
    return [
        devices
        for devices, at_point in sorted(hosts.items())
        # all of the baseline's nodes and further ones are what more devices are
        if not all(of_baseline <= set(run) for run in at_point)
        and host_variance_ratio(hosts[baseline], at_point) > HOST_VARIANCE_RATIO
    ]


def host_variance_ratio(baseline: Sequence[Sequence[str]], point: Sequence[Sequence[str]]) -> float:
    """Return the variance that nodes bring to a ratio of means, over what the runs' scatter shows of it.

    A node is taken to add an unknown effect of its own to every run on it, divided by the nodes of the run.
    With p the mean over a point's runs of each run's share on each node, and b that of the baseline, the
    effects add a variance proportional to |p - b|^2; the scatter of n runs about p shows
    sum |run - p|^2 / (n (n - 1)), likewise for b. Nodes drawn again for every run give about 1; infinity is
    a device count whose repeats were all on the same nodes, and these others than the baseline's; 0 is no
    difference of nodes at all.

    Args:
        baseline: Hosts of each of the baseline's runs, at least one run.
        point: Hosts of each run of the point, at least one run.
    """
    hosts = sorted({host for run in (*baseline, *point) for host in run})
    shares = [
        np.array([[(host in run) / len(run) for host in hosts] for run in side], dtype=np.float64)
        for side in (baseline, point)
    ]
    contrast = shares[1].mean(axis=0) - shares[0].mean(axis=0)
    brought = float(contrast @ contrast)
    if brought < 1e-12:
        return 0.0
    # one run shows no scatter
    shown = sum(float(side.var(axis=0, ddof=1).sum()) / len(side) for side in shares if len(side) > 1)
    return brought / shown if shown > 1e-12 else float("inf")
