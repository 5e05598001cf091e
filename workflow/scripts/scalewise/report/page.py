"""The page: one HTML file on all experiments, the answers first. It loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from scalewise import __version__
from scalewise.analysis.disturbed import DISTURBED
from scalewise.analysis.words import counts_text
from scalewise.records import write_text
from scalewise.report.figures import FIGURES, read_svg
from scalewise.report.section import Section
from scalewise.report.tables import filled_tables

MOST_CAUTIONS = 3
"""Cautions next to the answer; the others are one click away."""
HERE = Path(__file__).parent


def write_page(sections: Sequence[Section], output: Path, *, partial: bool = False) -> None:
    """Write the page on some experiments.

    Args:
        sections: Comparisons and experiments, in order, with their figures drawn.
        output: File to write.
        partial: Some runs may be missing, and the page says so.
    """
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = with_code
    files = [HERE / "report.css", HERE / "report.js"]
    style, script = (Markup(path.read_text(encoding="utf-8")) for path in files)  # noqa: S704
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    nouns = {section.noun for section in sections}
    noun = sections[0].plural if len(nouns) == 1 else "devices"
    page = environment.get_template("report.html.j2").render(
        heading=sections[0].title if len(sections) == 1 else f"How many {noun}?",
        sections=[_context(section) for section in sections],
        most_cautions=MOST_CAUTIONS,
        partial=partial,
        style=style,
        script=script,
        policy=f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        version=__version__,
    )
    write_text(output, page)


def with_code(text: str) -> Markup:
    """Return a sentence as HTML, with what stands in backticks as code; no line begins with ``%``."""
    html = str(escape(text)).replace(" %", "&nbsp;%")
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", html))  # noqa: S704  escaped


def measured_on(runs: pd.DataFrame, noun: str) -> str:
    """Return days and devices of the completed runs, in a line; empty without any."""
    done = runs[runs["outcome"].isin(["completed", DISTURBED])]
    if done.empty:
        return ""
    apart = int((done["outcome"] == DISTURBED).sum())
    days = sorted(done["started_at"].dropna().str[:10].unique())
    counts = done.groupby("device_name", sort=False)["devices"].unique()
    names = [
        f"{name} ({counts_text(sorted(map(int, devices)), noun)})" if len(counts) > 1 else str(name)
        for name, devices in counts.items()
    ]
    when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    ended = f"{len(done)} of {len(runs)} runs completed{f' ({apart} disturbed, set apart)' if apart else ''}"
    return ", ".join(filter(None, [ended, when, *names]))


def _context(section: Section) -> dict[str, Any]:
    paths = {name: section.figures / f"{name}.svg" for name in FIGURES}
    figures = [_figure(name, path) for name, path in paths.items() if path.exists()]
    tables = list(filled_tables(section))
    return {
        "section": section,
        "answer": section.answer,
        "figures": [figure for figure in figures if figure["is_first"]],
        "more_figures": [figure for figure in figures if not figure["is_first"]],
        "open_tables": [table for table in tables if table.is_open],
        "other_tables": [table for table in tables if not table.is_open],
        "measured_on": measured_on(section.runs, section.noun),
    }


def _figure(name: str, path: Path) -> dict[str, Any]:
    svg, figure = read_svg(path), FIGURES[name]
    width = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    return {
        "name": name,
        "title": figure.title,
        "caption": figure.caption,
        "is_first": figure.is_first,
        "is_wide": width is not None and float(width[1]) > 300,
        "svg": Markup(svg),  # noqa: S704  drawn by this package; the page's policy runs no script of it
    }
