"""Confounding of the device count with nodes or time, and drift over a study. Pure functions of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from scalewise.analysis.conditions import baseline_devices
from scalewise.plan.formatting import percent, pluralize, point_text

SESSION_GAP_HOURS = 6.0
"""Pause after which runs belong to another session. Load, heat and network of a shared machine follow the
day, of which this is a quarter; what waits for a queue or over lunch is one session still."""

HOST_VARIANCE_RATIO = 9.0
"""Least ratio of what nodes do to a speedup and what its interval holds of it: a third of the width is left
where nodes alone differ. Nodes drawn at random give 1 on average. In simulated studies of four device counts
they give more than this, by chance and truly, in 6 % at 3 repeats on 2 nodes, 3 % at 3 on 4 nodes, 0.2 % at 6
on 4 nodes and in none on 16."""

TREND_P = 0.05
"""Highest p value at which a change of throughput over the study is said."""
LEAST_TREND = 0.01
"""Smallest change over the study that is said: less is seldom worth a decision."""
ORDERED = 0.8
"""Least correlation of the ranks of starts and device counts with which time and device count are not told
apart. Shuffled blocks of 2 repeats or more give about 0.5 at most."""
PERMUTATIONS = 1_999
SEED = 1
FURTHER_REPEATS = 3
"""Repeats to add where a device count was made at another time: as many as a test at 5 % needs."""
LISTED = 4
"""Most names in a sentence; others are counted."""

_COLUMNS = ("hosts", "started_at", "wall_seconds", "throughput_samples_per_second")

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trend:
    """The change of throughput with the order of the runs, each point about its own mean.

    Args:
        change: Throughput at the end of the study over that at its beginning, minus 1.
        p_value: Probability of so large a change, were the order without effect.
    """

    change: float
    p_value: float


def confounding_sentences(runs: pd.DataFrame) -> list[str]:
    """Return a sentence for each way in which nodes or time may explain a speedup, with its fix.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    known = _known(runs)
    time = [*_session_sentences(known)] or [*_order_sentences(known)] or [*_trend_in_speedups(known)]
    return [*_host_sentences(known), *time]


def sessions(runs: pd.DataFrame) -> pd.Series:
    """The session of each run, counted from 1 in the order of time; missing where the start is not known.

    A session ends where no run goes on and none starts for ``SESSION_GAP_HOURS``.

    Args:
        runs: All runs that share a time line, with ``started_at`` in ISO 8601 and, where it is known,
            ``wall_seconds``.
    """
    known = _known(runs).reset_index(drop=True)
    started = _started(known).sort_values()
    # of a resumed run the wall time is not known
    walls = pd.to_numeric(known["wall_seconds"], errors="coerce").fillna(0.0)
    # a run may be started before another one and go on after it
    busy_until = (started + pd.to_timedelta(walls, unit="s")[started.index]).cummax().shift()
    new = (started - busy_until) > pd.Timedelta(hours=SESSION_GAP_HOURS)
    numbers = (new.cumsum() + 1).where(started.notna()).sort_index().astype("Int64")
    return numbers.set_axis(runs.index).rename("session")


def trend(runs: pd.DataFrame) -> Trend | None:
    """The change of throughput from the first run of a study to the last; None where no run is repeated.

    The slope of the logarithm of the throughput over the order of the starts, after each point's mean is
    taken from it, and points weighted by the inverse of their variance. Its p value is by permutation of a
    point's runs among each other, so points may scatter differently (two-sided; Fisher 1935, and Phipson
    and Smyth 2010 for drawn permutations). Repeats are run in shuffled order within blocks, so the order
    of time is no order of device counts.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``, or a part of it.
    """
    known = _known(runs)
    rates = pd.to_numeric(known["throughput_samples_per_second"], errors="coerce")
    known = known.assign(rate=rates, order=_started(known).rank(method="first"))
    known = known[(known["outcome"] == "completed") & (known["rate"] > 0) & known["order"].notna()]
    keys = [key for key in ("series", "devices", "fingerprint") if key in known]
    points = [point for _, point in known.groupby(keys, dropna=False) if len(point) > 1]
    if not points:
        return None
    residuals = [_centred(np.log(point["rate"].to_numpy(dtype=np.float64))) for point in points]
    orders = [_centred(point["order"].to_numpy(dtype=np.float64)) for point in points]
    weights = _inverse_variances(residuals)
    if weights is None:
        return Trend(0.0, 1.0)
    spread = sum(weight * float(order @ order) for weight, order in zip(weights, orders, strict=True))
    generator = np.random.default_rng(SEED)
    seen, drawn = 0.0, np.zeros(PERMUTATIONS)
    for residual, order, weight in zip(residuals, orders, weights, strict=True):
        seen += weight * float(residual @ order)
        shuffled = generator.permuted(np.tile(residual, (PERMUTATIONS, 1)), axis=1)
        drawn += weight * (shuffled @ order)
    as_extreme = int(np.count_nonzero(np.abs(drawn) >= abs(seen) * (1 - 1e-9)))
    span = float(known["order"].max() - known["order"].min())
    return Trend(math.expm1(seen / spread * span), (as_extreme + 1) / (PERMUTATIONS + 1))


def has_trend(runs: pd.DataFrame) -> bool:
    """Whether throughput changed over a study by more than chance, and by enough to matter."""
    found = trend(runs)
    return found is not None and _counts(found)


def _counts(found: Trend) -> bool:
    return found.p_value <= TREND_P and abs(found.change) >= LEAST_TREND


def host_variance_ratio(baseline: Sequence[Sequence[str]], point: Sequence[Sequence[str]]) -> float:
    """The variance that nodes bring to a ratio of means, over what the scatter of the runs shows of it.

    A node is taken to add an unknown effect of its own to every run on it, divided by the nodes of the run.
    With p the mean over a point's runs of each run's share on each node, and b that of the baseline, the
    effects add a variance proportional to |p - b|^2; the scatter of n runs about p shows
    sum |run - p|^2 / (n (n - 1)), likewise for b. Nodes drawn anew for every run give about 1; infinity is
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
    shown = sum(_variance_of_mean(side) for side in shares)
    return brought / shown if shown > 1e-12 else math.inf


def _variance_of_mean(shares: Weights) -> float:
    count = len(shares)
    if count < 2:
        return 0.0
    return float(((shares - shares.mean(axis=0)) ** 2).sum()) / (count * (count - 1))


def _host_sentences(runs: pd.DataFrame) -> Iterator[str]:
    affected = []
    for series, points, base in _compared(runs[runs["hosts"].notna()]):
        at_base = _hosts(points[base])
        apart = [
            devices
            for devices, point in points.items()
            if devices != base and _on_other_nodes(at_base, _hosts(point))
        ]
        if apart:
            shown = [(point_text(devices, series), points[devices]) for devices in (base, *apart)]
            affected.append(
                "; ".join(
                    f"{name}: {_named(point)} in {pluralize(str(len(point)), 'run')}" for name, point in shown
                )
            )
    if affected:
        yield (
            f"Device count and nodes cannot be told apart ({affected[0]}{_others(affected)}): how nodes "
            "differ counts as scaling, and intervals do not hold it. Let all runs draw from the same few "
            "nodes (slurm.constraint, slurm.reservation, or --exclude in slurm.extra of the site file), or "
            "raise repeats when other nodes are free."
        )


def _on_other_nodes(baseline: Sequence[Sequence[str]], point: Sequence[Sequence[str]]) -> bool:
    """Whether a point's nodes differ from the baseline's by more than its runs' scatter can show.

    Runs that have all of the baseline's nodes and further ones are what more devices are: a slow node among
    the further ones belongs to the answer, and is found as a straggler.
    """
    of_baseline = {host for run in baseline for host in run}
    if all(of_baseline <= set(run) for run in point):
        return False
    return host_variance_ratio(baseline, point) > HOST_VARIANCE_RATIO


def baselines_of_other_sessions(runs: pd.DataFrame) -> set[tuple[str, int]]:
    """Series and devices of the baselines that were not measured in the session of every other count.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    return {(series, base) for series, _, base, _ in _in_other_sessions(_known(runs))}


def _in_other_sessions(runs: pd.DataFrame) -> Iterator[tuple[str, dict[int, pd.DataFrame], int, list[int]]]:
    """Each series with device counts that share no session with its baseline, and these counts."""
    # all series share a machine's time line
    runs = runs.assign(session=sessions(runs), started=_started(runs))
    for series, points, base in _compared(runs[runs["session"].notna()]):
        of_baseline = set(points[base]["session"])
        apart = [devices for devices, point in points.items() if of_baseline.isdisjoint(point["session"])]
        if apart:
            yield series, points, base, apart


def _session_sentences(runs: pd.DataFrame) -> Iterator[str]:
    affected = []
    for series, points, base, apart in _in_other_sessions(runs):
        shown = [(point_text(devices, series), points[devices]) for devices in (base, *apart)]
        affected.append(
            "; ".join(f"{name}: from {point['started'].min():%Y-%m-%d %H:%M} on" for name, point in shown)
        )
    if affected:
        repeats = int(runs["repeat"].max()) + FURTHER_REPEATS
        yield (
            f"Device count and time cannot be told apart ({affected[0]}{_others(affected)}; UTC): the runs "
            f"were made in sessions more than {SESSION_GAP_HOURS:.0f} hours apart, and what changed on the "
            f"machine in between counts as scaling. Raise repeats to {repeats}: the new runs of all device "
            "counts are then made together, and intervals compare within sessions. `repeats: {min, max}` "
            "measures the baseline again by itself."
        )


def take_turns(runs: pd.DataFrame) -> bool:
    """Return whether each repeat of some points started before the next one of any: blocks of time.

    Scalewise submits repeats so. A queue may start them in another order, for example small jobs first.

    Args:
        runs: Completed runs of the points. Without their starts nothing is known.
    """
    if not {"started_at", "repeat"} <= set(runs) or runs["started_at"].isna().any():
        return False
    keys = [runs[key] for key in ("session", "repeat") if key in runs]
    spans = _started(runs).groupby(keys).agg(["min", "max"]).sort_values("min")
    return bool((spans["min"].iloc[1:].to_numpy() > spans["max"].iloc[:-1].to_numpy()).all())


def _order_sentences(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence if device counts ran in the order of their size, or one apart from all others."""
    affected = []
    runs = runs.assign(started=_started(runs))
    for series, points, base in _compared(runs[runs["started"].notna()]):
        repeated = {devices: point for devices, point in points.items() if len(point) > 1}
        if base in repeated and (order := _telling_order(repeated, series)):
            affected.append(order)
    if affected:
        yield (
            f"Device count and time cannot be told apart ({affected[0]}{_others(affected)}): what changed on "
            "the machine during the study counts as scaling. Add repeats while the queue is short: the runs "
            "of all device counts then take turns."
        )


def _telling_order(points: dict[int, pd.DataFrame], series: str) -> str:
    """Return how the starts follow from the device counts, in words; empty if they do not."""
    if len(points) < 2:
        return ""
    runs = pd.concat(points.values())
    if runs["started"].nunique() == 1:
        return ""
    along = runs["started"].rank().corr(runs["devices"].rank())
    if abs(along) >= ORDERED:
        return f"{'small' if along > 0 else 'large'} device counts ran first"
    for devices, point in points.items():
        others = runs.loc[runs["devices"] != devices, "started"]
        after = point["started"].min() > others.max()
        if after or point["started"].max() < others.min():
            side = "after" if after else "before"
            return f"all runs on {point_text(devices, series)} started {side} those on other counts"
    return ""


def _others(affected: Sequence[str]) -> str:
    """Number of affected series beside the first one, in words; empty where there is none."""
    return f"; likewise in {len(affected) - 1} other series" if len(affected) > 1 else ""


def trend_sentences(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on a change of throughput over the study that speedups have not in them, or hardly.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    if (change := _change_text(runs)) and (share := _share_in_speedups(runs)) < LEAST_TREND:
        held = "Less than 1 % is in the speedups" if share else "Speedups compare runs of the same time"
        yield (f"{change}. {held}. Throughputs depend on it: look for heat, other users' load and updates.")


def _trend_in_speedups(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on a change of throughput over the study that is in the speedups, too."""
    if (change := _change_text(runs)) and (share := _share_in_speedups(runs)) >= LEAST_TREND:
        yield (
            f"{change}, and the repeats of the device counts did not take turns: up to {percent(share, 0)} "
            "counts as scaling. Look for heat, other users' load and updates, and add repeats."
        )


def _change_text(runs: pd.DataFrame) -> str:
    found = trend(runs)
    if found is None or not _counts(found):
        return ""
    verb = "rose" if found.change > 0 else "fell"
    return f"Throughput {verb} by {percent(abs(found.change), 0)} during the study (p = {found.p_value:.2g})"


def _share_in_speedups(runs: pd.DataFrame) -> float:
    """Return the largest part of a change over the study that may be in a speedup; 0 if runs took turns.

    The change is taken to be steady: a speedup holds as much of it as its two points are apart, on average,
    in the order of the starts.
    """
    runs = runs.assign(order=_started(runs).rank())
    found, most = trend(runs), 0.0
    span = runs["order"].max() - runs["order"].min()
    if found is None or not span > 0:
        return most
    for _, points, base in _compared(runs[runs["order"].notna()]):
        if take_turns(pd.concat(points.values())):
            continue
        means = {devices: point["order"].mean() for devices, point in points.items()}
        apart = max(abs(each - means[base]) for each in means.values())
        most = max(most, abs(found.change) * apart / span)
    return float(most)


def _compared(runs: pd.DataFrame) -> Iterator[tuple[str, dict[int, pd.DataFrame], int]]:
    """Each series with the runs that its speedups join, by device count, and the devices of its baseline."""
    for series, planned in runs.groupby("series", sort=False):
        base = baseline_devices(planned)
        done = planned[planned["outcome"] == "completed"]
        points = {int(point["devices"].iloc[0]): point for _, point in done.groupby("devices")}
        if base in points and len(points) > 1:
            yield str(series), points, base


def _known(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with every column that is read; published figures lack some."""
    return runs.reindex(columns=[*runs.columns, *(name for name in _COLUMNS if name not in runs.columns)])


def _started(runs: pd.DataFrame) -> pd.Series:
    return pd.to_datetime(runs["started_at"], utc=True, format="ISO8601", errors="coerce")


def _hosts(point: pd.DataFrame) -> list[list[str]]:
    return [str(names).split(", ") for names in point["hosts"]]


def _named(point: pd.DataFrame) -> str:
    """The nodes of a point's runs, the most used first."""
    names = pd.Series([host for run in _hosts(point) for host in run]).value_counts()
    shown = ", ".join(map(str, names.index[:LISTED]))
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def _centred(values: Weights) -> Weights:
    return np.asarray(values - values.mean())


def _inverse_variances(residuals: Sequence[Weights]) -> list[float] | None:
    """Weights of the points, which no permutation of a point's runs changes; None where nothing scatters.

    A variance of few runs is drawn towards that of all, as if two more runs had it.
    """
    freedoms = [len(residual) - 1 for residual in residuals]
    squares = [float(residual @ residual) for residual in residuals]
    pooled = sum(squares) / sum(freedoms)
    if pooled <= 0:
        return None
    return [(free + 2) / (square + 2 * pooled) for free, square in zip(freedoms, squares, strict=True)]
