"""The bottleneck of each point: the largest loss in its step, and advice against it.

A loss is named where it is a tenth of the step and its interval lies above zero. One that is as large but
that the runs do not show is said with its interval, and small ones that add up are said together. Pure
functions of tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import pandas as pd

from scalewise.analysis.analysis_spec import PROGRAM
from scalewise.analysis.bottlenecks.losses import (
    COMMUNICATION,
    COMPUTE,
    JITTER,
    LOADER,
    NAMED_FROM,
    PARTS,
    STRAGGLER,
    WAITS,
    Loss,
    PointLosses,
    difference_of_means,
    find_losses,
    is_in_doubt,
    number,
)
from scalewise.analysis.bottlenecks.slow_places import SlowPlace, find_slow_place, most_frequent_rank
from scalewise.analysis.formatting import MAX_PLACES, format_3sig, percent, percent_in_digits, point_text
from scalewise.analysis.statistics.intervals import Interval
from scalewise.plan.config.shape import count_devices
from scalewise.plan.runs.runs import NO_OPTIONS
from scalewise.plan.terminal.words import listed

TOLD_FROM = 0.005
"""Share of the step from which on a loss is listed among those that add up."""

MILLISECONDS = 1e3

RESIDENT = "resident loader"

_TITLES = {
    COMMUNICATION: "Communication-bound",
    LOADER: "Loader-bound",
    JITTER: "Jitter, ranks that are late by turns,",
    COMPUTE: "Compute does not scale",
}

_NOUNS = {
    COMMUNICATION: "communication",
    LOADER: "loader wait",
    STRAGGLER: "waiting for one slow rank",
    JITTER: "jitter",
    COMPUTE: "compute beyond its ideal",
}

_ADVICE = {
    COMMUNICATION: "raise the batch size per device or accumulation_steps, set communication_hook, or use "
    "fewer devices.",
    LOADER: "raise cpus_per_device or use the resident loader.",
    RESIDENT: "raise the batch size per device, so that fewer batches are gathered.",
    JITTER: "give every rank as much work in each step (samples of unequal length, work that depends on the "
    "data, batches that come late), and look whether ranks share cores with each other or with other "
    "programs, or ask for whole nodes. A faster exchange does not help.",
    COMPUTE: "raise the batch size per device or set compile, where a device's work has become short; in one "
    "node, look whether devices share cores, memory or power.",
}


_ADVICE_ON_PROGRAMS = {
    COMMUNICATION: "raise the batch size per device, exchange gradients in fewer passes (accumulation under "
    "no_sync), compress them (a communication hook of DDP), or use fewer devices.",
    LOADER: "raise cpus_per_device, and with it the workers of the program's DataLoader.",
    COMPUTE: "raise the batch size per device or use torch.compile, where a device's work has become short; "
    "in one node, look whether devices share cores, memory or power.",
}
"""Advice to somebody whose own program trains, which has none of the built-in options."""


@dataclass(frozen=True)
class Bottleneck:
    """The main reason that a point does not scale.

    Args:
        point: Row of the scaling table.
        cause: A key of ``losses.PARTS``.
        share: Share of the point's step that is lost to it, 0 to 1.
        advice: Imperative clause that names the cure; empty for a slow rank, whose place decides.
        beside: Sentence on a wait that the baseline has too; empty where there is none.
        place: The slow rank or host; None where chance may have picked it, or for another cause.
        runs: The point's runs.
    """

    point: pd.Series
    cause: str
    share: Interval
    advice: str
    beside: str
    place: SlowPlace | None
    runs: pd.DataFrame


def find_bottlenecks(scaling: pd.DataFrame, runs: pd.DataFrame, mode: str = "strong") -> list[Bottleneck]:
    """The largest loss of each point that has one which the runs show.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
        runs: Output of ``collect``; every completed run counts, so they must be comparable.
        mode: ``strong`` or ``weak`` scaling.
    """
    return list(_bottlenecks(list(find_losses(scaling, runs, mode))))


def bottleneck_sentences(scaling: pd.DataFrame, runs: pd.DataFrame, mode: str = "strong") -> list[str]:
    """A sentence for each bottleneck with its cure, largest loss first; then on small losses and on doubts.

    Start-up is not among them: neither a throughput nor an efficiency holds it.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
        runs: Output of ``collect``; every completed run counts, so they must be comparable.
        mode: ``strong`` or ``weak`` scaling.
    """
    points = list(find_losses(scaling, runs, mode))
    found = list(_bottlenecks(points))
    bound: dict[str, list[Bottleneck]] = {}
    for index, limit in enumerate(found):
        # which rank is slow is each point's own
        key = f"{index}" if limit.cause == STRAGGLER else f"{limit.advice}{limit.beside}"
        bound.setdefault(key, []).append(limit)
    by_share = sorted(bound.values(), key=lambda limits: -max(limit.share.estimate for limit in limits))
    unnamed = [each for each in points if not any(limit.point is each.point for limit in found)]
    return [
        *map(_sentence, by_share),
        *(_together(each) for each in unnamed if _adds_up(each)),
        *_not_shown([each for each in unnamed if not _adds_up(each)]),
        *_untold_loader(points),
        *_uncertain(scaling),
    ]


def startup_sentences(scaling: pd.DataFrame) -> list[str]:
    """A sentence on the points whose runs spend much of their wall time on starting.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
    """
    shares = scaling["startup_seconds"].astype(float) / scaling["wall_seconds"].astype(float)
    long = scaling[shares > NAMED_FROM]
    if long.empty:
        return []
    points = [point for _, point in long.iterrows()]
    places, of_series = _places(points)
    seconds = [
        f"{format_3sig(point['startup_seconds'])} of {format_3sig(point['wall_seconds'])} s at {place}"
        for point, place in zip(points, places, strict=True)
    ]
    return [
        f"Start-up takes {_first(seconds)}{of_series}: train longer in one job, or judge by throughput, "
        "which is without it."
    ]


def limit_line(scaling: pd.DataFrame, runs: pd.DataFrame, mode: str, chosen: int | None, noun: str) -> str:
    """Return one sentence on what limits the training; empty if the parts of a step are unknown.

    It is of the chosen point, or of the next one beyond that loses something.

    Args:
        scaling: Rows of one series in the scaling table.
        runs: Output of ``collect``.
        mode: ``strong`` or ``weak`` scaling.
        chosen: Chosen device count; None without an answer.
        noun: Name of a device.
    """
    points = list(find_losses(scaling, runs, mode))
    if not points:
        return ""
    found = sorted(_bottlenecks(points), key=lambda limit: int(limit.point["devices"]))
    beyond = [limit for limit in found if int(limit.point["devices"]) >= (chosen or 0)]
    if beyond:
        limit = beyond[0]
        where = count_devices(int(limit.point["devices"]), noun)
        name = _NOUNS[limit.cause]
        return f"{name[0].upper()}{name[1:]} takes {percent(limit.share.estimate, 0)} of a step on {where}."
    several = [each for each in points if _adds_up(each) and int(each.point["devices"]) >= (chosen or 0)]
    if several and several[0].total is not None:
        where = count_devices(int(several[0].point["devices"]), noun)
        share = percent(several[0].total.share.estimate, 0)
        return f"No single cause: small losses add up to {share} of a step on {where}."
    most = max(int(each.point["devices"]) for each in points)
    return f"No loss of throughput is shown up to {count_devices(most, noun)}." if most > 1 else ""


# --- what is named ------------------------------------------------------------------------------------


def _bottlenecks(points: Sequence[PointLosses]) -> Iterator[Bottleneck]:
    judged = max(sum(each.point["devices"] > 1 for each in points), 1)
    for each in points:
        loss, runs = each.main(), each.runs
        waits = (runs[WAITS[STRAGGLER]] >= NAMED_FROM * runs["step_seconds"]).any()
        place = find_slow_place(runs, judged) if waits else None
        of_host = _at_slow_host(each, place)
        if of_host is not None and (loss is None or of_host.share.estimate > loss.share.estimate):
            loss = of_host
        if loss is not None:
            yield Bottleneck(
                each.point,
                loss.cause,
                loss.share,
                _advice(loss.cause, each.point),
                _beside(loss, each, several=len(points) > 1),
                place if loss.cause == STRAGGLER else None,
                runs,
            )


def _at_slow_host(each: PointLosses, place: SlowPlace | None) -> Loss | None:
    """The loss to a slow host in the runs that it takes part in; None where these are all of them."""
    if place is None or place.rank is not None or place.taken == len(each.runs):
        return None
    lost, step = ([float(value) for value in place.runs[name]] for name in (WAITS[STRAGGLER], "step_seconds"))
    share = difference_of_means(lost, [0.0]).scaled(len(step) / sum(step))
    loss = Loss(STRAGGLER, share, median(lost) / median(step), measured=True, in_efficiency=True)
    return loss if loss.is_shown else None


def _advice(cause: str, point: pd.Series) -> str:
    if point["loader"] == PROGRAM and cause in _ADVICE_ON_PROGRAMS:
        return _ADVICE_ON_PROGRAMS[cause]
    resident = cause == LOADER and point["loader"] == "resident"
    return _ADVICE.get(RESIDENT if resident else cause, "")


def _beside(loss: Loss, each: PointLosses, *, several: bool) -> str:
    """The clause on a wait that the baseline has too, so that no efficiency lacks it."""
    if loss.in_efficiency or not several:
        return ""
    if each.point["devices"] == number(each.point, "baseline_devices"):
        return " It is the baseline's own, which no efficiency holds."
    alike = any(other.cause == loss.cause and not other.is_large for other in each.losses)
    return " The baseline waits alike, so the efficiency hardly lacks it." if alike else ""


# --- how it is said -----------------------------------------------------------------------------------


def _sentence(limits: Sequence[Bottleneck]) -> str:
    cause = limits[0].cause
    if cause == STRAGGLER:
        return f"{_slow_rank(limits[0])}{limits[0].beside}"
    exposed = ", exposed" if cause == COMMUNICATION else ""
    places, of_series = _places([limit.point for limit in limits])
    shares = [
        f"{place} ({_share(limit.share)}{exposed})" for limit, place in zip(limits, places, strict=True)
    ]
    older = cause == COMMUNICATION and any(limit.runs["jitter_seconds"].isna().any() for limit in limits)
    unknown = " These records do not tell waiting for late ranks from the exchange." if older else ""
    return f"{_TITLES[cause]} at {_first(shares)}{of_series}: {limits[0].advice}{unknown}{limits[0].beside}"


def _slow_rank(limit: Bottleneck) -> str:
    place, nodes = limit.place, limit.point["nodes"]
    where = _where(limit.point)
    if place is not None and place.rank is None:
        some = place.taken < len(limit.runs)
        taking = f", in the {place.taken} of {len(limit.runs)} runs that it takes part in" if some else ""
        return (
            f"Node {place.host} is slower than the others at {where} ({_share(limit.share)} lost waiting for "
            f"it{taking}): leave it out, or ask the site."
        )
    lost = f"({_share(limit.share)} lost waiting for it)"
    found = place or most_frequent_rank(limit.runs)
    if found is None or (place is None and found.hits < found.taken):
        return (
            f"One rank is slower than the others at {where} {lost}, and not the same in all runs: look for "
            "other programs on its nodes, or ask the site for whole ones."
        )
    name = f"rank {found.rank} on {found.host}" if found.host else f"rank {found.rank}"
    named = f"{name[0].upper()}{name[1:]}"
    often = "" if found.hits == found.taken else f" in {found.hits} of {found.taken} runs"
    if found.taken == 1:
        return (
            f"{named} is slower than the others at {where} {lost}, in the only run: look what else uses its "
            "device and CPUs, and repeat, to tell whether it is always that one."
        )
    if place is None:
        return (
            f"One rank is slower than the others at {where} {lost}. It is {name} in all {found.taken} runs, "
            f"which chance alone does in {percent_in_digits(found.chance)} of such studies: more repeats "
            "would tell whether it is always that one."
        )
    if found.host is None:
        return (
            f"{named} is slower than the others at {where} {lost}{often}, on whatever node it runs: look "
            "whether its share of the work is larger."
        )
    cure = (
        "leave the node out, or ask the site"
        if nodes > 1
        else "look what else uses its device and CPUs, and whether its share of the work is larger"
    )
    return f"{named} is slower than the others at {where} {lost}{often}: {cure}."


def _adds_up(each: PointLosses) -> bool:
    return each.total is not None and each.total.is_shown


def _together(each: PointLosses) -> str:
    """Losses that no single one of them explains, which sum to what the efficiency lacks."""
    assert each.total is not None
    listed = sorted(each.losses, key=lambda loss: -loss.share.estimate)
    parts = [
        f"{_NOUNS[loss.cause]} {percent(loss.share.estimate, 0)}"
        for loss in listed
        if abs(loss.share.estimate) >= TOLD_FROM
    ]
    return (
        f"No single cause at {_where(each.point)}: {', '.join(parts)}, together {_share(each.total.share)}; "
        "means over the runs. Raise the batch size per device, which lessens most of them, or use fewer "
        "devices."
    )


def _not_shown(points: Sequence[PointLosses]) -> Iterator[str]:
    """A sentence on losses that are large, but that the runs do not tell from none."""
    maybe = [
        (each.point, loss)
        for each in points
        for loss in (each.losses or each.waits)
        if loss.is_large and not loss.is_shown
    ]
    if maybe:
        places, of_series = _places([point for point, _ in maybe])
        losses = [
            f"{_NOUNS[loss.cause]} at {place} ({_share(loss.share)})"
            for (_, loss), place in zip(maybe, places, strict=True)
        ]
        yield (
            f"May be, but too few or too different runs tell: {_first(losses)}{of_series}. More repeats "
            "would tell."
        )


def _untold_loader(points: Sequence[PointLosses]) -> Iterator[str]:
    """A sentence where nobody could tell the wait for data."""
    untold = [each.point for each in points if each.runs["loader_seconds"].isna().all()]
    if untold:
        places, of_series = _places(untold)
        yield (
            f"How long devices wait for data is not known at {_first(places)}{of_series}: no "
            "DataLoader of PyTorch feeds the training. Compute holds it."
        )


def _uncertain(scaling: pd.DataFrame) -> Iterator[str]:
    for _, point in scaling.iterrows():
        if is_in_doubt(point):
            counted, checked = (
                f"{format_3sig(number(point, column) * MILLISECONDS)} ms"
                for column in (PARTS[COMMUNICATION], "crosscheck_communication_seconds")
            )
            yield (
                f"How a step divides at {_where(point)} is uncertain: communication is {counted} by DDP's "
                f"own counters, but {checked} by passes with and without it, after the training."
            )


def _share(share: Interval) -> str:
    """``32 % of the step (30 to 34 %)``; the first part only if no interval is known."""
    text = f"{percent(share.estimate, 0)} of the step"
    if math.isnan(share.low):
        return text
    low, high = percent(share.low, 0), percent(share.high, 0)
    return text if low == high else f"{text} ({low.removesuffix(' %')} to {high})"


def _places(points: Sequence[pd.Series]) -> tuple[list[str], str]:
    """Each point in words, and what follows their list: the series, where more than two points share one."""
    series = {str(point["series"]) for point in points}
    if len(points) > 2 and len(series) == 1 and NO_OPTIONS not in series:
        return [count_devices(int(point["devices"])) for point in points], f" of {series.pop()}"
    return [_where(point) for point in points], ""


def _first(texts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and 3 more points``."""
    more = len(texts) - MAX_PLACES
    return listed([*texts[:MAX_PLACES], f"{more} more points"] if more > 0 else texts)


def _where(point: pd.Series) -> str:
    return point_text(point["devices"], point["series"])
