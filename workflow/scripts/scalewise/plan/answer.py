"""The decisions of a finished study, for the terminal."""

from __future__ import annotations

import json
from pathlib import Path


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
