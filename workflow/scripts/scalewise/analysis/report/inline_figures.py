"""Figures as parts of a page: their drawings with ids of their own, and the runs behind their marks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

import pandas as pd
from markupsafe import Markup

LEAST_TEXT_PIXELS = 9.0
"""A narrow screen scrolls a figure sideways rather than shrink its text below this."""
LEAST_TEXT_POINTS = 6.5
MOST_PIXELS_A_POINT = 2.1
"""A figure grows with its place in the page up to this."""
WIDE_POINTS = 300
"""A figure that is wider than this has the width of two columns."""
_NAMESPACE = re.compile(r"\{[^}]*\}")
_OWN_REFERENCE = re.compile(r"(url\()?#([\w-]+)(\))?")
_ELEMENTS = frozenset(["svg", "defs", "clipPath", "g", "path", "use", "text"])
_ATTRIBUTES = frozenset(
    [
        *("id", "class", "d", "x", "y", "href", "clip-path", "transform", "viewBox"),
        *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray"),
        *("stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "font-size", "text-anchor"),
        *("data-series", "data-mark", "data-shift", "data-panel"),
    ]
)
"""All that a figure is drawn with.

A results folder may come from others: what is not in these lists, such as a script or a handler, is dropped,
and so is a reference to another file.
"""
_KINDS = {
    "measured": "measured medians",
    "expected": "expected values of device counts that were not measured",
    "run": "single runs",
    "part": "parts of bars",
    "epochs": "curves of medians",
}


@dataclass(frozen=True)
class InlineFigure:
    """A figure as an element of a page.

    Args:
        svg: The drawing in a box that scrolls sideways on a narrow screen. Text, axes and background take
            their colors from the page's style sheet.
        wide: True for the width of two columns.
    """

    svg: Markup
    wide: bool


def inline_figure(path: Path, title: str, prefix: str, data: Mapping[str, Any]) -> InlineFigure:
    """Read a figure's file for a page.

    Args:
        path: SVG file of the figure.
        title: Name of the figure for readers.
        prefix: Begins every id; no other figure of the page has it. Each mark names its shape, so a short
            one keeps the page small.
        data: The numbers behind its marks, for the description.
    """
    root = fromstring(path.read_text(encoding="utf-8"))  # noqa: S314  our own drawing
    _keep_drawing(root, prefix)
    width = float(root.get("viewBox", "0 0 241 100").split()[2])
    least, most = width * LEAST_TEXT_PIXELS / LEAST_TEXT_POINTS, width * MOST_PIXELS_A_POINT
    root.attrib |= {
        "role": "img",
        # an element of that name would be a second tooltip over every mark
        "aria-label": _description(title, data),
        "style": f"min-width:{least:.0f}px;max-width:{most:.0f}px",
    }
    drawing = tostring(root, encoding="unicode").replace(" />", "/>")
    return InlineFigure(
        Markup(f'<div class="drawing">{drawing}</div>'),  # noqa: S704  escaped by tostring
        width > WIDE_POINTS,
    )


def _keep_drawing(element: Element, prefix: str) -> None:
    """Drop all but drawing from an element and what is in it, and begin every id with the prefix."""
    element.tag = _NAMESPACE.sub("", element.tag)
    kept = {}
    for key, value in element.attrib.items():
        name = _NAMESPACE.sub("", key)
        if name == "id":
            kept[name] = prefix + value
        elif name == "href" or "url(" in value:
            if own := _OWN_REFERENCE.fullmatch(value):
                kept[name] = f"{own[1] or ''}#{prefix}{own[2]}{own[3] or ''}"
        elif name in _ATTRIBUTES:
            kept[name] = value
    element.attrib = kept
    for child in list(element):
        if _NAMESPACE.sub("", child.tag) in _ELEMENTS:
            _keep_drawing(child, prefix)
        else:
            element.remove(child)


def runs_of_points(runs: pd.DataFrame) -> dict[str, dict[str, dict[str, list[str]]]]:
    """The completed runs of each point, and where they ran.

    Args:
        runs: Contents of runs.csv.

    Returns:
        Series -> devices -> names of the ``runs``, and the ``hosts`` of each, or of all if they are the same.
    """
    done = runs[runs["outcome"] == "completed"]
    found: dict[str, dict[str, dict[str, list[str]]]] = {}
    for (series, devices), points in done.groupby(["series", "devices"], sort=False):
        hosts = points["hosts"].fillna("").astype(str).tolist() if "hosts" in points else []
        found.setdefault(str(series), {})[str(devices)] = {
            "runs": points["run"].astype(str).tolist(),
            "hosts": hosts[:1] if len(set(hosts)) == 1 else hosts,
        }
    return found


def _description(title: str, data: Mapping[str, Any]) -> str:
    # a figure of one quantity is often called by it
    return " ".join(dict.fromkeys([f"{title}.", *_sentences(data)]))


def _sentences(data: Mapping[str, Any]) -> Iterator[str]:
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
