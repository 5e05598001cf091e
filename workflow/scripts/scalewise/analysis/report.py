"""The report: one HTML file that needs nothing else, for an experiment or for all."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scalewise import __version__
from scalewise.analysis.captions import CAPTIONS
from scalewise.analysis.utilization import cause_at

RATE = "throughput_samples_per_second"


@dataclass(frozen=True)
class Section:
    """One experiment in a report.

    Args:
        name: of the experiment.
        title: shown above it.
        description: shown below the title.
        decision: as ``Decision.as_dict`` gives it.
        scaling: scaling.csv.
        runs: runs.csv.
        options: options.csv.
        origins: what the runs have in common and where they differ, name -> values.
        figures: folder of the SVG files.
    """

    name: str
    title: str
    description: str
    decision: Mapping[str, Any]
    scaling: pd.DataFrame
    runs: pd.DataFrame
    options: pd.DataFrame
    origins: Mapping[str, Sequence[str]]
    figures: Path


def render(sections: Sequence[Section], *, partial: bool) -> str:
    """The report as HTML.

    Args:
        sections: experiments, in order.
        partial: some runs may be missing, and the report says so.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    heading = sections[0].title if len(sections) == 1 else "How many devices?"
    return template.render(
        heading=heading,
        sections=[_context(section) for section in sections],
        partial=partial,
        single=len(sections) == 1,
        version=__version__,
    )


def _context(section: Section) -> dict[str, Any]:
    outcomes = section.runs["outcome"].value_counts()
    return {
        "name": section.name,
        "title": section.title,
        "description": section.description,
        "decision": section.decision,
        "figures": [
            {
                "name": name,
                "uri": _data_uri(section.figures / f"{name}.svg"),
                "caption": caption,
            }
            for name, caption in CAPTIONS.items()
        ],
        "options": [_option(row) for _, row in section.options.iterrows()],
        "memory_kind": ", ".join(section.runs["peak_memory_kind"].dropna().unique()),
        "monitor_notes": _monitor_notes(section.runs),
        "points": [_point(row) for _, row in section.scaling.iterrows()],
        "runs": [_run(row) for _, row in section.runs.iterrows()],
        "outcomes": ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()),
        "origins": section.origins,
        "confidences": _confidences(section.scaling),
    }


def _data_uri(path: Path) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()


def _point(row: pd.Series) -> dict[str, Any]:
    return {
        "series": row["series"],
        "devices": str(row["devices"]),
        "n": str(row["n"]),
        "throughput": _spread(row, RATE, _rate_form(row[RATE])),
        "speedup": _spread(row, "speedup", "{:.2f}"),
        "efficiency": _spread(row, "parallel_efficiency", "{:.2f}"),
        "serial": _number(row["karp_flatt_fraction"], "{:.3f}"),
        "time_to_accuracy": _spread(row, "time_to_accuracy_seconds", "{:.2f}"),
        "reached": f"{row['n_reached']} of {row['n']}",
        "accuracy": _spread(row, "final_accuracy", "{:.1%}"),
        "memory": _number(row["peak_memory_bytes"] / 1e6, "{:,.0f}"),
        "device_hours": _number(row["device_hours"], "{:.4f}"),
        "busy": _number(row["mean_utilization"], "{:.0%}"),
        "wait": _number(row["loader_wait_fraction"], "{:.1%}"),
        "loader": row["loader"] if isinstance(row["loader"], str) else "–",
        "communication": _number(row["communication_fraction"], "{:.1%}"),
        "energy": _number(row["energy_joules"] / 1000, "{:,.2f}"),
        "samples_per_joule": _number(row["samples_per_joule"], "{:,.1f}"),
        "cause": cause_at(row),
        "note": row["note"] if isinstance(row["note"], str) else "",
    }


def _option(row: pd.Series) -> dict[str, str]:
    low, high = row["throughput_ratio_low"], row["throughput_ratio_high"]
    return {
        "option": row["option"],
        "value": _value(row["value"]),
        "reference": _value(row["reference"]),
        "beside": row["beside"] if isinstance(row["beside"], str) else "",
        "devices": str(row["devices"]),
        "n": str(row["n"]),
        "throughput": f"{row['throughput_ratio']:.2f}",
        "interval": "" if low == high else f"{low:.2f} to {high:.2f}",
        "memory": _number(row["peak_memory_bytes"] / 1e6, "{:,.0f}"),
        "reference_memory": _number(row["reference_peak_memory_bytes"] / 1e6, "{:,.0f}"),
        "memory_ratio": _number(row["peak_memory_ratio"], "{:.3f}"),
    }


def _value(value: Any) -> str:
    """As the user wrote it in YAML."""
    text = str(value)
    return text.lower() if text in {"True", "False"} else text


def _monitor_notes(runs: pd.DataFrame) -> list[str]:
    """What the monitors of the runs had to say, each once with the number of runs."""
    counts = runs["monitor_note"].dropna().value_counts(sort=False)
    return [f"{note} ({count} of {len(runs)} runs)." for note, count in counts.items() if note]


def _run(row: pd.Series) -> dict[str, str]:
    return {
        "run": row["run"],
        "devices": str(row["devices"]),
        "outcome": row["outcome"],
        "reason": row["reason"] if isinstance(row["reason"], str) else "",
        "throughput": _number(row[RATE], _rate_form(row[RATE])),
        "train_seconds": _number(row["train_seconds"], "{:.2f}"),
        "time_to_accuracy": _number(row["time_to_accuracy_seconds"], "{:.2f}"),
        "accuracy": _number(row["final_accuracy"], "{:.2%}"),
        "memory": _number(row["peak_memory_bytes"] / 1e6, "{:,.0f}"),
        "wait": _number(row["loader_wait_fraction"], "{:.1%}"),
        "busy": _number(row["mean_utilization"], "{:.0%}"),
        "energy": _number(row["energy_joules"] / 1000, "{:,.2f}"),
        "startup": _number(
            row[["imports_seconds", "process_group_seconds", "data_seconds", "model_seconds"]].sum(
                min_count=1
            ),
            "{:.1f}",
        ),
    }


def _rate_form(rate: float) -> str:
    """Whole samples a second, or three digits of a slow training."""
    return "{:.3g}" if rate < 100 else "{:,.0f}"


def _number(value: float, form: str) -> str:
    return "–" if pd.isna(value) else form.format(value)


def _spread(row: pd.Series, name: str, form: str) -> dict[str, str]:
    value = _number(row[name], form)
    low, high = _number(row[f"{name}_low"], form), _number(row[f"{name}_high"], form)
    return {"value": value, "interval": "" if low == high else f"{low} to {high}"}


def _confidences(scaling: pd.DataFrame) -> str:
    """The confidence that the intervals really have, in words."""
    parts = []
    for column, what in (("throughput_confidence", "medians"), ("speedup_confidence", "speedups")):
        values = scaling[column].dropna()
        values = values[(values > 0) & (values < 1)]
        if len(values):
            least, most = values.min(), values.max()
            span = f"{least:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
            parts.append(f"{span} for {what}")
    return " and ".join(parts) or "not defined: one run a point"
