"""The rows of the report's tables, as text. What is not known is a dash."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.bottlenecks.resumption import resumed_text
from scalewise.analysis.bottlenecks.time_parts import START_PARTS, STEP_PARTS, known_start_parts
from scalewise.analysis.bottlenecks.utilization import cause_at
from scalewise.analysis.formatting import as_in_yaml, percent

UNKNOWN = "–"
LARGE = 1000
"""Values of at least this are written whole, with a mark at the thousands."""

LAW_NAMES = {
    "amdahl": "Amdahl (strong scaling)",
    "gustafson": "Gustafson (weak scaling)",
    "usl": "universal scalability law",
}
PARAMETER_NAMES = {
    "single_device_rate": "samples/s of one device",
    "peak_devices": "devices of the highest throughput",
}


def point_row(row: pd.Series) -> dict[str, Any]:
    """One series and device count: what it reached and what its devices did.

    Args:
        row: A row of scaling.csv.
    """
    return {
        "series": row["series"],
        "devices": str(row["devices"]),
        "n": _count(row),
        "throughput": spread(row, THROUGHPUT, rate_form(row.get(THROUGHPUT))),
        "speedup": spread(row, "speedup", "{:.2f}"),
        "efficiency": spread(row, "parallel_efficiency", "{:.2f}"),
        "efficiency_to_best": spread(row, "efficiency_to_best", "{:.2f}"),
        "serial": spread(row, "karp_flatt_fraction", "{:.3f}"),
        "wall": _wall(row),
        "time_to_accuracy": spread(row, "time_to_accuracy_seconds", "{:.2f}"),
        "reached": f"{row['n_reached']} of {row['n']}",
        "accuracy": spread(row, "final_accuracy", "{:.1f} %", 100),
        "memory": number(row["peak_memory_bytes"], "{:,.0f}", 1e-6),
        "evaluation_memory": number(row.get("evaluation_peak_memory_bytes"), "{:,.0f}", 1e-6),
        "device_hours": number(row["device_hours"], "{:.4f}"),
        "busy": number(row["mean_utilization"], "{:.0f} %", 100),
        "wait": number(row["loader_wait_fraction"], "{:.1f} %", 100),
        "loader": row["loader"] if isinstance(row["loader"], str) else UNKNOWN,
        "communication": number(row["communication_fraction"], "{:.1f} %", 100),
        "energy": number(row["energy_joules"], "{:,.2f}", 1e-3),
        "samples_per_joule": number(row["samples_per_joule"], "{:,.1f}"),
        "cause": cause_at(row),
        "note": row["note"] if isinstance(row["note"], str) else "",
    }


def cost_rows(scaling: pd.DataFrame, series: str | None) -> list[dict[str, Any]]:
    """Costs of a run by device count, with its device-hours over those of the fewest devices.

    Args:
        scaling: Contents of scaling.csv.
        series: The series that is told; nothing is where it is None.
    """
    points = scaling[(scaling["series"] == series) & scaling["device_hours"].notna()].sort_values("devices")
    if points.empty:
        return []
    fewest = points["device_hours"].iloc[0]
    return [
        point_row(row) | {"cost_ratio": f"{row['device_hours'] / fewest:.2f}" if fewest else UNKNOWN}
        for _, row in points.iterrows()
    ]


def step_rows(scaling: pd.DataFrame, runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The parts of a step and of a start, for each point with a completed run.

    Args:
        scaling: Contents of scaling.csv.
        runs: Contents of runs.csv.
    """
    starts = list(known_start_parts(runs))
    return [_step_row(row, _runs_at(runs, row), starts) for _, row in scaling.iterrows() if row["n"]]


def _runs_at(runs: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    here = (runs["series"] == row["series"]) & (runs["devices"] == row["devices"])
    found: pd.DataFrame = runs.loc[here & (runs["outcome"] == "completed")]
    return found


def _step_row(row: pd.Series, runs: pd.DataFrame, start_columns: Sequence[str]) -> dict[str, Any]:
    step = row.get("step_seconds")
    starts = [runs[column].median() if column in runs.columns else None for column in start_columns]
    known = [seconds for seconds in starts if pd.notna(seconds)]
    total = row.get("startup_seconds")
    return {
        "series": row["series"],
        "devices": str(row["devices"]),
        "n": str(row["n"]),
        "step": spread(row, "step_seconds", "{:.4g}", 1e3),
        "parts": [_part(row.get(part.column), step) for part in STEP_PARTS],
        "crosscheck": number(row.get("crosscheck_communication_seconds"), "{:.3g}", 1e3),
        "startup": number(sum(known) if pd.isna(total) and known else total, "{:.1f}"),
        "starts": [number(seconds, "{:.2f}") for seconds in starts],
    }


def _part(seconds: Any, step: Any) -> dict[str, str]:
    """Milliseconds, and below them the share of the step."""
    share = UNKNOWN if pd.isna(seconds) or pd.isna(step) or not step else percent(seconds / step)
    return {"value": number(seconds, "{:.3g}", 1e3), "interval": "" if share == UNKNOWN else share}


def law_rows(laws: Sequence[Mapping[str, Any]], scaling: pd.DataFrame) -> list[dict[str, str]]:
    """The parameters of each fit, or the reason why there is none.

    Args:
        laws: Contents of laws.json.
        scaling: Contents of scaling.csv, for the number of runs that a fit rests on.
    """
    return [_law_row(law, scaling[scaling["series"] == law["series"]]) for law in laws]


def _law_row(law: Mapping[str, Any], points: pd.DataFrame) -> dict[str, str]:
    left_out = points["n_not_comparable"].sum() if "n_not_comparable" in points.columns else 0
    largest = max((point["devices"] for point in law["curve"]), default=math.inf)
    found = (_parameter(name, value, largest) for name, value in law["parameters"].items())
    return {
        "series": law["series"],
        "law": LAW_NAMES.get(law["law"], law["law"]),
        "n": f"{int(points['n'].sum() - left_out)} runs on {int((points['n'] > 0).sum())} device counts",
        "parameters": "" if law["refused"] else "; ".join(found),
        "refused": law["refused"],
    }


def _parameter(name: str, value: Mapping[str, float | None], largest: float) -> str:
    """A parameter with its bounds; what has no value is infinite, as a peak that is never reached."""
    estimate, low, high = (
        "∞" if value[key] is None else f"{value[key]:,.4g}" for key in ("estimate", "low", "high")
    )
    text = f"{PARAMETER_NAMES.get(name, name.replace('_', ' '))} {estimate} ({low} to {high})"
    peak = value["estimate"]
    beyond = name == "peak_devices" and peak is not None and peak > largest
    return f"{text}, not measured" if beyond else text


def prediction_rows(prediction: pd.DataFrame, scaling: pd.DataFrame) -> list[dict[str, Any]]:
    """Predictions beside measurements.

    Args:
        prediction: Contents of prediction.csv.
        scaling: Contents of scaling.csv.
    """
    measured = {(row["series"], row["devices"]): row for _, row in scaling.iterrows()}
    return [
        _prediction_row(row, measured.get((row["series"], row["devices"])))
        for _, row in prediction.iterrows()
    ]


def _prediction_row(row: pd.Series, point: pd.Series | None) -> dict[str, Any]:
    real = point.get("step_seconds") if point is not None else None
    known = point is not None and pd.notna(real)
    return {
        "series": row["series"],
        "devices": {"value": f"{row['devices']:,}", "interval": row["shape"]},
        "n": number(row.get("n"), "{:.0f}"),
        "predicted": spread(row, "step_seconds", "{:.4g}", 1e3),
        "compute": number(row["compute_seconds"], "{:.3g}", 1e3),
        "all_reduce": number(row["all_reduce_seconds"], "{:.3g}", 1e3),
        "exposed": number(row["exposed_seconds"], "{:.3g}", 1e3),
        "measured": spread(point, "step_seconds", "{:.4g}", 1e3)
        if known and point is not None
        else {"value": "not measured", "interval": ""},
        "measured_n": str(point["n"]) if known and point is not None else UNKNOWN,
        "ratio": number(row["step_seconds"] / real, "{:.2f}") if known else UNKNOWN,
        "speedup": spread(row, "speedup", "{:.3g}"),
        "efficiency": spread(row, "parallel_efficiency", "{:.2f}"),
        "device_hours": number(row["device_hours_per_epoch"], "{:.3g}"),
        "extrapolated": bool(row["extrapolated"]),
    }


def option_row(row: pd.Series) -> dict[str, str]:
    """One value of an option and its gain over the reference.

    Args:
        row: A row of options.csv.
    """
    low, high = row["throughput_ratio_low"], row["throughput_ratio_high"]
    return {
        "option": row["option"],
        "value": as_in_yaml(row["value"]),
        "reference": as_in_yaml(row["reference"]),
        "beside": row["beside"] if isinstance(row["beside"], str) else "",
        "devices": str(row["devices"]),
        "n": str(row["n"]),
        "throughput": f"{row['throughput_ratio']:.2f}",
        "interval": "" if pd.isna(low) else f"{low:.2f} to {high:.2f}",
        "memory": number(row["peak_memory_bytes"], "{:,.0f}", 1e-6),
        "reference_memory": number(row["reference_peak_memory_bytes"], "{:,.0f}", 1e-6),
        "memory_ratio": number(row["peak_memory_ratio"], "{:.3f}"),
        "saved": number(row.get("peak_memory_saved_bytes"), "{:,.0f}", 1e-6),
        "saved_copies": number(row.get("saved_parameter_copies"), "{:.2f}"),
        "evaluation_memory": number(row.get("evaluation_peak_memory_bytes"), "{:,.0f}", 1e-6),
    }


def run_row(row: pd.Series) -> dict[str, str]:
    """One run.

    Args:
        row: A row of runs.csv.
    """
    starts = [column for column in START_PARTS if column in row.index]
    return {
        "run": row["run"],
        "series": row["series"],
        "devices": str(row["devices"]),
        "outcome": row["outcome"],
        "reason": _remark(row),
        "throughput": number(row[THROUGHPUT], rate_form(row[THROUGHPUT])),
        "train_seconds": number(row["train_seconds"], "{:.2f}"),
        "time_to_accuracy": number(row["time_to_accuracy_seconds"], "{:.2f}"),
        "accuracy": number(row["final_accuracy"], "{:.2f} %", 100),
        "memory": number(row["peak_memory_bytes"], "{:,.0f}", 1e-6),
        "evaluation_memory": number(row.get("evaluation_peak_memory_bytes"), "{:,.0f}", 1e-6),
        "wait": number(row["loader_wait_fraction"], "{:.1f} %", 100),
        "busy": number(row["mean_utilization"], "{:.0f} %", 100),
        "energy": number(row["energy_joules"], "{:,.2f}", 1e-3),
        "startup": number(row[starts].sum(min_count=1), "{:.1f}"),
        "fingerprint": row["fingerprint"] if isinstance(row.get("fingerprint"), str) else UNKNOWN,
    }


def _remark(row: pd.Series) -> str:
    """The reason that a run has no result, or a remark on the one it has."""
    reason = row["reason"] if isinstance(row["reason"], str) else ""
    resumes = row.get("resumes")
    if pd.isna(resumes) or not resumes:
        return reason
    resumed = f"Resumed {resumed_text(int(resumes), int(row['lost_steps']))}."
    return f"{reason} {resumed}" if reason else resumed


def rate_form(rate: Any) -> str:
    """Whole samples a second, or three digits of a slow training."""
    return "{:.3g}" if pd.notna(rate) and rate < 100 else "{:,.0f}"


def number(value: Any, form: str, factor: float = 1.0) -> str:
    """A value times a factor in this form, or a dash; what rounds to nothing has no sign."""
    if pd.isna(value):
        return UNKNOWN
    text = form.format(value * factor)
    if form.endswith("g}"):
        # plain digits: a form with an exponent is a reader's last choice
        large = abs(value * factor) >= LARGE
        text = f"{value * factor:,.0f}" if large else format(Decimal(text), "f")
    return text if text.strip("-0. %") else text.removeprefix("-")


def spread(row: pd.Series, name: str, form: str, factor: float = 1.0) -> dict[str, str]:
    """A value with its interval, which is left out where there is none."""
    value, low, high = (
        number(row.get(column), form, factor) for column in (name, f"{name}_low", f"{name}_high")
    )
    return {"value": value, "interval": "" if low == high or UNKNOWN in (low, high) else f"{low} to {high}"}


def _count(row: pd.Series) -> str:
    """Completed runs, and how many of them no speedup may join."""
    left_out = row.get("n_not_comparable")
    if pd.isna(left_out) or not left_out:
        return str(row["n"])
    return f"{row['n']} ({int(left_out)} not comparable)"


def _wall(row: pd.Series) -> dict[str, str]:
    """Wall time of a whole run; with its own n where some runs were resumed, which have none."""
    cell = spread(row, "wall_seconds", "{:,.1f}")
    runs = row.get("wall_n")
    if pd.isna(runs) or runs == row["n"]:
        return cell
    return cell | {"interval": ", ".join(filter(None, (cell["interval"], f"n = {runs:.0f}")))}
