"""The figures of an experiment, by seaborn: colour-blind safe, readable in grey, intervals drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from scalewise.analysis.tables import NO_OPTIONS

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["", (4, 1.5), (1, 1), (3, 1, 1, 1), (6, 2), (2, 2), (5, 1, 1, 1, 1, 1), (1, 3)]
_BYTES_PER_MB = 1e6


def _style() -> None:
    sns.set_theme(
        context="notebook",
        style="whitegrid",
        palette="colorblind",
        rc={
            "figure.figsize": (6.0, 4.0),
            "figure.constrained_layout.use": True,
            "font.size": 11,
            "axes.titlesize": 11,
            "legend.frameon": True,
            "svg.hashsalt": "scalewise",  # equal data, equal file
            "svg.fonttype": "path",  # needs no font where it is read
            "pdf.fonttype": 42,
        },
    )


def _empty(message: str) -> Figure:
    figure = Figure()
    axes = figure.subplots()
    axes.text(0.5, 0.5, message, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
    return figure


def _device_axis(axes: Axes, devices: Sequence[int]) -> None:
    ticks = sorted(set(devices))
    if max(ticks) / min(ticks) >= 8:
        axes.set_xscale("log", base=2)
    else:
        axes.set_xlim(min(ticks) - 0.3, max(ticks) + 0.3)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("devices")


def _lines(axes: Axes, scaling: pd.DataFrame, column: str) -> None:
    """Estimates joined by lines and intervals as bars, a colour, marker and dash for each series."""
    names = list(dict.fromkeys(scaling["series"]))
    sns.lineplot(
        scaling, x="devices", y=column, hue="series", style="series", hue_order=names,
        style_order=names, markers=MARKERS[: len(names)], dashes=DASHES[: len(names)],
        palette=sns.color_palette("colorblind", len(names)), markersize=8, ax=axes,
        legend="full" if len(names) > 1 or names != [NO_OPTIONS] else False,
    )  # fmt: skip
    for colour, name in zip(sns.color_palette("colorblind", len(names)), names, strict=True):
        points = scaling[scaling["series"] == name].dropna(subset=[column])
        below = (points[column] - points[f"{column}_low"]).clip(lower=0)
        above = (points[f"{column}_high"] - points[column]).clip(lower=0)
        axes.errorbar(
            points["devices"], points[column], yerr=[below, above], fmt="none", ecolor=colour,
            elinewidth=1.5, capsize=5,
        )  # fmt: skip
    legend = axes.get_legend()
    if legend:
        legend.set_title(None)


def throughput(scaling: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Samples per second against devices; each run is a small ring beside its median."""
    figure = Figure()
    axes = figure.subplots()
    _lines(axes, scaling, "throughput_samples_per_second")
    done = runs[runs["outcome"] == "completed"]
    axes.scatter(
        done["devices"] + 0.06, done["throughput_samples_per_second"], s=18, facecolors="none",
        edgecolors="0.4", linewidths=0.8, zorder=3, label="single runs",
    )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("throughput (samples/s)")
    _device_axis(axes, scaling["devices"].tolist())
    return figure


def speedup(scaling: pd.DataFrame) -> Figure:
    """Speedup over the baseline against devices, with the ideal line."""
    figure = Figure()
    axes = figure.subplots()
    devices = sorted(set(scaling["devices"]))
    base = scaling["baseline_devices"].min()
    ideal = [count / base for count in devices]
    axes.plot(devices, ideal, color="0.35", linestyle=":", label="ideal")
    axes.annotate(
        "ideal", (devices[-1], ideal[-1]), xytext=(-8, -2), textcoords="offset points", ha="right",
        va="top" if len(devices) == 1 else "bottom", color="0.35",
    )  # fmt: skip
    _lines(axes, scaling, "speedup")
    axes.set_ylim(bottom=0)
    unit = "device" if base == 1 else "devices"
    axes.set_ylabel(f"speedup over {base:.0f} {unit}")
    _device_axis(axes, devices)
    return figure


def efficiency(scaling: pd.DataFrame, min_efficiency: float) -> Figure:
    """Parallel efficiency against devices, with the least that was asked for."""
    figure = Figure()
    axes = figure.subplots()
    axes.axhline(1, color="0.35", linestyle=":")
    axes.axhline(min_efficiency, color="0.35", linestyle="--", linewidth=1)
    left = min(scaling["devices"])
    axes.annotate("ideal", (left, 1), xytext=(0, 3), textcoords="offset points", color="0.35")
    axes.annotate(
        f"asked for: {min_efficiency:.0%}", (left, min_efficiency), xytext=(0, 3),
        textcoords="offset points", color="0.35",
    )  # fmt: skip
    _lines(axes, scaling, "parallel_efficiency")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("parallel efficiency")
    _device_axis(axes, scaling["devices"].tolist())
    return figure


def memory(scaling: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Peak memory of the fullest device against devices."""
    figure = Figure()
    axes = figure.subplots()
    columns = [f"peak_memory_bytes{suffix}" for suffix in ("", "_low", "_high")]
    in_mb = scaling.assign(**{column: scaling[column] / _BYTES_PER_MB for column in columns})
    _lines(axes, in_mb, "peak_memory_bytes")
    axes.set_ylim(bottom=0)
    kinds = runs["peak_memory_kind"].dropna().unique()
    axes.set_ylabel(f"peak memory per device (MB)\n{', '.join(kinds)}")
    _device_axis(axes, scaling["devices"].tolist())
    return figure


def _curves(axes: Axes, epochs: pd.DataFrame, column: str) -> None:
    """Median over repeats with the range as a band; colour: devices, dash: CPUs per device or series."""
    by_cpus = epochs["cpus_per_device"].nunique() > 1
    style = "cpus per device" if by_cpus else "series"
    table = epochs.rename(columns={"cpus_per_device": "cpus per device"})
    styles = list(dict.fromkeys(table[style]))
    counts = sorted(set(table["devices"]))
    sns.lineplot(
        table, x="epoch", y=column, hue="devices", style=style if len(styles) > 1 else None,
        hue_order=counts, style_order=styles if len(styles) > 1 else None,
        dashes=DASHES[: len(styles)] if len(styles) > 1 else True,
        palette=sns.color_palette("colorblind", len(counts)), estimator="median",
        errorbar=("pi", 100), ax=axes,
    )  # fmt: skip
    for count, marker in zip(counts, MARKERS * len(counts), strict=False):
        medians = table[table["devices"] == count].groupby("epoch")[column].median()
        colour = sns.color_palette("colorblind", len(counts))[counts.index(count)]
        axes.plot(medians.index, medians, marker, color=colour, markersize=5, markevery=(0.0, 0.1))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch")


def loss(epochs: pd.DataFrame) -> Figure:
    """Training and test loss against epochs, by device count and CPUs per device."""
    figure = Figure(figsize=(8.0, 4.0))
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, column, title in ((left, "train_loss", "training"), (right, "test_loss", "test")):
        _curves(axes, epochs, column)
        axes.set_title(title)
        axes.set_ylabel("loss (cross entropy, mean per sample)")
        axes.set_ylim(bottom=0)
    left.get_legend().remove()
    return figure


def accuracy(epochs: pd.DataFrame, target: float | None) -> Figure:
    """Test accuracy against epochs, by device count and CPUs per device, with the target."""
    figure = Figure()
    axes = figure.subplots()
    if target is not None:
        axes.axhline(target, color="0.35", linestyle="--", linewidth=1)
        axes.annotate(
            f"target {target:.1%}", (1, target), xytext=(0, 3), textcoords="offset points",
            color="0.35",
        )  # fmt: skip
    _curves(axes, epochs, "test_accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("test accuracy")
    return figure


FIGURES = ("throughput", "speedup", "efficiency", "loss", "accuracy", "memory")


def draw_all(
    scaling: pd.DataFrame,
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    min_efficiency: float,
    target: float | None,
    folder: Path,
) -> None:
    """Write every figure as SVG and PDF; one that has nothing to show says so.

    Args:
        scaling: as ``scaling_table`` makes it.
        runs: as ``collect`` makes it.
        epochs: likewise.
        min_efficiency: drawn in the efficiency figure.
        target: test accuracy, drawn in the accuracy figure.
        folder: receives ``{name}.svg`` and ``{name}.pdf``.
    """
    _style()
    folder.mkdir(parents=True, exist_ok=True)
    measured = scaling[scaling["throughput_samples_per_second"].notna()]
    relative = scaling[scaling["speedup"].notna()]
    drawings: dict[str, tuple[pd.DataFrame, Callable[[], Figure]]] = {
        "throughput": (measured, lambda: throughput(measured, runs)),
        "speedup": (relative, lambda: speedup(relative)),
        "efficiency": (relative, lambda: efficiency(relative, min_efficiency)),
        "loss": (epochs, lambda: loss(epochs)),
        "accuracy": (epochs, lambda: accuracy(epochs, target)),
        "memory": (measured, lambda: memory(measured, runs)),
    }
    for name in FIGURES:
        table, draw = drawings[name]
        figure = draw() if len(table) else _empty(f"{name}: no completed run to show")
        for kind in ("svg", "pdf"):
            # without dates, so that equal data make equal files
            dates = {"Date": None} if kind == "svg" else {"CreationDate": None}
            with mpl.rc_context():
                figure.savefig(folder / f"{name}.{kind}", metadata=dates)
