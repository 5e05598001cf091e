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

from scalewise.analysis import curves
from scalewise.analysis.captions import CAPTIONS
from scalewise.analysis.style import marks, set_style
from scalewise.analysis.tables import NO_OPTIONS

DODGE = 0.02
_BYTES_PER_MB = 1e6


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
        style_order=names, **marks(len(names)),
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
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    )
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
    set_style()
    folder.mkdir(parents=True, exist_ok=True)
    measured = scaling[scaling["throughput_samples_per_second"].notna()]
    relative = scaling[scaling["speedup"].notna()]
    drawings: dict[str, tuple[pd.DataFrame, Callable[[], Figure]]] = {
        "throughput": (measured, lambda: throughput(measured, runs)),
        "speedup": (relative, lambda: speedup(relative)),
        "efficiency": (relative, lambda: efficiency(relative, min_efficiency)),
        "loss": (epochs, lambda: curves.loss(epochs)),
        "accuracy": (epochs, lambda: curves.accuracy(epochs, target)),
        "memory": (measured, lambda: memory(measured, runs)),
    }
    for name in CAPTIONS:
        table, draw = drawings[name]
        missing = (
            "series with a completed baseline" if len(measured) and table is relative else "completed run"
        )
        figure = draw() if len(table) else _empty(f"{name}: no {missing} to show")
        for kind in ("svg", "pdf"):
            # without dates, so that equal data make equal files
            dates = {"Date": None} if kind == "svg" else {"CreationDate": None}
            with mpl.rc_context():
                figure.savefig(folder / f"{name}.{kind}", metadata=dates)
