"""A sentence beside each figure that says what this study's own numbers show there.

Only values that stand in the tables are said, with their intervals and their n; a value that is not known is
left out, and of a figure of which nothing is known it is said that nothing is. Whether a criterion is met is
left to the decision, whose rules know more than an interval. What every such figure means is in its caption.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from scalewise.analysis.accuracy import accuracy_lost
from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.steps import COLUMNS, COMMUNICATION, COMPUTE, STEP_PARTS
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    format_3sig,
    format_distinct,
    format_exact,
    format_ratio,
    listed,
    milliseconds,
    percent,
    point_text,
    points_text,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS


def figure_sentences(results: ExperimentResults) -> dict[str, str]:
    """The sentence of every figure, by the figure's name."""
    if _measured(results).empty:
        return dict.fromkeys(FIGURES, "No run has completed.")
    return {name: figure.sentence(results) or _nothing(results, name) for name, figure in FIGURES.items()}


def _nothing(results: ExperimentResults, name: str) -> str:
    """The sentence of a figure of which nothing is known."""
    measured = _measured(results)
    text = FIGURES[name]
    if not text.compares:
        series = measured["series"].iloc[0]
        return f"No run{'' if series == NO_OPTIONS else f' of {series}'} tells {text.unknown}."
    if len(measured) == 1:
        return "One device count has a result: there is nothing to compare."
    return f"Of no two device counts {text.unknown} known."


def _measured(results: ExperimentResults) -> pd.DataFrame:
    """The measured points of the answer's series, ascending; those of the first series without an answer."""
    done: pd.DataFrame = results.points[results.points["n"] > 0]
    series = results.series if results.series is not None else next(iter(done["series"]), None)
    return done[done["series"] == series].sort_values("devices")


def _points(results: ExperimentResults, column: str) -> pd.DataFrame:
    """Those of them that have a value."""
    measured = _measured(results)
    return measured[measured[column].notna()] if column in measured else measured.iloc[:0]


def _beyond_baseline(results: ExperimentResults, column: str) -> list[pd.Series]:
    """Those beyond the baseline that a sentence names: the answer, and the most devices."""
    points = _points(results, column)
    points = points[points["devices"] > points["baseline_devices"]]
    if points.empty:
        return []
    kept = points[points["devices"].isin({results.devices, points["devices"].max()})]
    return [point for _, point in kept.iterrows()]


def speedup(results: ExperimentResults) -> str:
    """The gain of the answer and of the most devices, and the other series' throughput."""
    points = _beyond_baseline(results, "speedup")
    if not points:
        return ""
    base = _points(results, "speedup").iloc[0]
    parts, said = [], ""
    for index, point in enumerate(points):
        lost = accuracy_lost_text(point, base)
        # results that differ are not the same work done sooner
        verb, relation = ("have", "x the throughput of") if lost else ("are", "x as fast as")
        who = devices_text(point) if index == 0 else f"{point['devices']}"
        over = "x" if relation == said else f"{relation} {point['baseline_devices']:.0f}"
        said = relation
        gain = f"{format_ratio(point['speedup'])}{over} {bounds(point, 'speedup')}"
        parts.append(f"{who} {verb} {gain}{doubt(point, 'speedup', 'gain')}{lost}")
    told = "; ".join(parts) if "lost" in parts[0] else listed(parts)
    return f"{told}{_other_series(results, points[-1])}."


def efficiency(results: ExperimentResults) -> str:
    """The efficiency of the answer and of the most devices, beside what was asked for."""
    points, asked = _beyond_baseline(results, "parallel_efficiency"), results.min_efficiency
    if results.to_target:
        asked = None
    parts = []
    for index, point in enumerate(points):
        what = f"On {devices_text(point)} efficiency is" if index == 0 else f"on {point['devices']} it is"
        value, of = point["parallel_efficiency"], bounds(point, "parallel_efficiency", "{:.2f}".format)
        shown = f"{value:.2f}" if asked is None else format_distinct(value, asked)[0]
        shown_or_not = doubt(point, "parallel_efficiency", "loss") if asked is None else ""
        parts.append(f"{what} {shown} {of}{shown_or_not}{_to_best(point)}")
    if parts and asked is not None:
        parts.append(f"{format_exact(asked)} or more is required")
    return f"{'; '.join(parts)}." if parts else ""


def _to_best(point: pd.Series) -> str:
    """A clause on the efficiency that decides, if it is relative to the baseline of another series."""
    best, devices = point.get("best_baseline"), float(point.get("best_baseline_devices", math.nan))
    if pd.isna(best) or (best, devices) == (point["series"], point["baseline_devices"]):
        return ""
    return f" ({point['efficiency_to_best']:.2f} relative to {point_text(devices, best)}, the best baseline)"


def step(results: ExperimentResults) -> str:
    """The length of a step on the most devices, what took it, and the device time of a sample."""
    points = _points(results, "step_seconds")
    if points.empty:
        return ""
    point = points.iloc[-1]
    sentence = (
        f"On {devices_text(point)} a step takes {milliseconds(point['step_seconds'])}{mean_of(point)}."
        f"{parts_of_step(point)}"
    )
    efficient = known(point, "parallel_efficiency")
    if point["devices"] > point["baseline_devices"] and efficient > 0:
        more, base = 1 / efficient - 1, count_devices(int(point["baseline_devices"]))
        than = f"{percent(abs(more), 0)} {'more' if more > 0 else 'less'} device time than on {base}"
        sentence += f" Each sample costs {than}."
    return sentence


def prediction(results: ExperimentResults) -> str:
    """The predicted step over the measured one, and the prediction for the most devices without runs."""
    predicted, measured = results.prediction, _measured(results)
    if predicted is None or predicted.empty:
        return ""
    series = measured["series"].iloc[0]
    rows = predicted[predicted["series"] == series].sort_values("devices")
    rows = rows[rows["devices"] > rows["devices"].min()]
    counts = measured.set_index("devices")
    parts = []
    for _, row in rows[rows["devices"].isin(counts.index)].iloc[::-1].iterrows():
        seconds, real = known(row, "step_seconds"), known(counts.loc[row["devices"]], "step_seconds")
        if math.isnan(seconds) or math.isnan(real):
            continue
        parts.append(
            f"On {devices_text(row)} the predicted step is {format_ratio(seconds / real)}x the measured one "
            f"({milliseconds(seconds)} and {milliseconds(real)})"
        )
        break
    beyond = rows[~rows["devices"].isin(counts.index) & rows["parallel_efficiency"].notna()]
    if len(beyond):
        row = beyond.iloc[-1]
        band = f"{row['parallel_efficiency_low']:.2f} to {row['parallel_efficiency_high']:.2f}"
        on = f"on {int(row['devices']):,}" if parts else f"On {devices_text(row)}"
        parts.append(
            f"{on}, not measured, an efficiency of {row['parallel_efficiency']:.2f} ({band}) is predicted"
        )
    return f"{'; '.join(parts)}." if parts else ""


def efficiencies(results: ExperimentResults) -> str:
    """Both efficiencies on the most devices that reached the target, and how much sooner that was.

    Each is of medians by itself, and the last is not their product to the digit.
    """
    points = [
        point
        for point in _beyond_baseline(results, "statistical_efficiency")
        if pd.notna(known(point, SOONER)) and pd.notna(known(point, "parallel_efficiency"))
    ]
    if not points:
        return ""
    point = points[-1]
    hardware, statistical = (
        f"{point[column]:.2f} {bounds(point, column, '{:.2f}'.format)}"
        for column in ("parallel_efficiency", "statistical_efficiency")
    )
    base = known(point, "time_to_accuracy_baseline_devices")
    return (
        f"On {devices_text(point)} hardware efficiency is {hardware} and statistical efficiency "
        f"{statistical}; the target is reached {format_ratio(point[SOONER])}x as fast as on "
        f"{point['baseline_devices'] if math.isnan(base) else base:.0f} {bounds(point, SOONER)}"
        f"{doubt(point, SOONER, 'gain')}."
    )


def throughput(results: ExperimentResults) -> str:
    """Samples a second on the fewest devices, on those of the answer and on the most."""
    return _along_devices(results, THROUGHPUT, "Throughput is", format_3sig, unit=" samples/s")


def accuracy(results: ExperimentResults) -> str:
    """The accuracy at the end of training on the fewest devices, on those of the answer and on the most."""
    return _along_devices(results, "final_accuracy", "Final test accuracy is", percent)


def memory(results: ExperimentResults) -> str:
    """Peak memory of a device on the fewest devices, on those of the answer and on the most."""
    return _along_devices(
        results,
        "peak_memory_bytes",
        "The fullest device holds",
        lambda value: format_3sig(value / 1e6),
        unit=" MB",
    )


def loss(results: ExperimentResults) -> str:
    """The test loss after the last epoch that all completed runs have; of a program its own loss by steps."""
    epochs, points = results.epochs, _ends(results, THROUGHPUT)
    if not points:
        return ""
    unit, column, what = (
        ("epoch", "test_loss", "test loss")
        if "epoch" in epochs
        else ("step", "loss", "loss as backward gets it")
    )
    if not {unit, column} <= set(epochs):
        return ""
    series = str(points[0]["series"])
    told = epochs[_of_series(results, epochs, series) & epochs[column].notna()]
    told = told[told["devices"].isin([point["devices"] for point in points])]
    common = [set(run[unit]) for _, run in told.groupby("run")]
    if not common:
        return ""
    if not (ends := set.intersection(*common)):
        return f"No {unit} is told by all runs: there is nothing to compare."
    last = int(max(ends))
    medians = told[told[unit] == last].groupby("devices")[column].agg(["median", "size"])
    medians = medians[medians["median"].map(math.isfinite)]
    parts = [
        f"{format_3sig(middle)} on {point_text(devices, series) if not index else devices} (n = {size})"
        for index, (devices, middle, size) in enumerate(medians.itertuples(name=None))
    ]
    after = f"1 {unit}" if last == 1 else f"{last:,} {unit}s"
    return f"After {after} the {what} is {listed(parts)}." if parts else ""


def _of_series(results: ExperimentResults, epochs: pd.DataFrame, series: str) -> pd.Series:
    """Rows of completed runs of a series, under its conditions."""
    done = results.completed
    return epochs["run"].isin(done.loc[done["series"] == series, "run"])


def _ends(results: ExperimentResults, column: str) -> list[pd.Series]:
    """The baseline, the answer and the most devices."""
    points = _points(results, column)
    base = points[points["devices"] == points["baseline_devices"]]
    return [*(point for _, point in base.iterrows()), *_beyond_baseline(results, column)]


def _along_devices(
    results: ExperimentResults, column: str, what: str, form: Callable[[float], str], unit: str = ""
) -> str:
    points = _ends(results, column)
    parts = [
        f"{form(point[column])}{unit if not index else ''} on "
        f"{devices_text(point) if not index else point['devices']} {bounds(point, column, form)}"
        for index, point in enumerate(points)
    ]
    return f"{what} {listed(parts)}." if parts else ""


def _other_series(results: ExperimentResults, point: pd.Series) -> str:
    """A clause on the throughput of the same devices with other options, under the same conditions."""
    table = results.points
    if THROUGHPUT not in table or math.isnan(mine := known(point, THROUGHPUT)):
        return ""
    others = table[
        (table["series"] != point["series"])
        & (table["devices"] == point["devices"])
        & (table["baseline_devices"] == point["baseline_devices"])
        & (table["n"] > 0)
        & table[THROUGHPUT].notna()
    ]
    if others.empty:
        return ""
    ratios = others[THROUGHPUT] / mine
    n = f"n = {int(min(others['n'].min(), point['n']))}"
    if len(others) == 1:
        return f"; {others['series'].iloc[0]} has {format_ratio(ratios.iloc[0])}x that throughput ({n})"
    least, most = format_ratio(ratios.min()), format_ratio(ratios.max())
    return f"; the other {len(others)} series have {least}x to {most}x that throughput ({n})"


SOONER = "time_to_accuracy_speedup"
LEAST_SHARE = 0.01
"""Share of a step from which on a part of it is named."""
NEARLY_ALL = 0.9
"""Share of a step that computing must take to be nearly all of it."""


def devices_text(point: Any) -> str:
    """A row of a table in words: ``8 devices of bucket-view-on``."""
    return point_text(int(point["devices"]), str(point["series"]))


def bounds(point: pd.Series, column: str, form: Callable[[float], str] = format_ratio) -> str:
    """``(1.60 to 1.80, n = 3)``; the interval is left out where there is none."""
    n = f"n = {_runs(point, column)}"
    if not _has_interval(point, column):
        return f"({n})"
    low, high = (form(known(point, f"{column}_{end}")) for end in ("low", "high"))
    return f"({low} to {high}, {n})"


def _runs(point: pd.Series, column: str) -> int:
    """Runs behind a value; of two device counts those of the smaller side."""
    columns = ["n"]
    if "speedup" in column or "efficiency" in column:
        columns.append("speedup_n")
    if column == SOONER:
        columns.append("n_reached")
    counts = [known(point, each) for each in columns]
    return int(min(runs for runs in counts if not math.isnan(runs)))


def _has_interval(point: pd.Series, column: str) -> bool:
    """Whether a value has an interval: single runs have none, and the baseline is exactly 1."""
    return known(point, f"{column}_low") < known(point, f"{column}_high")


def doubt(point: pd.Series, column: str, noun: str) -> str:
    """A clause where an interval holds 1: neither a gain nor a loss is shown.

    Args:
        point: A row of scaling.csv.
        column: Name of the value, without ``_low`` and ``_high``.
        noun: ``gain`` where more than 1 is one, ``loss`` where less is.
    """
    low, high, value = (known(point, f"{column}{end}") for end in ("_low", "_high", ""))
    if not _has_interval(point, column) or not low <= 1 <= high:
        return ""
    named = value > 1 if noun == "gain" else value < 1
    return f", no {noun} is shown" if named else ", no difference is shown"


def accuracy_lost_text(point: pd.Series, base: pd.Series) -> str:
    """A clause on the accuracy that is lost beyond doubt against the baseline."""
    columns = ["n", "final_accuracy", "final_accuracy_low", "final_accuracy_high"]
    here, there = (each.reindex(columns).astype(float) for each in (point, base))
    lost = accuracy_lost(here, there)
    return f", {points_text(lost)} of accuracy lost" if lost else ""


def known(point: pd.Series, column: str) -> float:
    """The value of a column; NaN where it is missing."""
    value = point.get(column)
    return math.nan if pd.isna(value) else float(value)


def parts_of_step(point: pd.Series) -> str:
    """Return a sentence on what took a step, the largest part first; empty if little of it is known."""
    step_seconds = known(point, "step_seconds")
    shares = [
        (known(point, part.column) / step_seconds, part.name) for part in STEP_PARTS if part.key != COMPUTE
    ]
    shares = sorted((share for share in shares if share[0] >= LEAST_SHARE), reverse=True)
    if math.isnan(known(point, COLUMNS[COMMUNICATION])):
        return " How much of it is communication is not known."
    if not shares:
        computing = known(point, COLUMNS[COMPUTE]) / step_seconds
        return " Nearly all of it is computing." if computing >= NEARLY_ALL else ""
    return f" Of it, {listed([f'{percent(share, 0)} is {name}' for share, name in shares])}."


def mean_of(point: pd.Series) -> str:
    """Return a remark on how many runs a value is the mean of."""
    runs = int(point["n"])
    return "" if runs < 2 else f" (mean of {runs} runs)"
