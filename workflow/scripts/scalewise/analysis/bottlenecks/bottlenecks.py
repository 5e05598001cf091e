"""Causes that slow a training down: one for each point, and for one point its bar, sentence and advice.

A loss is named if it is a tenth of the step and its interval lies above zero. One that is as large but that
the runs do not show is said to be possible, and small ones that add up are named together. Pure functions of
tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from scalewise.analysis.bottlenecks.losses import (
    NAMED_FROM,
    Loss,
    PointLosses,
    difference_of_means,
    find_losses,
    is_in_doubt,
    number,
)
from scalewise.analysis.bottlenecks.slow_places import SlowPlace, find_slow_place, most_frequent_rank
from scalewise.analysis.bottlenecks.time_parts import (
    COLUMNS,
    COMMUNICATION,
    COMPUTE,
    COMPUTE_WITH_LOADER,
    EXCESS,
    JITTER,
    LARGER_BATCH,
    LOADER,
    LOSSES,
    SEVERAL,
    STEP_PARTS,
    STRAGGLER,
    UNKNOWN,
    Advice,
    advice_against,
)
from scalewise.analysis.statistics import ENOUGH_REPEATS, Interval
from scalewise.plan.config.experiment import AnyExperiment
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    MAX_PLACES,
    listed,
    milliseconds,
    name_devices,
    percent,
    percent_in_digits,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS

SHOWN_FROM = 0.01
"""Share of the step from which on a part has a place in the bar."""

MOST = 0.5
"""Share of the loss from which on a cause has most of it."""

EQUAL_WITHIN = 0.02
"""Share of the step by which a cause may exceed the sum of all losses, and still be called a part of it."""


@dataclass(frozen=True)
class Bottleneck:
    """The main reason that a point does not scale.

    Args:
        point: Row of the scaling table.
        cause: A key of ``STEP_PARTS``.
        share: Share of the point's step that is lost to it, 0 to 1.
        in_efficiency: False for a wait that the baseline has too.
        place: The slow rank or host; None if chance may have picked it, or for another cause.
        runs: The point's runs.
    """

    point: pd.Series
    cause: str
    share: Interval
    in_efficiency: bool
    place: SlowPlace | None
    runs: pd.DataFrame

    @property
    def in_some_runs(self) -> bool:
        """True for a slow host that takes part in some of the runs only."""
        return self.place is not None and self.place.rank is None and self.place.taken < len(self.runs)


Points = Sequence[tuple[PointLosses, Bottleneck | None]]


@dataclass(frozen=True)
class Slowdown:
    """The time of a step at the point that the answer is about, or at the next one that loses time.

    Args:
        devices: Device count of the point.
        series: Series of the point.
        where: The point in words: ``8 GPUs``, ``8 GPUs with bucket-view-on``.
        baseline: The device count with ideal scaling, in words; empty if it is this one or unknown.
        n: Number of runs.
        step_seconds: Length of a step, the mean over the runs.
        parts: ``key``, ``name``, ``share`` of the step and ``seconds`` of each part, from the left.
        sentence: Sentence on what is lost.
        advice: Instruction; empty if there is nothing to do.
        paste: Line of configuration for it; empty if it needs none.
    """

    devices: int
    series: str
    where: str
    baseline: str
    n: int
    step_seconds: float
    parts: list[dict[str, Any]]
    sentence: str
    advice: str
    paste: str


def find_bottlenecks(scaling: pd.DataFrame, runs: pd.DataFrame, mode: str = "strong") -> Points:
    """Return the points whose steps have known parts, each with its largest loss that the runs show.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
        runs: Output of ``collect``; every completed run counts, so they must be comparable.
        mode: ``strong`` or ``weak`` scaling.
    """
    points = list(find_losses(scaling, runs, mode))
    judged = max(sum(each.point["devices"] > 1 for each in points), 1)
    return [(each, _bottleneck(each, judged)) for each in points]


def find_slowdown(
    scaling: pd.DataFrame, runs: pd.DataFrame, spec: AnyExperiment, chosen: int | None, noun: str = "device"
) -> tuple[Slowdown | None, list[str]]:
    """Return what slows an experiment down, and sentences on its other points and on what is uncertain.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
        runs: Output of ``collect``; every completed run counts, so they must be comparable.
        spec: The experiment.
        chosen: Chosen device count; None without an answer.
        noun: Name of a device.

    Returns:
        None if the parts of no step are known.
    """
    points = find_bottlenecks(scaling, runs, spec.scaling)
    words = _Words(noun, several=scaling["series"].nunique() > 1)
    doubts = [*words.unknown([each for each, _ in points]), *words.uncertain(scaling)]
    if not points:
        return None, doubts
    each, limit = _focus(points, chosen)
    advice = words.advice(each, limit)
    base = number(each.point, "baseline_devices")
    found = Slowdown(
        devices=int(each.point["devices"]),
        series=str(each.point["series"]),
        where=_Words(noun, several=True).where(each.point),
        baseline=count_devices(int(base), noun) if each.total is not None else "",
        n=len(each.runs),
        step_seconds=float(each.runs["step_seconds"].mean()),
        parts=list(_bar(each)),
        sentence=words.sentence(each, limit),
        advice=name_devices(advice.text, noun),
        paste=line_to_write(advice.key, spec),
    )
    others = [
        words.sentence(other, its)
        for other, its in points
        if other is not each and (its is not None or _adds_up(other) or _may_be(other) is not None)
    ]
    return found, [*others, *doubts]


def startup_sentences(scaling: pd.DataFrame, noun: str = "device") -> list[str]:
    """Return a sentence on the points whose runs spend much of their wall time on starting.

    Start-up is no part of a step: neither a throughput nor an efficiency contains it.

    Args:
        scaling: Output of ``scaling_table``, or the rows of one series.
        noun: Name of a device.
    """
    shares = scaling["startup_seconds"].astype(float) / scaling["wall_seconds"].astype(float)
    long = scaling[shares > NAMED_FROM]
    if long.empty:
        return []
    words = _Words(noun, several=scaling["series"].nunique() > 1)
    texts = [
        f"{percent(share, 0)} {'' if place else 'of a run '}on {words.where(point)}"
        for place, (share, (_, point)) in enumerate(
            zip(shares[long.index], long.head(MAX_PLACES).iterrows(), strict=False)
        )
    ]
    return [f"Start-up takes {listed(texts)}. In longer trainings it matters less."]


def line_to_write(key: str, spec: AnyExperiment) -> str:
    """Return a key with twice its value, as it stands in experiments.yaml; empty if it is swept or not known.

    Args:
        key: Key of the experiment, or ``LARGER_BATCH``.
        spec: The experiment.
    """
    if key == LARGER_BATCH:
        key = "global_batch_size" if spec.scaling == "strong" else "batch_size_per_device"
    value = getattr(spec, key, None) if key else None
    return "" if not isinstance(value, int) or key in spec.swept else f"{key}: {2 * value}"


# --- what is named ------------------------------------------------------------------------------------


def _bottleneck(each: PointLosses, judged: int) -> Bottleneck | None:
    loss, runs = each.main(), each.runs
    waits = (runs[COLUMNS[STRAGGLER]] >= NAMED_FROM * runs["step_seconds"]).any()
    place = find_slow_place(runs, judged) if waits else None
    of_host = _at_slow_host(each, place)
    if of_host is not None and (loss is None or of_host.share.estimate > loss.share.estimate):
        loss = of_host
    if loss is None:
        return None
    at = place if loss.cause == STRAGGLER else None
    return Bottleneck(each.point, loss.cause, loss.share, loss.in_efficiency, at, runs)


def _at_slow_host(each: PointLosses, place: SlowPlace | None) -> Loss | None:
    """Return the loss to a slow host in the runs that it takes part in; None if these are all of them."""
    if place is None or place.rank is not None or place.taken == len(each.runs):
        return None
    lost, step = (
        [float(value) for value in place.runs[name]] for name in (COLUMNS[STRAGGLER], "step_seconds")
    )
    share = difference_of_means(lost, [0.0]).scaled(len(step) / sum(step))
    loss = Loss(STRAGGLER, share, median(lost) / median(step), measured=True, in_efficiency=True)
    return loss if loss.is_shown else None


def _focus(points: Points, chosen: int | None) -> tuple[PointLosses, Bottleneck | None]:
    """Return the chosen point, or the next larger one that is shown to lose time; without one the largest."""
    beyond = [(each, limit) for each, limit in points if each.point["devices"] >= (chosen or 0)]
    if chosen is None or not beyond:
        return max(points, key=lambda point: point[0].point["devices"])
    slowed = [(each, limit) for each, limit in beyond if limit is not None or _adds_up(each)]
    return (slowed or beyond)[0]


def _adds_up(each: PointLosses) -> bool:
    return each.total is not None and each.total.is_shown


def _may_be(each: PointLosses) -> Loss | None:
    """Return the largest loss that the runs do not distinguish from none."""
    maybe = [loss for loss in each.losses or each.waits if loss.is_large and not loss.is_shown]
    return max(maybe, key=lambda loss: loss.share.estimate, default=None)


def _bar(each: PointLosses) -> Iterator[dict[str, Any]]:
    """Yield the parts of a step, the computing that ideal scaling would not have apart."""
    step = float(each.runs["step_seconds"].mean())
    excess = max(next((loss.share.estimate for loss in each.losses if loss.cause == COMPUTE), 0.0), 0.0)
    bar = []
    for part in STEP_PARTS:
        share = each.parts.get(part.key, 0.0)
        if part.key == COMPUTE:
            name = part.name if LOADER in each.parts else COMPUTE_WITH_LOADER
            bar += [(part.key, name, share - excess), (EXCESS.key, EXCESS.name, excess)]
        else:
            bar.append((part.key, part.name, share))
    # the lesser of two measurements of the communication counts if they disagree
    bar.append((UNKNOWN.key, "uncertain", 1 - sum(each.parts.values())))
    for key, name, share in bar:
        if share >= SHOWN_FROM:
            yield {"key": key, "name": name, "share": share, "seconds": share * step}


# --- how it is said -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Words:
    """Sentences on points.

    Args:
        noun: Name of a device.
        several: Points are of several series, which are then named.
    """

    noun: str
    several: bool

    def where(self, point: pd.Series) -> str:
        """Return ``8 GPUs``, ``8 GPUs with bucket-view-on``."""
        series = str(point["series"])
        named = f" with {series}" if self.several and series != NO_OPTIONS else ""
        return f"{count_devices(int(point['devices']), self.noun)}{named}"

    def sentence(self, each: PointLosses, limit: Bottleneck | None) -> str:
        """Return what a point loses, in one number with its interval."""
        where, total = f"On {self.where(each.point)}", each.total
        if limit is not None and limit.in_some_runs:
            assert limit.place is not None
            return (
                f"{where}, node {limit.place.host} slows the {limit.place.taken} of {len(limit.runs)} runs "
                f"that it takes part in: {_lost(limit.share)}."
            )
        if total is not None and total.is_shown and self._explains(total, limit):
            if limit is None:
                return f"{where}, {_lost(total.share)}, with no single cause."
            part = "most of it" if limit.share.estimate >= MOST * total.share.estimate else "the largest part"
            return f"{where}, {_lost(total.share)}, {part} to {_loss_name(limit)}."
        if limit is not None:
            share = limit.share.estimate if limit.cause == COMPUTE else each.parts[limit.cause]
            takes = f"{where}, {_loss_name(limit)} takes {percent(share, 0)} of each step."
            base = not limit.in_efficiency and self._baseline_alike(each)
            return f"{takes} {base}" if base else takes
        if (loss := _may_be(each)) is not None:
            more = "One run cannot show it." if math.isnan(loss.share.low) else "More repeats would show it."
            return (
                f"{where}, {LOSSES[loss.cause]} may take {percent(loss.share.estimate, 0)} of each step"
                f"{_interval(loss.share)}. {more}"
            )
        if total is None:
            return f"{where}, computing takes {percent(each.parts[COMPUTE], 0)} of each step."
        if total.share.low > 0:
            return f"{where}, {_lost(total.share)}."
        return f"{where}, no loss of speed is shown."

    @staticmethod
    def _explains(total: Loss, limit: Bottleneck | None) -> bool:
        """Return whether the cause is part of the total; computing that got faster hides a part of it."""
        return limit is None or (
            limit.in_efficiency and limit.share.estimate <= total.share.estimate + EQUAL_WITHIN
        )

    def _baseline_alike(self, each: PointLosses) -> str:
        """Return a sentence on a wait that no efficiency shows."""
        base = number(each.point, "baseline_devices")
        if each.total is None or math.isnan(base):
            return "The efficiency does not show it."
        return f"The efficiency does not show it: {count_devices(int(base), self.noun)} waited alike."

    def advice(self, each: PointLosses, limit: Bottleneck | None) -> Advice:
        """Return what to do about a point's loss; empty if it has none that is shown."""
        if limit is None:
            return SEVERAL if _adds_up(each) else Advice("")
        if limit.cause == STRAGGLER:
            return Advice(_against_slow_rank(limit))
        return advice_against(limit.cause, str(limit.point["loader"]))

    def unknown(self, points: Sequence[PointLosses]) -> Iterator[str]:
        """Yield a sentence for each part of a step that the records do not have."""
        if any(each.runs["loader_seconds"].isna().all() for each in points):
            yield (
                "How long devices wait for data is not known: no DataLoader of PyTorch feeds the training. "
                "Computing contains it."
            )
        of_several = [each for each in points if each.point["devices"] > 1]
        if any(each.runs[COLUMNS[JITTER]].isna().any() for each in of_several):
            yield "The records do not separate waiting for late ranks from communication."

    def uncertain(self, scaling: pd.DataFrame) -> Iterator[str]:
        """Yield a sentence on the largest point of which two measurements of the communication disagree."""
        doubted = [point for _, point in scaling.iterrows() if is_in_doubt(point)]
        if doubted:
            point = max(doubted, key=lambda point: point["devices"])
            counted, checked = (
                milliseconds(number(point, column))
                for column in (COLUMNS[COMMUNICATION], "crosscheck_communication_seconds")
            )
            yield (
                f"The time in communication is uncertain. On {self.where(point)} it is {counted} a step by "
                f"DDP's counters, {checked} by a test after the training."
            )


def _loss_name(limit: Bottleneck) -> str:
    if limit.cause != STRAGGLER:
        return LOSSES[limit.cause]
    place, only = limit.place, most_frequent_rank(limit.runs)
    if place is None and only is not None and only.taken == 1:
        place = only
    if place is None:
        return LOSSES[STRAGGLER]
    if place.rank is None:
        return f"waiting for node {place.host}"
    return f"waiting for rank {place.rank}{f' on {place.host}' if place.host else ''}"


def _against_slow_rank(limit: Bottleneck) -> str:
    place = limit.place or most_frequent_rank(limit.runs)
    if place is None or (limit.place is None and place.hits < place.taken):
        return (
            "It is not the same rank in all runs. Look for other programs on its nodes, or ask the site for "
            "whole ones."
        )
    if place.rank is None:
        return f"Leave {place.host} out, or ask the site."
    if place.taken == 1:
        return (
            f"Check what else uses the device and CPUs of rank {place.rank}. Then repeat, to see whether it "
            "is always that rank."
        )
    if limit.place is None:
        name = f"rank {place.rank} on {place.host}" if place.host else f"rank {place.rank}"
        return (
            f"It is {name} in all {place.taken} runs, which chance does in {percent_in_digits(place.chance)} "
            "of studies. More repeats would show whether it is always that rank."
        )
    often = "" if place.hits == place.taken else f"It is slow in {place.hits} of {place.taken} runs. "
    if place.host is None:
        return f"{often}It is slow on every node: check whether its share of the work is larger."
    if limit.point["nodes"] > 1:
        return f"{often}Leave {place.host} out, or ask the site."
    return f"{often}Check what else uses its device and CPUs, and whether its share of the work is larger."


def _lost(share: Interval) -> str:
    """Return ``21 % of each step is lost (7 to 36 %)``."""
    return f"{percent(share.estimate, 0)} of each step is lost{_interval(share)}"


def _interval(share: Interval) -> str:
    """Return `` (7 to 36 %)``; empty of too few runs, and if the ends round to the same or are far apart."""
    if share.n < ENOUGH_REPEATS or math.isnan(share.low) or share.high - share.low >= 1:
        return ""
    low, high = percent(share.low, 0), percent(min(share.high, 1.0), 0)
    return "" if low == high else f" ({low.removesuffix(' %')} to {high})"
