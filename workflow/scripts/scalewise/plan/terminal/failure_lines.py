"""Failed runs, for the terminal: the reason and the last lines of the output, once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from scalewise.records import Failure

MAX_REASONS = 10
MAX_RUNS = 6

_RANK = re.compile(r"^rank \d+ on \S+: ")


def failure_lines(label: str, failure: Failure, log: Path, shown: dict[str, str]) -> list[str]:
    """Return the reason of a failed run with the last lines of its output.

    Args:
        label: Names the run.
        failure: The failure.
        log: The run's whole output.
        shown: The run that a reason was first shown for, by reason; a new reason is added. The output of a
            second run that failed alike is not shown.
    """
    first = shown.setdefault(_cause(failure.reason), label)
    if first != label:
        return [f"{label} {failure.outcome} like {first}."]
    lines = [f"{label} {failure.outcome}: {failure.reason}", *(f"    {line}" for line in failure.output)]
    return [*lines, f"    Whole output: {log}"]


def reason_lines(failures: Iterable[tuple[str, Failure]]) -> list[str]:
    """Return one line for each reason, with the runs that failed for it.

    Args:
        failures: Names of runs in the order in which they are named, and the failure of each.
    """
    runs: dict[str, list[tuple[str, Failure]]] = {}
    for label, failure in failures:
        runs.setdefault(_cause(failure.reason), []).append((label, failure))
    lines = [_reason_line(alike) for alike in list(runs.values())[:MAX_REASONS]]
    if len(runs) > MAX_REASONS:
        lines.append(f"{len(runs) - MAX_REASONS} more reasons are in results/*/runs/*/failure.json.")
    return lines


def _reason_line(alike: list[tuple[str, Failure]]) -> str:
    """Return the runs that failed alike, and the reason of the first."""
    names, first = [label for label, _ in alike], alike[0][1]
    more = f" and {len(names) - MAX_RUNS} more" if len(names) > MAX_RUNS else ""
    return f"{', '.join(names[:MAX_RUNS])}{more} {first.outcome}: {first.reason}"


def _cause(reason: str) -> str:
    """Return a reason without the rank and the host that it was first seen on."""
    return _RANK.sub("", reason)
