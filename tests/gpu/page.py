"""What tests marked `gpu` have shown on a machine, and the part of docs/gpu.md that says so."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch
from tests.marked_outcomes import Shown
from tests.paths import SCRIPTS

from scalewise.config.site import cpu_model
from scalewise.measure.origins import versions
from scalewise.ranks.monitoring.environments import source_version

BEGIN, END = "<!-- begin: made by pytest -m gpu -->", "<!-- end: made by pytest -m gpu -->"


def write_page(page: Path, machine: str, tests: Sequence[Shown]) -> None:
    """Put what tests have shown in place of what earlier ones had.

    Raises:
        ValueError: the page does not say where it goes.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the line {BEGIN!r} or {END!r}, between which the tests stand")
    page.write_text(f"{before}{BEGIN}\n\n{outcomes(machine, tests)}\n\n{END}{after}", encoding="utf-8")


def outcomes(machine: str, tests: Sequence[Shown]) -> str:
    """Return how tests ended, what they measured, and on which machine, as Markdown.

    Each test that measured something or failed has a line; the others are counted.
    """
    ended = Counter(test.outcome for test in tests)
    lines = [", ".join(f"{number} {outcome}" for outcome, number in ended.items()) + ".", ""]
    lines += ["| what was shown | outcome | measured |", "|---|---|---|"]
    for test in tests:
        if test.figures or test.outcome == "failed":
            outcome = f"**failed**: {test.reason}" if test.outcome == "failed" else test.outcome
            cells = (test.words, outcome, "; ".join(test.figures))
            # a bar would begin another cell
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    reasons = Counter(
        test.reason or "no time was left" for test in tests if test.outcome in {"skipped", "not run"}
    )
    lines += ["", *(f"- {number} tests not run: {reason}" for reason, number in reasons.items())]
    lines += ["", f"{machine}."]
    return "\n".join(lines)


def gpu_missing() -> str:
    """Say why no GPU can be used; empty where one can."""
    if torch.cuda.is_available():
        return ""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return f"no GPU: torch {torch.__version__}, {built}, sees none (CUDA_VISIBLE_DEVICES={visible})"


def describe_machine(accelerator: Literal["cpu", "cuda"]) -> str:
    """Return date, commit, device and versions."""
    device = torch.cuda.get_device_name(0) if accelerator == "cuda" else "none: a rehearsal on the CPU"
    found = {"commit": source_version(SCRIPTS) or "unknown", "GPU": device, "CPU": cpu_model()}
    found |= versions(accelerator == "cuda")
    return f"{datetime.now(UTC):%Y-%m-%d}, " + ", ".join(f"{name} {value}" for name, value in found.items())
