"""A report on the runs of a study that have finished, also while Snakemake makes others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from scalewise.analysis.study import write
from scalewise.plan.plan_file import Plan
from scalewise.report.figures import draw
from scalewise.report.page import write_page
from scalewise.report.proposal import analysis_of
from scalewise.report.section import Section, read_section, write_decisions
from scalewise.terminal import DECISION, REPORT, card_lines

PARTIAL = "partial"
"""Folder of its tables and figures: those of the experiments' folders are files of Snakemake."""


def report_finished(plan: Plan, results: Path) -> list[str]:
    """Report on the runs that have finished, and list the others with reasons.

    All is written into a temporary folder and then renamed. ``report.html`` and ``decision.json`` are also
    files of Snakemake. They get the time at which reading began, so they are older than every file that the
    study made since, and Snakemake makes them again. A report that the study made since is kept.

    Args:
        plan: The study.
        results: Folder of all experiments; receives ``report.html``, ``decision.json``, and ``partial`` with
            the tables and the figures.

    Returns:
        Each experiment's card, and the path of the report.
    """
    results.mkdir(exist_ok=True)
    earlier = _state(results / REPORT)
    with TemporaryDirectory(prefix=".report-", dir=results) as name:
        drafts = Path(name)
        # the clock of the file server, as for the study's files
        began = drafts.stat().st_mtime_ns
        sections = [_section(plan, name, results, drafts / PARTIAL) for name in plan["experiments"]]
        unfinished = not all(section.answer.has_ended for section in sections)
        write_page(sections, drafts / REPORT, partial=unfinished)
        write_decisions(sections, drafts / DECISION)
        if _state(results / REPORT) != earlier:
            return [f"The study has made its own report in the meantime: {results / REPORT}"]
        if (tables := results / PARTIAL).exists():
            tables.rename(drafts / "earlier")
        (drafts / PARTIAL).rename(tables)
        for file in (DECISION, REPORT):
            os.utime(drafts / file, ns=(began, began))
            (drafts / file).replace(results / file)
    lines = [line for section in sections for line in card_lines(json.loads(section.answer.to_json()))]
    return [*lines, f"Report on {'the finished' if unfinished else 'all'} runs: {results / REPORT}"]


def _state(path: Path) -> tuple[int, ...] | None:
    """Return what differs once a file is written again; None without one. Clocks of two hosts may differ."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _section(plan: Plan, name: str, results: Path, partial: Path) -> Section:
    """Write tables and figures of an experiment, as the rules of the study do."""
    folder = partial / name
    write(analysis_of(plan, name, results), folder)
    section = read_section(plan, name, folder)
    draw(section)
    return section
