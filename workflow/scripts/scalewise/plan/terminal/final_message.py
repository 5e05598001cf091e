"""How a study ended, for the terminal: its decisions, or why runs have failed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_CAUTIONS = 2
MAX_FAILURES = 10
TRACEBACK_LINES = 6


def failures(results: Path, since: float) -> str:
    """Why runs have failed in this session, each with the end of its first traceback.

    Args:
        results: folder of all experiments.
        since: seconds since the epoch.
    """
    told = []
    for path in sorted(results.glob("*/runs/*/failure.json")):
        if path.stat().st_mtime < since:
            continue
        try:
            failure = json.loads(path.read_text(encoding="utf-8"))
            lines = failure["traceback"].rstrip().splitlines()[-TRACEBACK_LINES:]
            run = f"{failure['definition']['experiment']}/{failure['definition']['run']}"
            told.append("\n    ".join([f"{run} {failure['outcome']}: {failure['reason']}", *lines]))
        except (ValueError, KeyError):
            told.append(f"{path} cannot be read")
    more = f"\n... and {len(told) - MAX_FAILURES} more" if len(told) > MAX_FAILURES else ""
    return "\n".join(told[:MAX_FAILURES]) + more


def decisions(results: Path, since: float = 0.0) -> str:
    """Each experiment's decision, and the path of the report; nothing if it is older than ``since``.

    Below the decision stand its criterion, the first reason why the training stops scaling, and the first
    cautions; the report has all.

    Args:
        results: folder of all experiments.
        since: seconds since the epoch.
    """
    report = results / "report.html"
    if not report.exists() or report.stat().st_mtime < since:
        return ""
    answers = json.loads((results / "decision.json").read_text(encoding="utf-8"))
    lines = [line for answer in answers for line in _told(answer)]
    return "\n".join([*lines, f"Report: {report}"])


def _told(answer: Mapping[str, Any]) -> Iterator[str]:
    yield f"{answer['experiment']}: {answer['sentence']}"
    # tables of an earlier version have none of these
    limits, cautions = answer.get("limits", []), answer.get("cautions", [])
    shown = [
        answer.get("criterion", ""),
        *limits[:1],
        *(f"Caution: {line}" for line in cautions[:MAX_CAUTIONS]),
    ]
    yield from (f"  {line}" for line in shown if line)
    if len(cautions) > MAX_CAUTIONS:
        more = len(cautions) - MAX_CAUTIONS
        yield f"  ... and {more} more caution{'s' if more > 1 else ''} in the report"
