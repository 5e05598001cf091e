"""How a study ended, for the terminal: its decisions, or why runs have failed."""

from __future__ import annotations

import json
from pathlib import Path

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
    """A line for each experiment and the path of the report; nothing if it is older than ``since``.

    Args:
        results: folder of all experiments.
        since: seconds since the epoch.
    """
    report = results / "report.html"
    if not report.exists() or report.stat().st_mtime < since:
        return ""
    answers = json.loads((results / "decision.json").read_text(encoding="utf-8"))
    lines = [f"{answer['experiment']}: {answer['sentence']}" for answer in answers]
    return "\n".join([*lines, f"Report: {report}"])
