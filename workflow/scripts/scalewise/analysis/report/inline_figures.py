"""Figures as parts of a page: their drawings with ids of their own, and the numbers behind their marks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pandas as pd
from markupsafe import Markup

from scalewise.analysis.report.captions import TITLES
from scalewise.analysis.report.svg_in_page import shorten
from scalewise.analysis.report.svg_markup import PAINT, markup

LEAST_TEXT_PIXELS = 9.0
"""A narrow screen scrolls a figure sideways rather than shrink its text below this."""
LEAST_TEXT_POINTS = 6.5
MOST_PIXELS_A_POINT = 2.1
"""A figure grows with its place in the page up to this."""
_NAMESPACE = re.compile(r"\{[^}]*\}")
_REFERENCE = re.compile(r"#([\w-]+)")
_ELEMENTS = frozenset(
    ["svg", "title", "metadata", "defs", "pattern", "g", "path", "circle", "use", "text", "tspan"]
)
_ATTRIBUTES = frozenset(
    [
        *(*PAINT, "stroke-linecap", "stroke-linejoin", "font-family", "font-size", "text-anchor"),
        *("id", "class", "d", "x", "y", "r", "width", "height", "viewBox", "transform", "patternUnits"),
    ]
)
"""All that a figure is drawn with, next to ``data-`` attributes and references within the file.

A results folder may come from others: what is not in these lists, such as a script or a handler, is dropped.
"""
_KINDS = {
    "measured": "measured medians",
    "expected": "expected values of device counts that were not measured",
    "run": "single runs",
    "part": "parts of bars",
    "epochs": "curves of medians",
    "law": "fitted laws",
    "predicted": "predictions",
}


def inline_svg(path: Path, name: str, prefix: str) -> Markup:
    """A figure's file as an element of a page, with its title and a description for who hears it.

    Args:
        path: SVG file of the figure.
        name: Name of the figure.
        prefix: Begins every id; no other figure of the page has it. Each of many marks names its shape, so a
            short one keeps the page small.

    Returns:
        The drawing in a box that scrolls sideways where the screen is narrow. Text, axes and background take
        their colours from the page's style sheet.
    """
    root = _read(path)
    data = _facts(root)
    for child in [child for child in root if child.tag in {"title", "metadata"}]:
        root.remove(child)
    for element in root.iter():
        _fit_into_page(element, prefix)
    shorten(root, [str(number) for number, each in enumerate(data["traces"]) if each["kind"] == "epochs"])
    root.attrib = {
        "role": "img",
        # an element of that name would be a second tooltip over every mark
        "aria-label": _description(TITLES.get(name, name), data),
        "viewBox": root.get("viewBox", "0 0 241 100"),
        **{key: value for key, value in root.attrib.items() if key in {"fill", "stroke-linejoin"}},
        "style": _size(root),
    }
    drawing = markup(root, standalone=False)
    return Markup(f'<div class="drawing">{drawing}</div>')  # noqa: S704  escaped above


def figure_data(figures: Path, names: Sequence[str], runs: pd.DataFrame) -> dict[str, Any]:
    """The numbers behind the marks of an experiment's figures, as the page's script reads them.

    Args:
        figures: Folder with the SVG files.
        names: Figures that the page shows.
        runs: Contents of runs.csv.

    Returns:
        Name of a figure -> its panels and traces; ``runs`` -> series -> devices -> names of the
        completed runs, and the hosts of each, or of all where they are the same.
    """
    return {name: _facts(_read(figures / f"{name}.svg")) for name in names} | {"runs": _runs(runs)}


def is_wide(path: Path) -> bool:
    """Whether a figure is drawn wider than one column.

    Args:
        path: SVG file of the figure.
    """
    return _width(_read(path)) > 300


def in_place_of_marks(path: Path) -> str:
    """The words of a figure that has nothing to show; empty for one with marks, or drawn by another version.

    Args:
        path: SVG file of the figure.
    """
    root = _read(path)
    if root.find("metadata") is None or _facts(root)["traces"]:
        return ""
    return " ".join("".join(text.itertext()).strip() for text in root.iter("text"))


def _read(path: Path) -> Element:
    root = fromstring(path.read_text(encoding="utf-8"))  # noqa: S314  our own drawing
    for element in root.iter():
        element.tag = _NAMESPACE.sub("", element.tag)
        named = {_NAMESPACE.sub("", key): value for key, value in element.attrib.items()}
        element.attrib = {key: value for key, value in named.items() if _is_drawn(key, value)}
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag not in _ELEMENTS]:
            parent.remove(child)
    return root


def _is_drawn(name: str, value: str) -> bool:
    """Whether an attribute is part of a drawing; a reference must lead to the same file."""
    if name == "href":
        return value.startswith("#")
    return name in _ATTRIBUTES or name.startswith("data-")


def _facts(root: Element) -> dict[str, Any]:
    """The file's facts about its marks; none where another version has drawn it."""
    try:
        data: dict[str, Any] = json.loads(root.findtext("metadata") or "{}")
    except ValueError:
        data = {}
    return {"panels": [], "traces": []} | data


def _runs(runs: pd.DataFrame) -> dict[str, dict[str, list[list[str]]]]:
    done = runs[runs["outcome"] == "completed"]
    hosts = done["hosts"] if "hosts" in done else pd.Series("", index=done.index)
    told: dict[str, dict[str, list[list[str]]]] = {}
    for (series, devices), points in done.groupby(["series", "devices"], sort=False):
        of_runs = hosts[points.index].fillna("").astype(str).tolist()
        # often all were on the same
        same = of_runs[:1] if len(set(of_runs)) == 1 else of_runs
        told.setdefault(str(series), {})[str(devices)] = [points["run"].astype(str).tolist(), same]
    return told


def _fit_into_page(element: Element, prefix: str) -> None:
    for key, value in element.attrib.items():
        if key == "id":
            element.set(key, prefix + value)
        elif key == "href" or value.startswith("url("):
            element.set(key, _REFERENCE.sub(lambda match: f"#{prefix}{match[1]}", value))


def _size(root: Element) -> str:
    width = _width(root)
    least = width * LEAST_TEXT_PIXELS / LEAST_TEXT_POINTS
    return f"min-width:{least:.0f}px;max-width:{width * MOST_PIXELS_A_POINT:.0f}px"


def _width(root: Element) -> float:
    return float(root.get("viewBox", "0 0 241 100").split()[2])


def _description(title: str, data: dict[str, Any]) -> str:
    # a figure of one quantity is often called by it
    return " ".join(dict.fromkeys([f"{title}.", *_sentences(data)]))


def _sentences(data: dict[str, Any]) -> Iterator[str]:
    panels, traces = data["panels"], data["traces"]
    quantities = list(dict.fromkeys(trace["label"] for trace in traces if trace["kind"] != "part"))
    if quantities:
        named = ", ".join(quantities)
        yield f"{named[:1].upper()}{named[1:]}."
    if len(panels) > 1:
        yield f"{len(panels)} panels."
    kinds = dict.fromkeys(trace["kind"] for trace in traces)
    if kinds:
        yield f"Shown are {', '.join(_KINDS.get(kind, kind) for kind in kinds)}."
