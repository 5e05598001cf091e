"""What tests marked `gpu` have shown on a machine, and the part of docs/gpu.md that says so."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch
from tests.marked_outcomes import Shown
from tests.paths import SCRIPTS

from scalewise.analysis.conditions import known_limits
from scalewise.config.site import cpu_model
from scalewise.measure.origins import versions
from scalewise.ranks.monitoring.environments import source_version
from scalewise.ranks.monitoring.monitor import Monitor

BEGIN, END = "<!-- begin: made by pytest -m gpu -->", "<!-- end: made by pytest -m gpu -->"


def write_page(page: Path, machine: dict[str, str], tests: Sequence[Shown]) -> None:
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


def outcomes(machine: dict[str, str], tests: Sequence[Shown]) -> str:
    """How tests ended, what they measured, and on which machine, as Markdown.

    Each test that measured something or failed has a line, and the cases of one that passed share it; the
    others that passed are counted by their folder, which outlives their files.
    """
    ended = Counter(test.outcome for test in tests)
    parts = [", ".join(f"{number} {outcome}" for outcome, number in ended.items()) + "."]
    rows = [test for test in tests if test.figures or test.outcome == "failed"]
    if rows:
        lines = ["| what was shown | outcome | measured |", "|---|---|---|"]
        for cells in _cells(rows):
            # a bar would begin another cell
            lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        parts.append("\n".join(lines))
    others = Counter(_folder(test) for test in tests if test not in rows and test.outcome == "passed")
    parts.append(
        "\n".join(f"- `{folder}`: {number} more passed" for folder, number in sorted(others.items()))
    )
    cut_off = Counter(_folder(test) for test in tests if test.outcome == "not run")
    missing = [f"- {number} tests of `{folder}`: no time was left" for folder, number in cut_off.items()]
    reasons = Counter(test.reason for test in tests if test.outcome == "skipped")
    missing += [f"- {number} tests: {reason}" for reason, number in reasons.items()]
    if missing:
        parts += ["Not run:", "\n".join(missing)]
    parts.append(", ".join(f"{name} {value}" for name, value in machine.items()) + ".")
    return "\n\n".join(filter(None, parts))


_CASE = re.compile(r" \(([^()]*)\)$")
"""The parameters of a test, at the end of its words."""


def _cells(tests: Sequence[Shown]) -> Iterator[tuple[str, str, str]]:
    """Yield the row of each test that failed, and of the passed cases of each other one."""
    cases = defaultdict[str, list[Shown]](list)
    for test in tests:
        passed = test.outcome == "passed"
        cases[_CASE.sub("", test.words) if passed else test.words].append(test)
    for words, of_test in cases.items():
        first = of_test[0]
        if first.outcome == "failed":
            yield words, f"**failed**: {first.reason}", "; ".join(first.figures)
        elif len(of_test) == 1:
            yield first.words, first.outcome, "; ".join(first.figures)
        else:
            named = {case[1] if (case := _CASE.search(each.words)) else "": each for each in of_test}
            figures = [f"{case}: {', '.join(each.figures)}" for case, each in named.items()]
            yield words, first.outcome, "; ".join(figures)


def _folder(test: Shown) -> str:
    return test.file.rpartition("/")[0]


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
    driver: dict[str, str] = {}
    if accelerator == "cuda":
        torch.cuda.init()
        device = torch.device("cuda", 0)
        properties = torch.cuda.get_device_properties(device)
        found["GPU"] = torch.cuda.get_device_name(device)
        found["GPUs"] = str(torch.cuda.device_count())
        found["GPU memory"] = f"{properties.total_memory / 2**30:.0f} GiB"
        (monitor := Monitor(str(properties.uuid))).start()
        report = monitor.stop()
        if report.limits is not None:
            found |= known_limits(report.limits)
        driver = {"driver": report.driver or "unknown"}
        if torch.backends.cudnn.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
    else:
        found["GPU"] = "none: a rehearsal on the CPU"
    found["CPU"] = f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores"
    found["system"] = f"{platform.system()} {platform.release()}"
    return found | versions(accelerator == "cuda") | driver
