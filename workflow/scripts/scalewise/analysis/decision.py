"""How many devices to use, said in a sentence that the measured points carry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from scalewise.analysis.tables import NO_OPTIONS

SAME_TRAINING = {"gradient_as_bucket_view", "cpus_per_device"}
"""Options that change how fast a training runs, not what it trains."""


@dataclass(frozen=True)
class Decision:
    """What an experiment says.

    Args:
        experiment: its name.
        devices: to use; None where nothing can be said.
        series: options to use, as in scaling.csv.
        sentence: the answer.
        alternatives: other points of the same series, a sentence each.
        options: what the options gain, a sentence each.
        cautions: what weakens the answer.
    """

    experiment: str
    devices: int | None
    series: str | None
    sentence: str
    alternatives: list[str]
    options: list[str]
    cautions: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def decide(
    experiment: str,
    scaling: pd.DataFrame,
    options: pd.DataFrame,
    min_efficiency: float,
    *,
    target: float | None = None,
    differences: Sequence[str] = (),
) -> Decision:
    """The most devices whose efficiency is at least the one asked for and that are faster than fewer.

    Series compete only where their options leave the training itself alone; else the first of the
    configuration is decided on, and the others are shown beside it.

    Args:
        experiment: its name.
        scaling: as ``scaling_table`` makes it.
        options: as ``option_table`` makes it.
        min_efficiency: the least parallel efficiency that is worth its devices.
        target: test accuracy to reach, if any.
        differences: between runs that should differ in devices and options alone, a sentence each.
    """
    usable = scaling[scaling["parallel_efficiency"].notna()]
    if usable.empty:
        notes = "; ".join(dict.fromkeys(note for note in scaling["note"] if note))
        why = notes or "no run has completed"
        return Decision(experiment, None, None, f"No decision: {why}.", [], [], [])
    eligible = usable[usable["parallel_efficiency"] >= min_efficiency].sort_values("devices")
    fewer_are_slower = eligible["speedup"] == eligible.groupby("series")["speedup"].cummax()
    candidates = eligible[fewer_are_slower].groupby("series", sort=False).tail(1)
    if not set(options["option"]) <= SAME_TRAINING:
        candidates = candidates[candidates["series"] == candidates["series"].iloc[0]]
    best = _choose_series(candidates, usable)
    series = usable[usable["series"] == best["series"]].sort_values("devices")
    others = series[series["devices"] != best["devices"]]
    planned = scaling[scaling["series"] == best["series"]].sort_values("devices")
    return Decision(
        experiment=experiment,
        devices=int(best["devices"]),
        series=str(best["series"]),
        sentence=_sentence(best, others, min_efficiency),
        alternatives=[
            *(_alternative(point) for _, point in others.iterrows()),
            *_time_to_target(series, target),
        ],
        options=[_option(row) for _, row in options.iterrows()],
        cautions=[
            *_cautions(best, series, planned, min_efficiency),
            *_unreached(planned, target),
            *differences,
        ],
    )


def _choose_series(candidates: pd.DataFrame, usable: pd.DataFrame) -> pd.Series:
    """The fastest series where its interval is clear of the first one's at equal devices, else the first."""
    fastest = candidates.sort_values("throughput_samples_per_second").iloc[-1]
    first = candidates[candidates["series"] == usable["series"].iloc[0]]
    if first.empty:
        return fastest
    beside = usable[(usable["series"] == first["series"].iloc[0]) & (usable["devices"] == fastest["devices"])]
    clear = (beside["throughput_samples_per_second_high"] < fastest["throughput_samples_per_second_low"]) & (
        beside["n"] > 1
    )
    return fastest if len(beside) and clear.all() and fastest["n"] > 1 else first.iloc[0]


def _sentence(best: pd.Series, others: pd.DataFrame, min_efficiency: float) -> str:
    devices, base = int(best["devices"]), int(best["baseline_devices"])
    with_options = "" if best["series"] == NO_OPTIONS else f" ({best['series']})"
    if devices > base:
        return (
            f"Use {_devices(devices)}{with_options}: {_speedup(best)}, efficiency "
            f"{best['parallel_efficiency']:.2f}, {1 / best['parallel_efficiency']:.2f}x the "
            "device-hours."
        )
    more = others[others["devices"] > base]
    if more.empty:
        return f"Use {_devices(devices)}{with_options}: no result on more devices."
    next_point = more.iloc[0]
    return (
        f"Use {_devices(devices)}{with_options}: {int(next_point['devices'])} would be "
        f"{_speedup(next_point)}, but at efficiency {next_point['parallel_efficiency']:.2f}, "
        f"below the {min_efficiency:.2f} asked for."
    )


def _alternative(point: pd.Series) -> str:
    devices = int(point["devices"])
    if devices == int(point["baseline_devices"]):
        rate = point["throughput_samples_per_second"]
        return f"{_devices(devices)}: the baseline, {rate:,.0f} samples/s."
    return (
        f"{_devices(devices)}: {_speedup(point)}, efficiency "
        f"{point['parallel_efficiency']:.2f}, {1 / point['parallel_efficiency']:.2f}x the "
        "device-hours."
    )


def _speedup(point: pd.Series) -> str:
    return (
        f"{point['speedup']:.2f}x as fast as {int(point['baseline_devices'])} "
        f"({point['speedup_low']:.2f} to {point['speedup_high']:.2f}, n = {int(point['n'])})"
    )


def _option(row: pd.Series) -> str:
    low, high = row["throughput_ratio_low"], row["throughput_ratio_high"]
    if row["confidence"] == 0:
        verdict = "not judged from one run each"
    elif low <= 1 <= high:
        verdict = "no difference in throughput was measured"
    elif low > 1:
        verdict = "faster"
    else:
        verdict = "slower"
    beside = f" beside {row['beside']}" if row["beside"] else ""
    return (
        f"{row['option']} {_value(row['value'])} instead of {_value(row['reference'])}{beside}, on "
        f"{_devices(int(row['devices']))}: {verdict} ({row['throughput_ratio']:.2f}x, {low:.2f} to "
        f"{high:.2f}, n = {row['n']}), {row['peak_memory_ratio']:.3f}x the peak memory."
    )


def _time_to_target(series: pd.DataFrame, target: float | None) -> Iterator[str]:
    reached = series[series["time_to_accuracy_seconds"].notna()]
    if target is not None and len(reached):
        times = ", ".join(
            f"{point['time_to_accuracy_seconds']:,.2f} s on {_devices(int(point['devices']))}"
            for _, point in reached.iterrows()
        )
        yield f"Training time to {target:.1%} accuracy: {times}."


def _unreached(planned: pd.DataFrame, target: float | None) -> Iterator[str]:
    for _, point in planned.iterrows():
        if target is not None and point["n_reached"] < point["n"]:
            yield (
                f"{int(point['n_reached'])} of {int(point['n'])} runs on {_devices(int(point['devices']))} "
                f"reached {target:.1%} accuracy."
            )


def _cautions(
    best: pd.Series, series: pd.DataFrame, planned: pd.DataFrame, min_efficiency: float
) -> Iterator[str]:
    base = series[series["devices"] == best["baseline_devices"]].iloc[0]
    if int(best["baseline_devices"]) > 1:
        yield f"Speedups are relative to {int(best['baseline_devices'])} devices, not to 1."
    if best["devices"] > base["devices"] and best["parallel_efficiency_low"] < min_efficiency:
        yield (
            f"The efficiency of {best['parallel_efficiency']:.2f} is not clear of the {min_efficiency:.2f} "
            f"asked for: its interval reaches down to {best['parallel_efficiency_low']:.2f}."
        )
    if best["devices"] > base["devices"] and best["speedup_low"] <= 1:
        yield (
            f"{_devices(int(best['devices']))} have not been shown to be faster: the interval of the "
            "speedup reaches down to "
            f"{best['speedup_low']:.2f}. Use more repeats, or a machine that is not busy."
        )
    if int(series["n"].min()) < 3:
        fewest = int(series["n"].min())
        runs = "1 completed run" if fewest == 1 else f"{fewest} completed runs"
        yield f"Some points rest on {runs}; use 3 or more repeats."
    for _, point in series.iterrows():
        devices = int(point["devices"])
        if point["parallel_efficiency_low"] > 1 and point["n"] > 1:
            yield (
                f"{devices} devices show an efficiency of {point['parallel_efficiency']:.2f}, above 1 "
                "beyond its interval. That is an error until it is explained: look for cache effects, "
                "a slow baseline or a busy machine before you use it."
            )
        if point["final_accuracy_high"] < base["final_accuracy_low"]:
            yield (
                f"Accuracy falls with devices: {point['final_accuracy']:.1%} on {devices}, "
                f"{base['final_accuracy']:.1%} on {int(base['devices'])}."
            )
    for _, point in planned.iterrows():
        if int(point["n_failed"]):
            total = int(point["n_failed"] + point["n"])
            where = _devices(int(point["devices"]))
            yield f"{int(point['n_failed'])} of {total} runs on {where} have no result."


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _value(value: Any) -> str:
    return str(value).lower() if value in (True, False) else str(value)
