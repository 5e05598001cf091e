"""The tables of docs/gpu.md, from the record of a machine with a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .gpu_record import Check, GpuRecord
from .measure import markdown

BEGIN, END = "<!-- begin: written by make gpu -->", "<!-- end: written by make gpu -->"


def write_tables(page: Path, record: GpuRecord) -> None:
    """Put the record's tables in place of those of the page.

    Raises:
        ValueError: the page does not say where they go.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the line {BEGIN!r} or {END!r}, between which its tables stand")
    page.write_text(f"{before}{BEGIN}\n\n{tables(record)}\n\n{END}{after}", encoding="utf-8")


def tables(record: GpuRecord) -> str:
    """Machine, speed, checks, and what of both is missing, as Markdown."""
    if not record.machine:
        return "No GPU has run any of it yet."
    parts = [machine(record)]
    if record.parts:
        parts += ["### Speed", speed(record)]
    if record.checks:
        parts += ["### Checks", summary(record), checks(record)]
    if missing := list(not_run(record)):
        parts += ["### Not run", "\n".join(f"- {line}" for line in missing)]
    return "\n\n".join(parts)


def machine(record: GpuRecord) -> str:
    """A line of all that is known of the machine."""
    return ", ".join(f"{name} {value}" for name, value in record.machine.items()) + "."


def speed(record: GpuRecord) -> str:
    """The rows of all parts."""
    rows = [row for part in record.parts for row in part.rows]
    seconds = ", ".join(f"{part.name} {part.seconds:.0f} s" for part in record.parts)
    return f"{markdown(rows)}\n\nTime taken: {seconds}."


def summary(record: GpuRecord) -> str:
    """How many tests ended how."""
    counts = Counter(check.outcome for check in record.checks)
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) + "."


def checks(record: GpuRecord) -> str:
    """A line for each test that measured something or failed; the others by their file."""
    told = [check for check in record.checks if check.figures or check.outcome == "failed"]
    lines = ["| what was shown | outcome | measured |", "|---|---|---|"]
    for check in told:
        # a bar would begin another cell
        cells = (check.words, outcome(check), "; ".join(check.figures))
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    others = Counter(
        check.test.partition("::")[0]
        for check in record.checks
        if check not in told and check.outcome == "passed"
    )
    rest = "\n".join(f"- `{file}`: {number} more passed" for file, number in sorted(others.items()))
    return "\n\n".join(filter(None, ["\n".join(lines) if told else "", rest]))


def outcome(check: Check) -> str:
    """How a test ended, and why if it failed."""
    return f"**failed**: {check.reason}" if check.outcome == "failed" else check.outcome


def not_run(record: GpuRecord) -> Iterator[str]:
    """Parts without rows, and tests that were skipped, by their reasons."""
    for part in record.parts:
        if part.missing:
            yield f"{part.name}: {part.missing}"
    cut_off = Counter(check.test.partition("::")[0] for check in record.checks if check.outcome == "not run")
    for file, number in cut_off.items():
        yield f"{number} tests of `{file}`: no time was left"
    reasons = Counter(check.reason for check in record.checks if check.outcome == "skipped")
    for reason, number in reasons.items():
        yield f"{number} tests: {reason}"
