"""The text of docs/reliability.md, from what marked tests have shown."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from tests.marked_outcomes import Shown
from tests.reliability.catalogue import FAULTS, GROUPS, PLANNED, REFUSED_LATER

from scalewise.config.site import cpu_model

LONGEST_MESSAGE = 200

HEADER = """\
# What a study survives, and what is refused

Made by `{command}` on {day}; do not edit. Each line is what tests have shown
that ran then; its link leads to them. Faults are provoked on the real thing: processes, a Slurm cluster
on one machine, network namespaces, small file systems, a local HTTP server. Containers have their
own mounts and root; only their runtime is a stand-in, a script with the command line of Apptainer.{quick}

Machine: {machine}.
"""

QUICK = """

**This is the quick part**: `make reliability` repeats more often what happens at random moments."""

LIMITS = """\
## What this does not show

- On a machine without a GPU: random states of CUDA, a gradient scaler that has met an overflow, NCCL's own
  timeouts, a GPU that falls off its bus. Bit-identical weights are promised for CPUs alone.
- With Apptainer itself: how it mounts an image file and folders, and shows GPUs.
- On a cluster whose nodes share one machine: a network file system that serves old contents, or a node that
  dies with its disks.
- Checksums show that a checkpoint is damaged, not that somebody replaced it together with them:
  torch.distributed.checkpoint reads a pickle.
- A configuration given by `--configfile` is read by Snakemake first: tabs, or a list at the top, are
  refused in its words, without a line.
"""

FAULTS_HEAD = """\
## {shown} of {all} faults

| # | fault | how provoked | what happened | tests passed | figures |
|---|---|---|---|---|---|
"""

GROUP_HEAD = """\

### {group}

| given | refused | message, for example | tests passed |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A fault or an input, and the tests that carry its mark."""

    name: str
    tests: Sequence[Shown]

    @property
    def passed(self) -> list[Shown]:
        return [test for test in self.tests if test.outcome == "passed"]

    @property
    def is_shown(self) -> bool:
        return bool(self.passed) and not any(test.outcome == "failed" for test in self.tests)

    @property
    def count(self) -> str:
        return f"{len(self.passed)} of {len(self.tests)}" if self.tests else "**no test**"

    @property
    def links(self) -> str:
        """What the tests show, once each, those first that did not pass."""
        ordered = sorted(self.tests, key=lambda test: test.outcome == "passed")
        return "; ".join(dict.fromkeys(map(_link, ordered)))

    @property
    def linked_count(self) -> str:
        """How many tests passed, as a link to their file; with the tests that did not."""
        others = [_link(test) for test in self.tests if test.outcome != "passed"]
        return "; ".join([f"[{self.count}](../{self.tests[0].file})", *dict.fromkeys(others)])

    @property
    def figures(self) -> str:
        return "; ".join(dict.fromkeys(_cell(figure) for test in self.passed for figure in test.figures))

    @property
    def message(self) -> str:
        """One of the messages; empty if there is none."""
        return next((_quoted(message) for test in self.passed for message in test.messages), "")


def faults(tests: Sequence[Shown]) -> list[Row]:
    """Return a row for each fault."""
    return [
        Row(f"fault {number}", [test for test in tests if number in test.marks])
        for number in range(1, len(FAULTS) + 1)
    ]


def inputs(tests: Sequence[Shown]) -> list[Row]:
    """Return a row for each input that a test is marked with, in the order of the groups."""
    marks = dict.fromkeys(mark for test in tests for mark in test.marks if isinstance(mark, str))
    ordered = sorted(marks, key=lambda mark: GROUPS.index(mark.partition(": ")[0]))
    return [Row(mark, [test for test in tests if mark in test.marks]) for mark in ordered]


def problems(tests: Sequence[Shown]) -> list[str]:
    """Return a line for each test that failed, and for each fault and input that no test has shown."""
    lines = [f"{test.test}: failed" for test in tests if test.marks and test.outcome == "failed"]
    for row in (*faults(tests), *inputs(tests)):
        if not row.tests:
            lines.append(f"{row.name}: no test carries its mark")
        elif not row.passed:
            lines.append(f"{row.name}: no test of it passed ({row.count})")
    return lines


def page(tests: Sequence[Shown]) -> str:
    """Return the whole page, also if much is not shown."""
    thorough = os.environ.get("SCALEWISE_THOROUGH") == "1"
    header = HEADER.format(
        command="make reliability" if thorough else "pytest --reliability",
        day=date.today().isoformat(),
        machine=", ".join(f"{name} {value}" for name, value in this_machine().items()),
        quick="" if thorough else QUICK,
    )
    parts = [header, _faults(faults(tests)), _inputs(inputs(tests)), LIMITS]
    left_out = [test for test in tests if test.marks and test.outcome in {"skipped", "not run"}]
    if left_out:
        lines = dict.fromkeys(f"- {_link(test)}\n" for test in left_out)
        parts.append("## Tests that were left out\n\n" + "".join(lines))
    return "\n".join(parts)


def _faults(rows: Sequence[Row]) -> str:
    shown = sum(row.is_shown for row in rows)
    return FAULTS_HEAD.format(shown=shown, all=len(rows)) + "".join(
        f"| {number} | {happening} | {provocation} | {row.links} | {row.count} | {row.figures} |\n"
        for number, ((happening, provocation), row) in enumerate(zip(FAULTS, rows, strict=True), 1)
    )


def _inputs(rows: Sequence[Row]) -> str:
    text = f"## {sum(row.is_shown for row in rows)} of {len(rows)} inputs\n"
    for group, members in groupby(rows, key=lambda row: row.name.partition(": ")[0]):
        text += GROUP_HEAD.format(group=group.capitalize())
        for row in members:
            where = next(
                (text for begin, text in REFUSED_LATER.items() if row.name.startswith(begin)), PLANNED
            )
            given = _cell(row.name.partition(": ")[2])
            text += f"| {given} | {where} | {row.message} | {row.linked_count} |\n"
    return text


def _link(test: Shown) -> str:
    link = f"[{_cell(test.words)}](../{test.file})"
    if test.outcome == "passed":
        return link
    if test.outcome == "failed":
        return f"**failed**: {link}"
    return f"**not shown**: {link} ({_cell(test.reason) or 'not run'})"


def _quoted(text: str) -> str:
    """A message as code, which shows every character as it is; of a long one, the beginning."""
    line = " ".join(text.split())
    if len(line) > LONGEST_MESSAGE:
        line = line[:LONGEST_MESSAGE].rsplit(" ", 1)[0] + " ..."
    fence, space = ("``", " ") if "`" in line else ("`", "")
    return f"{fence}{space}{line}{space}{fence}".replace("|", "\\|")


def _cell(text: str) -> str:
    """A text that stays within its cell of a table, and within the brackets of a link."""
    return " ".join(text.split()).replace("|", "\\|").replace("[", "\\[").replace("]", "\\]")


@cache
def this_machine() -> dict[str, str]:
    """Return what figures of this machine depend on, by name, without what identifies the machine."""
    slurm = "none"
    if shutil.which("slurmctld") is not None:
        printed = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, timeout=60, check=False)
        slurm = printed.stdout.split()[-1] if printed.stdout else "unknown"
    return {
        "processor": cpu_model(),
        "CPUs": str(len(os.sched_getaffinity(0))),
        "GPUs": "yes" if Path("/dev/nvidiactl").exists() else "none",
        "Linux": platform.release().partition("-")[0],
        "Python": platform.python_version(),
        **{name: version(name).partition("+")[0] for name in ("torch", "snakemake")},
        "Slurm": slurm,
    }
