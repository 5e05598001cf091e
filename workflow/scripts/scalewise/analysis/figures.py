"""The figures of an experiment, by seaborn: colour-blind safe, readable in grey, intervals drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from scalewise.analysis.captions import CAPTIONS
from scalewise.analysis.tables import NO_OPTIONS

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["", (4, 1.5), (1, 1), (3, 1, 1, 1), (6, 2), (2, 2), (5, 1, 1, 1, 1, 1), (1, 3)]
MAX_PANELS = 12
PANELS_A_ROW = 4
DODGE = 0.02
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


def _dodged(devices: pd.Series, index: int, count: int) -> pd.Series:
    """Shift the points of one series sideways, so that equal values of two do not hide each other."""
    return devices * (1 + DODGE * (index - (count - 1) / 2))


def _lines(axes: Axes, scaling: pd.DataFrame, column: str) -> None:
    """Estimates joined by lines and intervals as bars, a colour, marker and dash for each series."""
    names = list(dict.fromkeys(scaling["series"]))
    colours = sns.color_palette("colorblind", len(names))
    shifted = pd.concat(
        [
            table.assign(devices=_dodged(table["devices"], names.index(name), len(names)))
            for name, table in scaling.dropna(subset=[column]).groupby("series", sort=False)
        ]
    )
    for name, table in shifted.groupby("series", sort=False):
        below = (table[column] - table[f"{column}_low"]).clip(lower=0)
        above = (table[f"{column}_high"] - table[column]).clip(lower=0)
        axes.errorbar(
            table["devices"], table[column], yerr=[below, above], fmt="none", elinewidth=1.5, capsize=5,
            ecolor=colours[names.index(name)],
        )  # fmt: skip
    sns.lineplot(
        shifted, x="devices", y=column, hue="series", style="series", hue_order=names,
        style_order=names, **_marks(len(names)),
        palette=colours, markersize=8, ax=axes, legend="full" if names != [NO_OPTIONS] else False,
    )  # fmt: skip
    legend = axes.get_legend()
    if legend:
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles, labels, loc="best")
    top = scaling[[column, f"{column}_high"]].max().max()
    axes.set_ylim(0, max(top, axes.get_ylim()[1]) * 1.12)


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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("throughput (samples/s)")
    _device_axis(axes, scaling["devices"].tolist())
    return figure


def speedup(scaling: pd.DataFrame) -> Figure:
    """Speedup over the baseline against devices, with the ideal line."""
    figure = Figure()
    axes = figure.subplots()
    devices = sorted(set(scaling["devices"]))
    base = int(scaling["baseline_devices"].min())
    ideal = [count / base for count in devices]
    axes.plot(devices, ideal, color="0.35", linestyle=":")
    axes.annotate(
        "ideal", (devices[-1], ideal[-1]), xytext=(-6, 4), textcoords="offset points", ha="right",
        color="0.35",
    )  # fmt: skip
    _lines(axes, scaling, "speedup")
    axes.set_ylabel(f"speedup over {base} {'device' if base == 1 else 'devices'}")
    _device_axis(axes, devices)
    return figure


def efficiency(scaling: pd.DataFrame, min_efficiency: float) -> Figure:
    """Parallel efficiency against devices, with the least that was asked for."""
    figure = Figure()
    axes = figure.subplots()
    for level, text, dash in ((1.0, "ideal", ":"), (min_efficiency, "asked for", "--")):
        axes.axhline(level, color="0.35", linestyle=dash, linewidth=1.2)
        axes.annotate(
            f"{text}: {level:.0%}", (0, level), xycoords=("axes fraction", "data"), xytext=(4, 3),
            textcoords="offset points", color="0.35", fontsize=9,
        )  # fmt: skip
    _lines(axes, scaling, "parallel_efficiency")
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
    kinds = runs["peak_memory_kind"].dropna().unique()
    axes.set_ylabel(f"peak memory per device (MB)\n{', '.join(kinds)}")
    _device_axis(axes, scaling["devices"].tolist())
    return figure


def _marks(count: int) -> dict[str, list[object]]:
    """Markers and dashes for so many lines; beyond eight, the same marker comes with another dash."""
    return {
        "markers": [MARKERS[index % 8] for index in range(count)],
        "dashes": [DASHES[(index + index // 8) % 8] for index in range(count)],
    }


def _panels(epochs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """A panel for each series, named by its CPUs per device where that is all that varies."""
    groups = list(epochs.groupby("series", sort=False))
    cpus = [sorted(set(table["cpus_per_device"])) for _, table in groups]
    if len(groups) > 1 and len({tuple(counts) for counts in cpus}) == len(groups):
        names = [f"{', '.join(f'{count:g}' for count in counts)} CPUs per device" for counts in cpus]
    else:
        names = [str(name) if len(groups) > 1 else "" for name, _ in groups]
    panels = list(zip(names, (table for _, table in groups), strict=True))
    if len(panels) > MAX_PANELS:
        name, table = panels[MAX_PANELS - 1]
        panels[MAX_PANELS - 1] = (f"{name} (and {len(panels) - MAX_PANELS} more in epochs.csv)", table)
    return panels[:MAX_PANELS]


def _curves(axes: Axes, epochs: pd.DataFrame, column: str, counts: Sequence[int]) -> None:
    """Median over repeats with the range as a band; a colour, marker and dash for each device count."""
    sns.lineplot(
        epochs, x="epoch", y=column, hue="devices", style="devices", hue_order=counts,
        style_order=counts, **_marks(len(counts)),
        palette=sns.color_palette("colorblind", len(counts)), estimator="median",
        errorbar=("pi", 100), markersize=6, ax=axes,
    )  # fmt: skip
    # equal curves lie on each other: the marks of the first are larger than those of the last
    for index, line in enumerate(line for line in axes.lines if np.size(line.get_xdata()) > 2):
        line.set_markersize(max(10 - 2.5 * index, 4))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")


def loss(epochs: pd.DataFrame) -> Figure:
    """Training and test loss against epochs by device count; a row for each panel of ``_panels``."""
    panels = _panels(epochs)
    counts = sorted(set(epochs["devices"]))
    figure = Figure(figsize=(8.0, 0.6 + 3.2 * len(panels)))
    grid = figure.subplots(len(panels), 2, sharex=True, sharey=True, squeeze=False)
    for row, (name, table) in zip(grid, panels, strict=True):
        for axes, column in zip(row, ("train_loss", "test_loss"), strict=True):
            _curves(axes, table, column, counts)
            split = column.removesuffix("_loss").replace("train", "training")
            axes.set_title(", ".join(filter(None, (split, name))))
            axes.set_ylabel("cross entropy per sample")
            axes.set_ylim(bottom=0)
        row[0].get_legend().remove()
    return figure


def accuracy(epochs: pd.DataFrame, target: float | None) -> Figure:
    """Test accuracy against epochs by device count, with the target; a panel for each of ``_panels``."""
    panels = _panels(epochs)
    counts = sorted(set(epochs["devices"]))
    columns = min(len(panels), PANELS_A_ROW)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(6.0 if len(panels) == 1 else 4.0 * columns, 4.0 * rows))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for unused in grid[len(panels) :]:
        unused.set_visible(False)
    for axes, (name, table) in zip(grid[: len(panels)], panels, strict=True):
        if target is not None:
            axes.axhline(target, color="0.35", linestyle="--", linewidth=1.2)
            axes.annotate(
                f"target: {target:.1%}", (0, target), xycoords=("axes fraction", "data"),
                xytext=(4, -11), textcoords="offset points", color="0.35", fontsize=9,
            )  # fmt: skip
        _curves(axes, table, "test_accuracy", counts)
        axes.set_title(name)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_ylabel("test accuracy")
        axes.legend(title="devices", loc="lower right")
    return figure


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
    for name in CAPTIONS:
        table, draw = drawings[name]
        figure = draw() if len(table) else _empty(f"{name}: no completed run to show")
        for kind in ("svg", "pdf"):
            # without dates, so that equal data make equal files
            dates = {"Date": None} if kind == "svg" else {"CreationDate": None}
            with mpl.rc_context():
                figure.savefig(folder / f"{name}.{kind}", metadata=dates)
