"""A sentence beside each figure that says what this study's own numbers show there.

Only values that stand in the tables are said, with their intervals and their n; a value that is not known is
left out, and a figure of which nothing is known has no sentence. What every such figure means is in captions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.formatting import format_3sig, format_exact, format_ratio, percent_in_digits
from scalewise.plan.config.shape import count_devices
from scalewise.plan.runs.runs import NO_OPTIONS

LEAST_SHARE = 0.01
"""Share of a step from which on a part of it is named."""
_WENT_TO = {
    "communication_seconds": "communication",
    "loader_seconds": "waiting for data",
    "straggler_seconds": "waiting for a slow rank",
    "jitter_seconds": "jitter",
}


@dataclass(frozen=True)
class Findings:
    """The tables that the sentences are made from.

    Args:
        scaling: Contents of scaling.csv; of older ones columns may be missing.
        series: The series that is told; the first with a result where it is None.
        devices: The answer, which is told beside the most devices; None without one.
        min_efficiency: The least parallel efficiency asked for, a fraction.
        prediction: Contents of prediction.csv; None where nothing was predicted.
        epochs: Contents of epochs.csv; None where they are not at hand.
    """

    scaling: pd.DataFrame
    series: str | None = None
    devices: int | None = None
    min_efficiency: float | None = None
    prediction: pd.DataFrame | None = None
    epochs: pd.DataFrame | None = None

    def points(self, column: str) -> pd.DataFrame:
        """The points of the told series that know a value, in order of devices."""
        if column not in self.scaling:
            return self.scaling.iloc[:0]
        known: pd.DataFrame = self.scaling[self.scaling[column].notna() & (self.scaling["n"] > 0)]
        series = self.series if self.series is not None else next(iter(known["series"]), None)
        return known[known["series"] == series].sort_values("devices")

    def told(self, column: str) -> list[pd.Series]:
        """Those beyond the baseline that a sentence tells: the answer, and the most devices."""
        points = self.points(column)
        points = points[points["devices"] > points["baseline_devices"]]
        if points.empty:
            return []
        kept = points[points["devices"].isin({self.devices, points["devices"].max()})]
        return [point for _, point in kept.iterrows()]


def figure_sentences(findings: Findings) -> dict[str, str]:
    """The sentence of every figure that has one, by the figure's name."""
    found = {name: say(findings) for name, say in SENTENCES.items()}
    return {name: sentence for name, sentence in found.items() if sentence}


def speedup(findings: Findings) -> str:
    """The gain of the answer and of the most devices, the other series' gains, and the largest loss."""
    points = findings.told("speedup")
    if not points:
        return ""
    parts = []
    for index, point in enumerate(points):
        base = int(point["baseline_devices"])
        who = _devices(point) if index == 0 else f"{point['devices']}"
        relation = f"x as fast as {base}" if index == 0 else "x"
        doubt = ", a gain that is not shown" if _spans(point, "speedup", 1.0) else ""
        parts.append(
            f"{who} are {format_ratio(point['speedup'])}{relation} {_bounds(point, 'speedup')}{doubt}"
        )
    last = points[-1]
    return f"{_join(parts)}{_other_series(findings, last)}{_largest_loss(last, several=len(points) > 1)}."


def efficiency(findings: Findings) -> str:
    """The efficiency of the answer and of the most devices, beside what was asked for."""
    points = findings.told("parallel_efficiency")
    parts = []
    for index, point in enumerate(points):
        what = f"On {_devices(point)} efficiency is" if index == 0 else f"on {point['devices']} it is"
        value = f"{point['parallel_efficiency']:.2f}"
        bounds = _bounds(point, "parallel_efficiency", "{:.2f}".format)
        parts.append(f"{what} {value} {bounds}{_beside_asked(point, findings.min_efficiency)}")
    return f"{'; '.join(parts)}." if parts else ""


def step(findings: Findings) -> str:
    """The length of a step on the most devices, where it went, and the device time of a sample."""
    points = findings.points("step_seconds")
    if points.empty:
        return ""
    point = points.iloc[-1]
    shares = [
        f"{percent_in_digits(share)} {'went ' if not index else ''}to {noun}"
        for index, (share, noun) in enumerate(_losses(point))
    ]
    went = f", of which {_join(shares)}" if shares else ", nearly all of it compute"
    known = [name for name in _WENT_TO if pd.notna(_get(point, name))]
    sentence = (
        f"On {_devices(point)} a step takes {_milliseconds(point['step_seconds'])}{went if known else ''}"
    )
    efficient = _get(point, "parallel_efficiency")
    if point["devices"] > point["baseline_devices"] and efficient > 0:
        times, base = format_ratio(1 / efficient), int(point["baseline_devices"])
        sentence += f"; a sample takes {times}x the device time that it takes on {base}"
    return f"{sentence}{_medians(point)}."


def prediction(findings: Findings) -> str:
    """The predicted step over the measured one, and the prediction for the most devices without runs."""
    predicted = findings.prediction
    measured = findings.points("step_seconds").set_index("devices")
    if predicted is None or predicted.empty:
        return ""
    series = findings.series if findings.series is not None else predicted["series"].iloc[0]
    rows = predicted[predicted["series"] == series].sort_values("devices")
    rows = rows[rows["devices"] > rows["devices"].min()]
    parts = []
    both = rows[rows["devices"].isin(measured.index)]
    if len(both):
        row = both.iloc[-1]
        real = measured.loc[row["devices"], "step_seconds"]
        parts.append(
            f"On {count_devices(int(row['devices']))} the predicted step is "
            f"{format_ratio(row['step_seconds'] / real)}x the measured one "
            f"({_milliseconds(row['step_seconds'])} and {_milliseconds(real)})"
        )
    beyond = rows[~rows["devices"].isin(measured.index) & rows["parallel_efficiency"].notna()]
    if len(beyond):
        row = beyond.iloc[-1]
        band = f"{row['parallel_efficiency_low']:.2f} to {row['parallel_efficiency_high']:.2f}"
        on = f"{'on' if parts else 'On'} {int(row['devices']):,}{'' if parts else ' devices'}"
        parts.append(
            f"{on}, not measured, an efficiency of {row['parallel_efficiency']:.2f} ({band}) is predicted"
        )
    return f"{'; '.join(parts)}." if parts else ""


def efficiencies(findings: Findings) -> str:
    """Both efficiencies on the most devices that reached the target, and how much sooner that was."""
    points = [
        point
        for point in findings.told("statistical_efficiency")
        if pd.notna(_get(point, _SOONER)) and pd.notna(_get(point, "parallel_efficiency"))
    ]
    if not points:
        return ""
    point = points[-1]
    return (
        f"On {_devices(point)} hardware efficiency is {point['parallel_efficiency']:.2f} and statistical "
        f"efficiency {point['statistical_efficiency']:.2f}: the target is reached "
        f"{format_ratio(point[_SOONER])}x as soon as on {int(point['baseline_devices'])} "
        f"{_bounds(point, _SOONER)}."
    )


_SOONER = "time_to_accuracy_speedup"


def throughput(findings: Findings) -> str:
    """Samples a second on the fewest devices, on those of the answer and on the most."""
    return _along_devices(findings, THROUGHPUT, "Throughput is", _rate, unit=" samples/s")


def accuracy(findings: Findings) -> str:
    """The accuracy at the end of training on the fewest devices, on those of the answer and on the most."""
    return _along_devices(findings, "final_accuracy", "Final test accuracy is", lambda value: f"{value:.1%}")


def memory(findings: Findings) -> str:
    """Peak memory of a device on the fewest devices, on those of the answer and on the most."""
    return _along_devices(
        findings,
        "peak_memory_bytes",
        "The fullest device holds",
        lambda value: format_3sig(value / 1e6),
        unit=" MB",
    )


def loss(findings: Findings) -> str:
    """The test loss after the last epoch that all runs of the told points have."""
    epochs, points = findings.epochs, _ends(findings, THROUGHPUT)
    if epochs is None or "epoch" not in epochs or not points:
        return ""
    runs = epochs[epochs["series"] == points[0]["series"]]
    runs = runs[runs["devices"].isin([point["devices"] for point in points]) & runs["test_loss"].notna()]
    if runs.empty:
        return ""
    last = int(runs.groupby("run")["epoch"].max().min())
    medians = runs[runs["epoch"] == last].groupby("devices")["test_loss"].agg(["median", "size"])
    parts = [
        f"{format_3sig(row['median'])} on {_short(count, index)} (n = {int(row['size'])})"
        for index, (count, row) in enumerate(medians.iterrows())
        if math.isfinite(row["median"])
    ]
    after = "1 epoch" if last == 1 else f"{last} epochs"
    return f"After {after} the test loss is {_join(parts)}." if parts else ""


SENTENCES: Mapping[str, Callable[[Findings], str]] = {
    "speedup": speedup,
    "efficiency": efficiency,
    "step": step,
    "prediction": prediction,
    "efficiencies": efficiencies,
    "throughput": throughput,
    "accuracy": accuracy,
    "loss": loss,
    "memory": memory,
}


def _ends(findings: Findings, column: str) -> list[pd.Series]:
    """The baseline, the answer and the most devices."""
    points = findings.points(column)
    base = points[points["devices"] == points["baseline_devices"]]
    return [*(point for _, point in base.iterrows()), *findings.told(column)]


def _along_devices(
    findings: Findings, column: str, what: str, form: Callable[[float], str], unit: str = ""
) -> str:
    points = _ends(findings, column)
    parts = [
        f"{form(point[column])}{unit if not index else ''} on "
        f"{_devices(point) if not index else _short(point['devices'], index)} {_bounds(point, column, form)}"
        for index, point in enumerate(points)
    ]
    return f"{what} {_join(parts)}." if parts else ""


def _devices(point: pd.Series) -> str:
    where = count_devices(int(point["devices"]))
    return where if point["series"] == NO_OPTIONS else f"{where} of {point['series']}"


def _short(devices: Any, index: int) -> str:
    return count_devices(int(devices)) if not index else f"{int(devices)}"


def _bounds(point: pd.Series, column: str, form: Callable[[float], str] = format_ratio) -> str:
    """``(1.60 to 1.80, n = 3)``; the interval is left out where there is none."""
    low, high = _get(point, f"{column}_low"), _get(point, f"{column}_high")
    runs = _get(point, "speedup_n") if "speedup" in column or "efficiency" in column else math.nan
    n = f"n = {int(point['n'] if math.isnan(runs) else runs)}"
    return (
        f"({n})"
        if math.isnan(low) or math.isnan(high) or low == high
        else f"({form(low)} to {form(high)}, {n})"
    )


def _spans(point: pd.Series, column: str, value: float) -> bool:
    """Whether the interval holds the value; one run has none, and spans nothing."""
    return bool(_get(point, f"{column}_low") <= value <= _get(point, f"{column}_high"))


def _get(point: pd.Series, column: str) -> float:
    value = point.get(column)
    return math.nan if pd.isna(value) else float(value)


def _other_series(findings: Findings, point: pd.Series) -> str:
    """A clause on the same devices with other options."""
    table = findings.scaling
    others = table[
        (table["series"] != point["series"])
        & (table["devices"] == point["devices"])
        & table["speedup"].notna()
    ]
    if others.empty:
        return ""
    least, most = others["speedup"].min(), others["speedup"].max()
    if len(others) == 1:
        return f"; {others['series'].iloc[0]} reaches {format_ratio(least)}x"
    return f"; the other {len(others)} series reach {format_ratio(least)}x to {format_ratio(most)}x"


def _losses(point: pd.Series) -> list[tuple[float, str]]:
    """Shares of a step that were no computing, with what they went to, the largest first."""
    step_seconds = _get(point, "step_seconds")
    shares = [(_get(point, column) / step_seconds, noun) for column, noun in _WENT_TO.items()]
    return sorted((share for share in shares if share[0] >= LEAST_SHARE), reverse=True)


def _largest_loss(point: pd.Series, *, several: bool) -> str:
    losses = _losses(point)
    if not losses:
        return ""
    share, noun = losses[0]
    where = f"on {point['devices']}, " if several else ""
    return f"; {where}{percent_in_digits(share)} of the step went to {noun}"


def _beside_asked(point: pd.Series, asked: float | None) -> str:
    low, high = _get(point, "parallel_efficiency_low"), _get(point, "parallel_efficiency_high")
    if math.isnan(low) or math.isnan(high):
        return ""
    if asked is None:
        return ", a loss that is not shown" if low <= 1 <= high else ""
    if low >= asked:
        return f", above the {format_exact(asked)} asked for"
    if high < asked:
        return f", below the {format_exact(asked)} asked for"
    return f", which may be above or below the {format_exact(asked)} asked for"


def _medians(point: pd.Series) -> str:
    runs = int(point["n"])
    return "" if runs < 2 else f" (medians of {runs} runs)"


def _milliseconds(seconds: float) -> str:
    return f"{format_3sig(seconds * 1e3)} ms"


def _rate(value: float) -> str:
    return format_3sig(value) if value < 100 else f"{value:,.0f}"


def _join(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else ""
