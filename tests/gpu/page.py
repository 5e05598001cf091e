"""What tests marked `gpu` have shown on a machine, and the part of docs/gpu.md that says so."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch

from scalewise.measure.origins import versions
from scalewise.plan.config.site import cpu_model
from scalewise.ranks.monitoring.environments import source_version
from scalewise.ranks.monitoring.sensors import driver_version, gpu_limits

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"
BEGIN, END = "<!-- begin: made by pytest -m gpu -->", "<!-- end: made by pytest -m gpu -->"

Outcome = Literal["passed", "failed", "skipped", "not run"]


@dataclass(frozen=True)
class Check:
    """A test that is marked `gpu`.

    Args:
        test: its name as pytest has it.
        words: what it shows.
        outcome: ``not run`` until it has ended.
        reason: why it was skipped, or how it failed.
        figures: what it measured.
        seconds: it took, without its fixtures.
    """

    test: str
    words: str
    outcome: Outcome = "not run"
    reason: str = ""
    figures: Sequence[str] = ()
    seconds: float = 0.0


def write_checks(page: Path, machine: dict[str, str], checks: Sequence[Check]) -> None:
    """Put what tests have shown in place of what earlier ones had.

    Raises:
        ValueError: the page does not say where it goes.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the line {BEGIN!r} or {END!r}, between which the tests stand")
    page.write_text(f"{before}{BEGIN}\n\n{shown(machine, checks)}\n\n{END}{after}", encoding="utf-8")


def shown(machine: dict[str, str], checks: Sequence[Check]) -> str:
    """How tests ended, what they measured, and on which machine, as Markdown."""
    parts = [summary(checks), table(checks)]
    if missing := [f"- {line}" for line in not_run(checks)]:
        parts += ["Not run:", "\n".join(missing)]
    parts.append(", ".join(f"{name} {value}" for name, value in machine.items()) + ".")
    return "\n\n".join(parts)


def summary(checks: Sequence[Check]) -> str:
    """How many tests ended how."""
    counts = Counter(check.outcome for check in checks)
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) + "."


def table(checks: Sequence[Check]) -> str:
    """A line for each test that measured something or failed; the others by their folder."""
    told = [check for check in checks if check.figures or check.outcome == "failed"]
    lines = ["| what was shown | outcome | measured |", "|---|---|---|"]
    for check in told:
        # a bar would begin another cell
        cells = (check.words, outcome(check), "; ".join(check.figures))
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    others = Counter(folder(check) for check in checks if check not in told and check.outcome == "passed")
    rest = "\n".join(f"- `{place}`: {number} more passed" for place, number in sorted(others.items()))
    return "\n\n".join(filter(None, ["\n".join(lines) if told else "", rest]))


def folder(check: Check) -> str:
    """The folder of a test, which outlives its file."""
    return check.test.partition("::")[0].rpartition("/")[0]


def outcome(check: Check) -> str:
    """How a test ended, and why if it failed."""
    return f"**failed**: {check.reason}" if check.outcome == "failed" else check.outcome


def not_run(checks: Sequence[Check]) -> Iterator[str]:
    """Tests without a result, by their reasons."""
    cut_off = Counter(folder(check) for check in checks if check.outcome == "not run")
    for place, number in cut_off.items():
        yield f"{number} tests of `{place}`: no time was left"
    reasons = Counter(check.reason for check in checks if check.outcome == "skipped")
    for reason, number in reasons.items():
        yield f"{number} tests: {reason}"


def gpu_missing() -> str:
    """Say why no GPU can be used; empty where one can."""
    if torch.cuda.is_available():
        return ""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return f"no GPU: torch {torch.__version__}, {built}, sees none (CUDA_VISIBLE_DEVICES={visible})"


def describe_machine(accelerator: Literal["cpu", "cuda"]) -> dict[str, str]:
    """GPU, driver, versions and CPU of this machine, by name, as a run's records have them."""
    found = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": source_version(SCRIPTS) or "unknown",
    }
    if accelerator == "cuda":
        torch.cuda.init()
        device = torch.device("cuda", 0)
        properties = torch.cuda.get_device_properties(device)
        found["GPU"] = torch.cuda.get_device_name(device)
        found["GPUs"] = str(torch.cuda.device_count())
        found["GPU memory"] = f"{properties.total_memory / 2**30:.0f} GiB"
        if (limits := gpu_limits(str(properties.uuid))) is not None:
            found |= limits.named()
        if torch.backends.cudnn.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
    else:
        found["GPU"] = "none: a rehearsal on the CPU"
    found["CPU"] = f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores"
    found["system"] = f"{platform.system()} {platform.release()}"
    driver = driver_version() if accelerator == "cuda" else None
    return found | versions(accelerator == "cuda") | ({} if driver is None else {"driver": driver})
