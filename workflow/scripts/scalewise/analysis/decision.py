"""How many devices to use, said in a sentence that the measured points carry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from scalewise.analysis.tables import NO_OPTIONS


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


def decide(experiment: str, scaling: pd.DataFrame, options: pd.DataFrame, min_efficiency: float) -> Decision:
    """The most devices whose efficiency is at least the one asked for, in the fastest series.

    Args:
        experiment: its name.
        scaling: as ``scaling_table`` makes it.
        options: as ``option_table`` makes it.
        min_efficiency: the least parallel efficiency that is worth its devices.
    """
    usable = scaling[scaling["parallel_efficiency"].notna()]
    if usable.empty:
        notes = "; ".join(dict.fromkeys(note for note in scaling["note"] if note))
        why = notes or "no run has completed"
        return Decision(experiment, None, None, f"No decision: {why}.", [], [], [])
    eligible = usable[usable["parallel_efficiency"] >= min_efficiency]
    best = _choose_series(eligible.sort_values("devices").groupby("series", sort=False).tail(1), scaling)
    series = usable[usable["series"] == best["series"]].sort_values("devices")
    others = series[series["devices"] != best["devices"]]
    planned = scaling[scaling["series"] == best["series"]].sort_values("devices")
    return Decision(
        experiment=experiment,
        devices=int(best["devices"]),
        series=str(best["series"]),
        sentence=_sentence(best, others, min_efficiency),
        alternatives=[_alternative(point) for _, point in others.iterrows()],
        options=[_option(row) for _, row in options.iterrows()],
        cautions=list(_cautions(best, series, planned)),
    )


def _choose_series(candidates: pd.DataFrame, scaling: pd.DataFrame) -> pd.Series:
    """The fastest series, but the first of the configuration unless another is faster beyond doubt."""
    fastest = candidates.sort_values("throughput_samples_per_second").iloc[-1]
    first = candidates[candidates["series"] == scaling["series"].iloc[0]]
    if first.empty:
        return fastest
    plain = first.iloc[0]
    doubtless = fastest["throughput_samples_per_second_low"] > plain["throughput_samples_per_second_high"]
    return fastest if doubtless else plain


def _sentence(best: pd.Series, others: pd.DataFrame, min_efficiency: float) -> str:
    devices, base = int(best["devices"]), int(best["baseline_devices"])
    with_options = "" if best["series"] == NO_OPTIONS else f" ({best['series']})"
    if devices > base:
        return (
            f"Use {_devices(devices)}{with_options}: {_speedup(best)} faster than {base}, efficiency "
            f"{best['parallel_efficiency']:.2f}, {1 / best['parallel_efficiency']:.2f}x the "
            "device-hours."
        )
    more = others[others["devices"] > base]
    if more.empty:
        return f"Use {_devices(devices)}{with_options}: no result on more devices."
    next_point = more.iloc[0]
    return (
        f"Use {_devices(devices)}{with_options}: {int(next_point['devices'])} would be "
        f"{_speedup(next_point)} faster, but at efficiency {next_point['parallel_efficiency']:.2f}, "
        f"below the {min_efficiency:.2f} asked for."
    )


def _alternative(point: pd.Series) -> str:
    devices = int(point["devices"])
    if devices == int(point["baseline_devices"]):
        rate = point["throughput_samples_per_second"]
        return f"{_devices(devices)}: the baseline, {rate:,.0f} samples/s."
    return (
        f"{_devices(devices)}: {_speedup(point)} faster, efficiency "
        f"{point['parallel_efficiency']:.2f}, {1 / point['parallel_efficiency']:.2f}x the "
        "device-hours."
    )


def _speedup(point: pd.Series) -> str:
    return (
        f"{point['speedup']:.2f}x ({point['speedup_low']:.2f} to {point['speedup_high']:.2f}, "
        f"n = {int(point['n'])})"
    )


def _option(row: pd.Series) -> str:
    low, high = row["throughput_ratio_low"], row["throughput_ratio_high"]
    if low <= 1 <= high:
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


def _cautions(best: pd.Series, series: pd.DataFrame, planned: pd.DataFrame) -> Iterator[str]:
    base = series[series["devices"] == best["baseline_devices"]].iloc[0]
    if int(best["baseline_devices"]) > 1:
        yield f"Speedups are relative to {int(best['baseline_devices'])} devices, not to 1."
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
        if point["parallel_efficiency_low"] > 1:
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
            yield f"{int(point['n_failed'])} of {total} runs on {where} did not complete."


def _devices(count: int) -> str:
    return f"{count} device" if count == 1 else f"{count} devices"


def _value(value: Any) -> str:
    return str(value).lower() if value in (True, False) else str(value)
