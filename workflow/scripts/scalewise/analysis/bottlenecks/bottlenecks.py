"""The bottleneck of each point: the largest loss in its step, and advice against it.

Pure functions of tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from scalewise.analysis.formatting import format_3sig, point_text

NAMED_FROM = 0.1
"""Share of the step, or of a run's wall, from which on a loss is named."""

UNCERTAIN_FROM = 0.05
"""Share of the step by which two measurements of the communication must differ to be doubted."""

MAX_PLACES = 6
"""Points named in one sentence; scaling.csv has all."""

MILLISECONDS = 1e3

COMMUNICATION, LOADER, STRAGGLER, COMPUTE = "communication", "loader", "straggler", "compute"
RESIDENT = "resident loader"

_TITLES = {COMMUNICATION: "Communication-bound", LOADER: "Loader-bound", COMPUTE: "Compute does not scale"}

_ADVICE = {
    COMMUNICATION: "raise the batch size per device or accumulation_steps, set communication_hook, or use "
    "fewer devices.",
    LOADER: "raise cpus_per_device or use the resident loader.",
    RESIDENT: "raise the batch size per device, so that fewer batches are gathered.",
    STRAGGLER: "leave out its node, or look what else uses its device and CPUs.",
    COMPUTE: "raise the batch size per device or set compile, where a device's work has become short; in one "
    "node, look whether devices share cores, memory or power.",
}


@dataclass(frozen=True)
class Bottleneck:
    """The main reason that a point does not scale.

    Args:
        cause: Communication, loader, straggler or compute.
        share: Share of the point's step that is lost to it, 0 to 1.
        advice: Imperative clause that names the cure.
    """

    cause: str
    share: float
    advice: str


def waiting_shares(point: pd.Series) -> dict[str, float]:
    """Shares of a point's step that its devices waited, by cause; empty where the step's parts are unknown.

    Two measurements of the communication that are far apart count as the lesser of the two: both hold the
    exchange, and both may hold waiting for a rank that is late.
    """
    step = _number(point, "step_seconds")
    seconds = {
        COMMUNICATION: min(_communications(point)) if _in_doubt(point) else _communications(point)[0],
        LOADER: _number(point, "loader_seconds"),
        STRAGGLER: _number(point, "straggler_seconds"),
    }
    shares = {cause: value / step for cause, value in seconds.items()}
    return {} if any(map(math.isnan, shares.values())) else shares


def loss_shares(point: pd.Series, base: pd.Series, scaling: str = "strong") -> dict[str, float]:
    """The losses of a point, as shares of its step; empty where the split of its step is not known.

    Compute is lost as far as it exceeds its ideal: with strong scaling the baseline's, divided by so many
    times the devices, with weak scaling the baseline's.

    Args:
        point: Row of a scaling table.
        base: Row of its baseline.
        scaling: ``strong`` or ``weak``.
    """
    shares = waiting_shares(point)
    if not shares:
        return {}
    ratio = point["devices"] / base["devices"] if scaling == "strong" else 1.0
    excess = _number(point, "compute_seconds") - _number(base, "compute_seconds") / ratio
    # where the baseline is not known, the other causes still are
    lost = 0.0 if math.isnan(excess) else max(excess, 0.0)
    return shares | {COMPUTE: lost / _number(point, "step_seconds")}


def bottleneck_at(point: pd.Series, base: pd.Series, scaling: str = "strong") -> Bottleneck | None:
    """The largest loss of a point; None where it is under a tenth of the step, or the split is not known.

    Args:
        point: Row of a scaling table.
        base: Row of its baseline.
        scaling: ``strong`` or ``weak``.
    """
    shares = loss_shares(point, base, scaling)
    cause = max(shares, key=shares.__getitem__, default="")
    if not cause or shares[cause] < NAMED_FROM:
        return None
    resident = cause == LOADER and point["loader"] == "resident"
    return Bottleneck(cause, shares[cause], _ADVICE[RESIDENT if resident else cause])


def bottleneck_sentences(scaling: pd.DataFrame, runs: pd.DataFrame, mode: str = "strong") -> list[str]:
    """A sentence for each bottleneck with its cure, largest loss first; then on start-up, and on doubts.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
        runs: Output of ``collect``.
        mode: ``strong`` or ``weak`` scaling.
    """
    bound: dict[str, list[_Place]] = {}
    for _, series in scaling.groupby("series", sort=False):
        in_order = series.sort_values("devices")
        for _, point in in_order.iterrows():
            limit = bottleneck_at(point, in_order.iloc[0], mode)
            if limit is not None:
                # which rank is slow is each point's own
                key = f"{limit.advice} {len(bound)}" if limit.cause == STRAGGLER else limit.advice
                bound.setdefault(key, []).append(_Place(point, limit))
    by_share = sorted(bound.values(), key=lambda places: -max(place.limit.share for place in places))
    return [*(_bound(places, runs) for places in by_share), *_startup(scaling), *_uncertain(scaling)]


@dataclass(frozen=True)
class _Place:
    point: pd.Series
    limit: Bottleneck


def _bound(places: list[_Place], runs: pd.DataFrame) -> str:
    cause, advice = places[0].limit.cause, places[0].limit.advice
    if cause == STRAGGLER:
        return _slow_rank(places[0], runs)
    exposed = ", exposed" if cause == COMMUNICATION else ""
    shares = [f"{_where(place.point)} ({place.limit.share:.0%} of the step{exposed})" for place in places]
    return f"{_TITLES[cause]} at {_listed(shares)}: {advice}"


def _slow_rank(place: _Place, runs: pd.DataFrame) -> str:
    """Names the rank where it is the same in most runs of the point."""
    point, where = place.point, _where(place.point)
    lost = f"({place.limit.share:.0%} of the step lost waiting for it)"
    known = runs.reindex(columns=["series", "devices", "outcome", "slowest_rank", "slowest_host"])
    of_point = known[
        (known["series"] == point["series"])
        & (known["devices"] == point["devices"])
        & (known["outcome"] == "completed")
    ].dropna()
    slowest = of_point[["slowest_rank", "slowest_host"]].value_counts()
    if slowest.empty or slowest.iloc[0] <= len(of_point) / 2:
        return (
            f"One rank is slower than the others at {where} {lost}, and not the same in all runs: look for "
            "other programs on its nodes, or ask the site for whole ones."
        )
    rank, host = slowest.index[0]
    cure = (
        "leave the node out, or ask the site"
        if point["nodes"] > 1
        else "look what else uses its device and CPUs, and whether its share of the work is larger"
    )
    return f"Rank {rank:.0f} on {host} is slower than the others at {where} {lost}: {cure}."


def _startup(scaling: pd.DataFrame) -> Iterator[str]:
    """A sentence on the runs whose start-up takes much of their wall time."""
    shares = scaling["startup_seconds"].astype(float) / scaling["wall_seconds"].astype(float)
    long = scaling[shares > NAMED_FROM]
    if len(long):
        places = [
            f"{format_3sig(point['startup_seconds'])} of {format_3sig(point['wall_seconds'])} s "
            f"at {_where(point)}"
            for _, point in long.iterrows()
        ]
        yield (
            f"Start-up takes {_listed(places)}: train longer in one job, or judge by throughput, which is "
            "without it."
        )


def _uncertain(scaling: pd.DataFrame) -> Iterator[str]:
    for _, point in scaling.iterrows():
        if _in_doubt(point):
            counted, checked = (f"{format_3sig(each * MILLISECONDS)} ms" for each in _communications(point))
            yield (
                f"How a step divides at {_where(point)} is uncertain: communication is {counted} by DDP's "
                f"own counters, but {checked} by passes with and without it, after the training."
            )


def _communications(point: pd.Series) -> tuple[float, float]:
    """Seconds of a step, as DDP counted them and as passes after the training tell."""
    return _number(point, "communication_seconds"), _number(point, "crosscheck_communication_seconds")


def _in_doubt(point: pd.Series) -> bool:
    """Whether the two are far apart; False where one of them is not known."""
    both = _communications(point)
    apart = abs(both[0] - both[1])
    return apart > max(both) / 2 and apart > UNCERTAIN_FROM * _number(point, "step_seconds")


def _listed(places: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and 3 more points``."""
    more = len(places) - MAX_PLACES
    if more > 0:
        return f"{', '.join(places[:MAX_PLACES])} and {more} more points"
    return " and ".join([", ".join(places[:-1]), places[-1]]) if len(places) > 1 else places[0]


def _where(point: pd.Series) -> str:
    return point_text(point["devices"], point["series"])


def _number(point: pd.Series, column: str) -> float:
    """NaN where a hand-made or older table does not know it."""
    value = point.get(column)
    return float("nan") if value is None else float(value)
