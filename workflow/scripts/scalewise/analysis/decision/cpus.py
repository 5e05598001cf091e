"""The fewest CPUs per device that are not slower, in an experiment that sweeps them.

CPUs feed a device and do not change what it trains, so throughput is compared, on one device count and with
equal other options. Some CPUs are too few if more are shown to be faster by ``min_gain``, as more devices
would have to be. The fewest that are not are the answer if the runs show that no more bring that gain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from scalewise.analysis.comparison.gains import Gains, Point, accuracy_difference
from scalewise.analysis.decision.choice import Verdict, verdict
from scalewise.analysis.decision.wording import ratio_bounds, repeats_text
from scalewise.analysis.statistics import ENOUGH_REPEATS, Ratio, runs_to_tell
from scalewise.plan.config.experiment import ACCEPTED_LOSS
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import format_ratio, listed, percent, percent_in_digits, pluralize
from scalewise.plan.runs.runs import Options

KEY = "cpus_per_device"

SeriesByCpus = Mapping[int, str]
"""Names of series that differ in their CPUs only, by these, fewest first."""


@dataclass(frozen=True)
class CpuAnswer:
    """The answer to "How many CPUs per device?".

    Args:
        per_device: The fewest CPUs that are not slower; None if the runs cannot tell.
        at_least: The fewest that are not shown to be slower; None if nothing was compared.
        devices: Device count on which they were compared; None if nothing was.
        loader_fractions: Share of a step that waits for data, by CPUs; None if unknown.
        sentences: The answer in words, what it rests on, and the waits for data.
        learning: A sentence on whether CPUs change the accuracy; empty if runs know none.
    """

    per_device: int | None
    at_least: int | None
    devices: int | None
    loader_fractions: Mapping[str, float | None]
    sentences: Sequence[str]
    learning: str


def answer_cpus(
    scaling: pd.DataFrame,
    compared: Gains,
    options: Mapping[str, Options],
    min_gain: float,
    *,
    answer: Point | None = None,
) -> CpuAnswer:
    """Return how many CPUs per device to use, on the devices and with the other options of the answer.

    Args:
        scaling: Output of ``scaling_table``.
        compared: Output of ``gains``.
        options: Options of each series, by its name; ``cpus_per_device`` is swept.
        min_gain: Gain from which on more CPUs are worth having, a fraction.
        answer: The recommended point; without one, the first series and the most devices are taken.
    """
    if answer is not None and answer[0] not in options:
        answer = None  # it is of runs under other conditions
    series = _series_by_cpus(options, next(iter(options)) if answer is None else answer[0])
    counts = sorted({devices for _, devices in compared.points})
    if answer is not None:
        counts.append(answer[1])  # the last is preferred
    shared = [devices for devices in counts if len(_measured(series, compared, devices)) > 1]
    if not shared:
        nothing = "How many CPUs per device is unknown: no two numbers of them have results on equal devices."
        return CpuAnswer(None, None, None, {}, [nothing], "")
    devices = shared[-1]
    measured = _measured(series, compared, devices)
    at_least, more = _fewest(measured, compared, devices, min_gain)
    is_open = "open" in [found for found, _ in more.values()]
    shares = _loader_fractions(scaling, measured, devices)
    return CpuAnswer(
        per_device=None if is_open else at_least,
        at_least=at_least,
        devices=devices,
        loader_fractions={str(cpus): share for cpus, share in shares.items()},
        sentences=[
            *_answer(at_least, more, devices, min_gain),
            *_fewer(measured, at_least, compared, devices),
            *_waits(shares),
            *_other_rule(answer, measured, None if is_open else at_least),
        ],
        learning=_learning(series, compared, slower=at_least > min(measured)),
    )


def _series_by_cpus(options: Mapping[str, Options], name: str) -> SeriesByCpus:
    """Return the series whose options are those of one of them, but for the CPUs."""

    def others(each: Options) -> str:
        return repr([option for option in each if option[0] != KEY])

    same = {
        dict(each)[KEY]: name_ for name_, each in options.items() if others(each) == others(options[name])
    }
    return dict(sorted(same.items()))


def _measured(series: SeriesByCpus, compared: Gains, devices: int) -> SeriesByCpus:
    return {cpus: name for cpus, name in series.items() if (name, devices) in compared.points}


def _fewest(
    series: SeriesByCpus, compared: Gains, devices: int, min_gain: float
) -> tuple[int, dict[int, tuple[Verdict, Ratio | None]]]:
    """Return the fewest CPUs that are not shown to be slower, and what is known of more."""
    for cpus, name in series.items():
        more = {
            other: _verdict(compared.of("throughput", (faster, devices), (name, devices)), 1 + min_gain)
            for other, faster in series.items()
            if other > cpus
        }
        if "shown" not in [found for found, _ in more.values()]:
            return cpus, more
    raise AssertionError("nothing is faster than the most CPUs")


def _verdict(ratio: Ratio | None, threshold: float) -> tuple[Verdict, Ratio | None]:
    known = ratio is not None and ratio.n >= ENOUGH_REPEATS
    return (verdict(ratio, threshold) if known and ratio is not None else "open"), ratio


def _answer(
    cpus: int, more: Mapping[int, tuple[Verdict, Ratio | None]], devices: int, min_gain: float
) -> Iterator[str]:
    where, gain = count_devices(devices), percent(min_gain, 0)
    unclear = {other: ratio for other, (found, ratio) in more.items() if found == "open"}
    if not unclear:
        yield f"Use {_cpus(cpus)} per device, as compared on {where}."
        if more:
            ratios = {other: ratio for other, (_, ratio) in more.items()}
            yield f"More are not {gain} faster: {_ratios(ratios, cpus)}."
        else:
            yield "No more were measured: more may be faster."
        return
    least = f", but at least {cpus}" if cpus > 1 else ""
    yield f"How many CPUs per device is not clear{least}, as compared on {where}."
    yield f"Whether {' or '.join(map(str, unclear))} are {gain} faster is open: {_ratios(unclear, cpus)}."
    known = [ratio for ratio in unclear.values() if ratio is not None]
    if len(known) < len(unclear) or min(ratio.n for ratio in known) < ENOUGH_REPEATS:
        yield f"Use {ENOUGH_REPEATS} or more repeats."
        return
    needed = [(runs_to_tell(ratio, 1 + min_gain), ratio.n) for ratio in known]
    yield f"{repeats_text(*max(needed, key=lambda each: each[0] or math.inf))}."


def _fewer(series: SeriesByCpus, cpus: int, compared: Gains, devices: int) -> Iterator[str]:
    """A sentence on the next fewer CPUs than the fewest that are not shown to be slower."""
    fewer = max((each for each in series if each < cpus), default=None)
    if fewer is not None:
        ratio = compared.of("throughput", (series[fewer], devices), (series[cpus], devices))
        yield f"Fewer are slower: {_ratios({fewer: ratio}, cpus)}."


def _ratios(ratios: Mapping[int, Ratio | None], cpus: int) -> str:
    """``8 CPUs have 1.01x the throughput of 4 (0.99 to 1.03, n = 3)``."""
    return "; ".join(
        f"{_cpus(other)} {'has' if other == 1 else 'have'} "
        + (
            "no known throughput"
            if ratio is None
            else f"{format_ratio(ratio.estimate)}x the throughput of {cpus} ({ratio_bounds(ratio)})"
        )
        for other, ratio in ratios.items()
    )


def _loader_fractions(scaling: pd.DataFrame, series: SeriesByCpus, devices: int) -> dict[int, float | None]:
    points = scaling[scaling["devices"] == devices].set_index("series")
    shares = (points["loader_seconds"] / points["step_seconds"]).astype(float)
    return {cpus: None if math.isnan(shares[name]) else float(shares[name]) for cpus, name in series.items()}


def _waits(shares: Mapping[int, float | None]) -> Iterator[str]:
    known = {cpus: share for cpus, share in shares.items() if share is not None}
    if known:
        parts = [f"{percent_in_digits(share)} with {_cpus(cpus)}" for cpus, share in known.items()]
        yield f"Share of a step that waits for data: {listed(parts)}."
    else:
        yield "How much of a step waits for data is not known."


def _other_rule(answer: Point | None, series: SeriesByCpus, cpus: int | None) -> Iterator[str]:
    """A sentence that says why the answer on devices names other CPUs."""
    if cpus is not None and answer is not None and answer[0] != series[cpus]:
        yield (
            f"The answer on devices names {answer[0]} by another rule: the first option listed, or the "
            "fastest of those that are shown to be faster than it."
        )


def _learning(series: SeriesByCpus, compared: Gains, *, slower: bool) -> str:
    """The sentence on whether CPUs change the accuracy: shown not to, or not clear.

    Args:
        series: Series that differ in their CPUs only.
        compared: Output of ``gains``.
        slower: Some CPUs are shown to be slower than others.
    """
    points = [
        ((one, devices), (other, devices))
        for one, other in combinations(series.values(), 2)
        for devices in sorted({devices for _, devices in compared.points})
        if {(one, devices), (other, devices)} <= compared.points.keys()
    ]
    if not any(compared.points[each]["final_accuracy"].notna().any() for pair in points for each in pair):
        return ""
    differences = [accuracy_difference(compared, other, one) for one, other in points]
    known = [each for each in differences if each is not None]
    limit = f"{100 * ACCEPTED_LOSS:g} percentage points"
    if len(known) < len(differences):
        return "Whether CPUs per device change the accuracy is not known: that takes 2 or more runs of each."
    if all(max(abs(each.low), abs(each.high)) <= ACCEPTED_LOSS for each in known):
        only = (
            "CPUs per device change only the time" if slower else "CPUs per device do not change the accuracy"
        )
        return f"{only}: on equal devices all final accuracies are equal within {limit} (95 % intervals)."
    widest = max(known, key=lambda each: max(abs(each.low), abs(each.high)))
    most = 100 * max(abs(widest.low), abs(widest.high))
    return (
        "Whether CPUs per device change the accuracy is not clear: on equal devices final accuracies may "
        f"differ by up to {most:.1f} percentage points (95 % intervals)."
    )


def _cpus(number: int) -> str:
    return pluralize(str(number), "CPU")
