"""The report: one HTML file that needs nothing else, for an experiment or for all."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from scalewise import __version__
from scalewise.analysis.analysis_spec import (
    PROGRAM_FACTS,
    THROUGHPUT,
)
from scalewise.analysis.experiment_results import ExperimentResults, read_json
from scalewise.analysis.mfu import MFU_FORMULA
from scalewise.analysis.proposal_files import FOLDER, VERDICTS
from scalewise.analysis.queue_waits import unknown_waits
from scalewise.analysis.report import data_tables
from scalewise.analysis.report.figure_sentences import figure_sentences
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.report.inline_figures import inline_figure, runs_of_points
from scalewise.analysis.report.marks import TRACES
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    as_in_yaml,
    counts_listed,
    format_3sig,
    milliseconds,
    name_devices,
    percent,
)
from scalewise.plan.plan_file import COMPARISON, Comparison
from scalewise.plan.runs.rounds import OTHER_ANSWER
from scalewise.plan.runs.runs import shown_names
from scalewise.records import write_text

LEARNING = ("accuracy", "loss")
"""Figures that come first in a study that sweeps CPUs per device, which asks for more than a device count."""
PAIR = ("speedup", "efficiency")
"""The picture that carries the answer: two figures beside each other."""
LIMITING = ("step",)
"""Figures that show what limits the answer."""
SPLITS = "splits"
"""Figure of the ways to split devices between trainings."""
MAX_OPTION_SENTENCES = 8
"""Sentences and rows on options that stand in the open; a study of many has the others one click away."""
MAX_CAUTIONS = 3
"""Cautions next to the answer; the others are one click away."""
OVERVIEW = ("Speed", "Efficiency", "Cost")
"""Figures of each answer in the table of several, by the beginning of their labels."""


@dataclass(frozen=True)
class AcrossPartitions:
    """The answer of an experiment across its partitions.

    Args:
        title: Name of the experiment for readers.
        answer: Contents of partitions.json.
        link: Address of its report from the page; empty for none.
    """

    title: str
    answer: Mapping[str, Any]
    link: str = ""


def write_report(
    experiments: Sequence[ExperimentResults],
    output: Path,
    *,
    partial: bool = False,
    comparisons: Sequence[AcrossPartitions] = (),
) -> None:
    """Write one HTML file on some experiments.

    Args:
        experiments: Experiments, in order.
        output: File to write.
        partial: Some runs may be missing, and the report says so.
        comparisons: Answers across partitions, which come first.
    """
    write_text(output, render(experiments, partial=partial, comparisons=comparisons))


def read_comparisons(plan: Mapping[str, Comparison], results: Path, link: str = "") -> list[AcrossPartitions]:
    """Return the answers across partitions, for a page.

    Args:
        plan: The comparisons of the plan.
        results: Holds a folder with partitions.json for each.
        link: Address of ``results`` from the page, with a slash at its end.
    """
    return [
        AcrossPartitions(
            each["title"],
            read_json(results / name / COMPARISON),
            f"{link}{name}/report.html",
        )
        for name, each in plan.items()
    ]


def render(
    sections: Sequence[ExperimentResults], *, partial: bool, comparisons: Sequence[AcrossPartitions] = ()
) -> str:
    """Return the report as HTML; see ``write_report``."""
    template = make_environment().get_template("report.html.j2")
    nouns = {section.noun for section in sections}
    noun = nouns.pop() if len(nouns) == 1 else "device"
    heading = sections[0].title if len(sections) == 1 else name_devices("How many devices?", noun)
    series = [each for section in sections for each in _series(section)]
    return template.render(
        heading=heading,
        noun=noun,
        sections=[_context(section, number) for number, section in enumerate(sections)],
        overview=OVERVIEW,
        comparisons=comparisons,
        partial=partial,
        single=len(sections) == 1,
        chooses=any(section.choice is not None for section in sections),
        other_answer=percent(OTHER_ANSWER, 0),
        series_names=list(dict.fromkeys(each["name"] for each in series)),
        shown_names=shown_names,
        option_values=_option_values(series),
        style=style(),
        scripts=scripts(),
        policy=content_security_policy(),
        version=__version__,
    )


def make_environment() -> Environment:
    """Return the environment of all pages' templates."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["named"] = name_devices
    environment.filters["milliseconds"] = milliseconds
    return environment


def _series(section: ExperimentResults) -> list[dict[str, Any]]:
    """Every series with the values of the options that were swept."""
    swept = [key for key in section.options["option"].unique() if key in section.runs]
    return [
        {"name": str(name), "options": {key: as_in_yaml(runs[key].iloc[0]) for key in swept}}
        for name, runs in section.runs.groupby("series", sort=False)
    ]


def _series_of(section: ExperimentResults, row: pd.Series) -> str:
    """The series that has an option's value, with the other options as in a row of options.csv."""
    beside = row["beside"].split(", ") if isinstance(row["beside"], str) else []
    told = sorted(_plain(each) for each in beside if each)
    for series in _series(section):
        others = [
            _plain(f"{key} {value}") for key, value in series["options"].items() if key != row["option"]
        ]
        same = _plain(series["options"][row["option"]]) == _plain(as_in_yaml(row["value"]))
        if same and sorted(others) == told:
            return str(series["name"])
    return ""


def _plain(text: str) -> str:
    """A text by which two tables name a value alike: in one of them 50 may be 50.0, and true True."""
    return text.lower().removesuffix(".0")


def _option_values(series: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Every value that an option takes, by option; options of one value have nothing to choose."""
    found: dict[str, dict[str, None]] = {}
    for each in series:
        for key, value in each["options"].items():
            found.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in found.items() if len(values) > 1}


def _context(section: ExperimentResults, number: int) -> dict[str, Any]:
    outcomes = section.runs["outcome"].value_counts()
    traces = json.loads((section.folder / "figures" / TRACES).read_text(encoding="utf-8"))
    shown = [name for name, figure in FIGURES.items() if not figure.is_left_out(section)]
    empty = {name: traces[name]["message"] for name in shown if traces[name]["message"]}
    shown = [name for name in shown if name not in empty]
    decision = section.decision
    limiting = [*LIMITING, *(["efficiencies"] if section.to_target else [])]
    beyond = ["prediction"] if decision["beyond"] else []
    sweeps_cpus = section.runs["cpus_per_device"].nunique() > 1
    learning = LEARNING if sweeps_cpus and "accuracy" in shown else ()
    first = [*learning, *PAIR, *limiting, *beyond]
    figures = _figures(section, number, {name: traces[name] for name in shown})
    more = [name for name in shown if name not in (*first, SPLITS)]
    return {
        "name": section.name,
        "title": section.title,
        "description": section.description,
        "decision": decision,
        "overview": [_overview(decision["card"]["figures"], label) for label in OVERVIEW],
        "measured_on": _measured_on(section),
        "required": _required(section),
        "most_cautions": MAX_CAUTIONS,
        "choice": [] if section.choice is None else section.choice.sentences(),
        "figures": figures,
        "option_sentences": _option_sentences(section),
        "most_options": MAX_OPTION_SENTENCES,
        "not_drawn": _not_drawn(section, empty),
        "without_result": _without_result(section.scaling),
        "splits": [SPLITS] if SPLITS in figures else [],
        "learning": [name for name in learning if name in figures],
        "pair": [name for name in PAIR if name in figures],
        "limiting": [name for name in limiting if name in figures],
        "beyond": [name for name in beyond if name in figures],
        "more_figures": more,
        "more_titles": ", ".join(figures[name]["title"].lower() for name in more),
        "series_names": [each["name"] for each in _series(section)],
        "tables": _tables(section),
        "unknown_waits": unknown_waits(section.queue_waits),
        "series_named": _series_named(section),
        "memory_kind": ", ".join(section.runs["peak_memory_kind"].dropna().unique()),
        "monitor_notes": [*_monitor_notes(section.runs), *_mfu_notes(section.scaling)],
        "prediction_notes": section.prediction_notes,
        "repeats": section.decision["repeats"],
        "outcomes": ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()),
        "program": {name: section.origins[name] for name in PROGRAM_FACTS if section.origins.get(name)},
        "origins": {name: values for name, values in section.origins.items() if name not in PROGRAM_FACTS},
        "what_if": section.what_if,
        "data": as_script_data(
            {
                "figures": {name: traces[name] for name in shown},
                "runs": runs_of_points(section.runs),
                "what_if": section.what_if,
                "series": _series(section),
            }
        ),
    }


def _required(section: ExperimentResults) -> list[str]:
    """The verdict on each doubling that a computing centre requires; none where nothing is required."""
    path = section.folder / FOLDER / VERDICTS
    if not path.exists():
        return []
    sentences: list[str] = json.loads(path.read_text(encoding="utf-8"))["sentences"]
    return sentences


def _mfu_notes(scaling: pd.DataFrame) -> list[str]:
    """Sentences on the model FLOPs utilization: its formula and peaks, and why it is not stated."""
    bases, reasons = (
        [str(text) for text in scaling[name].dropna().unique() if text] for name in ("mfu_basis", "mfu_note")
    )
    stated = [f"{MFU_FORMULA} {'; '.join(bases)}."] if bases else []
    return stated + [f"MFU is not stated. {reason}" for reason in reasons]


def _not_drawn(section: ExperimentResults, empty: Mapping[str, str]) -> str:
    """A sentence on the figures that have nothing to show; empty where all have something."""
    if not empty:
        return ""
    if section.completed.empty:
        return "No run has completed: nothing measured is drawn."
    return f"Not drawn: {'; '.join(empty.values())}."


def _without_result(scaling: pd.DataFrame) -> list[str]:
    """The planned points of which no run has a result, which a figure cannot show."""
    alone = scaling["series"].nunique() == 1
    return [
        f"{count_devices(int(row['devices']))}{'' if alone else ' of ' + str(row['series'])}: no result"
        f" ({int(row['n_failed'])} failed)."
        for _, row in scaling.iterrows()
        if not row["n"] and row["n_failed"]
    ]


def _tables(section: ExperimentResults) -> dict[str, data_tables.Table | None]:
    """Return every table by its name; None in place of one that has no row."""
    scaling, runs, shown = section.scaling, section.runs, section.points
    with_target, with_accuracy = bool(scaling["n_reached"].sum()), _tells_accuracy(section)

    def kind(point: pd.Series) -> str:
        chosen = (point["series"], point["devices"]) == (section.series, section.devices)
        return "chosen" if chosen else ""

    gains = section.options.assign(series=[_series_of(section, row) for _, row in section.options.iterrows()])
    found = [
        data_tables.options(gains),
        data_tables.cost(shown, section.series, with_target=with_target),
        data_tables.scaling(shown, with_target=with_target, with_accuracy=with_accuracy, kind=kind),
        data_tables.unmeasured(section.unmeasured, to_target=section.to_target),
        data_tables.steps(scaling, runs),
        data_tables.laws(section.laws, scaling),
        data_tables.predictions(section.prediction, scaling),
        data_tables.devices(shown, kind=kind),
        data_tables.queue_waits(section.queue_waits),
        data_tables.jobstats(section.jobstats, runs),
        data_tables.runs(runs, with_accuracy=with_accuracy),
    ]
    return {table.name: table if table.rows else None for table in found}


def _option_sentences(section: ExperimentResults) -> list[str]:
    """The sentences on options that stand in the open: all, or where they are many those on the answer."""
    told, table = list(section.decision["options"]), section.options
    if len(told) <= MAX_OPTION_SENTENCES or len(told) != len(table):
        return told[:MAX_OPTION_SENTENCES]
    devices = section.devices if section.devices in set(table["devices"]) else table["devices"].max()
    return [line for line, each in zip(told, table["devices"], strict=True) if each == devices][
        :MAX_OPTION_SENTENCES
    ]


def _series_named(section: ExperimentResults) -> str:
    """A sentence on the series that a table of costs is of; empty where there is one alone."""
    several = section.scaling["series"].nunique() > 1
    return f"Costs of {section.series}." if several and section.series is not None else ""


def _figures(section: ExperimentResults, number: int, traces: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Drawing, title, sentence and caption of each figure, by its name."""
    sentences, cpus = figure_sentences(section), section.decision["cpus"]
    if cpus is not None and cpus["learning"]:
        sentences["accuracy"] = f"{cpus['learning']} {sentences['accuracy']}"
    return {
        name: _figure(section, name, f"{number}.{place}.", sentences.get(name, ""), data)
        for place, (name, data) in enumerate(traces.items())
    }


def _figure(
    section: ExperimentResults, name: str, prefix: str, sentence: str, data: Mapping[str, Any]
) -> dict[str, Any]:
    text = FIGURES[name]
    drawn = inline_figure(section.folder / "figures" / f"{name}.svg", text.title, prefix, data)
    captions = [text.caption, text.where_counts_are_chosen if section.choice is not None else ""]
    return {
        "title": text.title,
        "svg": drawn.svg,
        "sentence": name_devices(sentence, section.noun),
        "caption": name_devices(" ".join(filter(None, captions)), section.noun),
        "wide": drawn.wide,
    }


def _overview(figures: Sequence[Mapping[str, Any]], label: str) -> str:
    """Return the figure of an answer whose label begins so; a ratio of costs with what it is a ratio to."""
    found = next((each for each in figures if each["label"].startswith(label)), None)
    if found is None:
        return "–"
    # other experiments' costs in the same column are device-hours
    return f"{found['text']} {found['note']}" if found["label"] == "Cost of training" else found["text"]


def _measured_on(section: ExperimentResults) -> str:
    """Return the day, the devices and the software of the runs, and the absolute speed of the baseline."""
    done = section.completed
    if done.empty:
        return ""
    known = done.reindex(columns=["started_at", "device_name", "devices"])
    days = sorted({str(started)[:10] for started in known["started_at"].dropna()})
    parts = [" to ".join(dict.fromkeys([days[0], days[-1]]))] if days else []
    noun = section.noun
    counts = known.groupby("device_name", sort=False)["devices"].unique()
    parts += [
        f"{name} ({counts_listed(map(int, devices), noun)})" if len(counts) > 1 else str(name)
        for name, devices in counts.items()
    ]
    if section.origins.get("torch"):
        parts.append(f"torch {', '.join(section.origins['torch'])}")
    scaling = section.scaling
    series = scaling[scaling["series"] == section.series]
    base = series[series["devices"] == series["baseline_devices"]]
    if len(base) and base["n"].iloc[0]:
        rate = data_tables.spread(base.iloc[0], THROUGHPUT, format_3sig)
        where = count_devices(int(base["devices"].iloc[0]), noun)
        parts.append(f"{rate.value} samples/s on {where}{f' ({rate.below})' if rate.below else ''}")
    return "; ".join(filter(None, parts))


def _tells_accuracy(section: ExperimentResults) -> bool:
    """False where runs have completed that know no accuracy: those of programs, or ended after some steps."""
    return section.completed.empty or bool(section.completed["final_accuracy"].notna().any())


def _monitor_notes(runs: pd.DataFrame) -> list[str]:
    """Every note of the runs' monitors once, with the number of runs that have it."""
    counts = runs["monitor_note"].dropna().value_counts(sort=False)
    return [f"{note} ({count} of {len(runs)} runs)." for note, count in counts.items() if note]


STYLES = ("report.css", "what_if.css")
SCRIPTS = (
    "report_data.js",
    "saving.js",
    "page.js",
    "figures.js",
    "figure_files.js",
    "what_if.js",
    "paper.js",
)
_COMMENTS = re.compile(r"^\s*(?://[^\n]*|/\*.*?\*/\s*)$", re.MULTILINE | re.DOTALL)


def style() -> Markup:
    """The style sheets, as they stand in the page."""
    sheets = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in STYLES)
    return Markup("\n".join(map(_compact, sheets)))  # noqa: S704  ours


def scripts(files: Sequence[str] = SCRIPTS) -> list[Markup]:
    """The scripts, in the order in which they run."""
    paths = (Path(__file__).parent / name for name in files)
    return [Markup(_compact(path.read_text(encoding="utf-8"))) for path in paths]  # noqa: S704  ours


def content_security_policy(files: Sequence[str] = SCRIPTS) -> str:
    """The page's policy: its own scripts run, by their hashes, and nothing is loaded from elsewhere."""
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts(files))
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def as_script_data(value: Any) -> Markup:
    """JSON as the contents of a script element, which no character of it can end.

    Args:
        value: Plain values; a number that is none becomes null.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", r"\u003c"))  # noqa: S704  only "<" could end or begin an element


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _compact(text: str) -> str:
    """The text without indentation, empty lines and comments that stand on lines of their own."""
    lines = (line.strip() for line in _COMMENTS.sub("", text).splitlines())
    return "\n".join(line for line in lines if line)
