"""Writes docs/reliability.md from what tests have shown.

    python -m tests.reliability.write_table --into docs/reliability.md EVIDENCE

It ends with 1, after it has written the table, where a test failed or something is shown by no test.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.reliability.catalogue import BAD_INPUTS, FAULTS, BadInput, Fault
from tests.reliability.evidence import Evidence, Shown

COMMAND = "make reliability"
LONGEST_MESSAGE = 400

HEADER = """\
# What a study survives, and what is refused

Made by `{command}` on {day}; do not edit. Each line is what tests have shown that were run then,
in their own words, which lead to the test. Faults are provoked on the real thing: processes, a Slurm cluster
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
- With Apptainer itself: how it mounts an image file and folders, and shows GPUs. If it is installed, a
  test starts ranks with it.
- On a cluster whose nodes share one machine: a network file system that serves old contents, or a node that
  dies with its disks.
- Slurm sends SIGTERM to a preempted job's steps, and to srun itself. Where srun ends of it before the ranks
  have written their checkpoint, the run goes on from the last one that it wrote by the clock
  (`checkpoint_minutes`).
- A configuration given by `--configfile` is read by Snakemake first: tabs, or a list at the top, are
  refused in its words, without a line.
"""

FAULTS_HEAD = """\
## {shown} of {all} faults

| # | fault | how provoked | what happened | tests passed | figures |
|---|---|---|---|---|---|
"""

INPUTS_HEAD = """\
## {shown} of {all} inputs

"""

GROUP_HEAD = """\
### {group}

| given | refused | what is said, for example | what happened | tests passed |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Standing:
    """What tests have shown of one fault or one input.

    Attributes:
        name: Of the fault or the input, for messages.
        tests: Those that carry its mark.
    """

    name: str
    tests: tuple[Shown, ...]

    @property
    def passed(self) -> int:
        """How many of the tests passed."""
        return sum(test.outcome == "passed" for test in self.tests)

    @property
    def shown(self) -> bool:
        """Whether a test passed and none failed."""
        return self.passed > 0 and not any(test.outcome == "failed" for test in self.tests)

    @property
    def count(self) -> str:
        """How many of how many tests passed."""
        return f"{self.passed} of {len(self.tests)}" if self.tests else "**no test**"

    @property
    def words(self) -> str:
        """What the tests say, once each, with links to their files and those first that did not pass."""
        told = dict.fromkeys(_link(test) for test in sorted(self.tests, key=_passed))
        return "; ".join(told)

    @property
    def figures(self) -> str:
        """What the tests that passed have measured or counted, once each."""
        passed = (test for test in self.tests if test.outcome == "passed")
        return "; ".join(dict.fromkeys(_cell(figure) for test in passed for figure in test.figures))

    @property
    def message(self) -> str:
        """What a user is told in one of the tests that passed, or nothing where none says it."""
        passed = (test for test in self.tests if test.outcome == "passed")
        return next((_quoted(message) for test in passed for message in test.messages), "")


def of_fault(fault: Fault, tests: Sequence[Shown]) -> Standing:
    """Returns what `tests` show of a fault."""
    return Standing(f"fault {fault.number}", tuple(test for test in tests if fault.number in test.faults))


def of_input(given: BadInput, tests: Sequence[Shown]) -> Standing:
    """Returns what `tests` show of an input."""
    return Standing(f'input "{given.key}"', tuple(test for test in tests if given.key in test.inputs))


def problems(evidence: Evidence) -> list[str]:
    """Returns a line for each fault and input that no test has shown, and for each test that failed."""
    standings = [of_fault(fault, evidence.tests) for fault in FAULTS]
    standings += [of_input(given, evidence.tests) for given in BAD_INPUTS]
    lines = [f"{test.test}: failed" for test in evidence.tests if test.outcome == "failed"]
    for standing in standings:
        if not standing.tests:
            lines.append(f"{standing.name}: no test carries its mark")
        elif not standing.passed:
            lines.append(f"{standing.name}: no test of it passed ({standing.count})")
    return lines


def page(evidence: Evidence) -> str:
    """Returns the whole of docs/reliability.md, also where much is not shown."""
    parts = [
        HEADER.format(
            command=COMMAND if evidence.thorough else "pytest --reliability",
            day=evidence.day,
            machine=", ".join(f"{name} {value}" for name, value in evidence.machine.items()),
            quick="" if evidence.thorough else QUICK,
        ),
        _faults(evidence.tests),
        _inputs(evidence.tests),
        LIMITS,
        _not_shown(evidence.tests),
    ]
    return "\n".join(part for part in parts if part)


def _faults(tests: Sequence[Shown]) -> str:
    standings = {fault: of_fault(fault, tests) for fault in FAULTS}
    rows = [
        f"| {fault.number} | {_cell(fault.happening)} | {_cell(fault.provocation)} | {standing.words} "
        f"| {standing.count} | {standing.figures} |\n"
        for fault, standing in standings.items()
    ]
    shown = sum(standing.shown for standing in standings.values())
    return FAULTS_HEAD.format(shown=shown, all=len(FAULTS)) + "".join(rows)


def _inputs(tests: Sequence[Shown]) -> str:
    standings = {given: of_input(given, tests) for given in BAD_INPUTS}
    shown = sum(standing.shown for standing in standings.values())
    parts = [INPUTS_HEAD.format(shown=shown, all=len(BAD_INPUTS))]
    for group, members in groupby(BAD_INPUTS, key=lambda given: given.group):
        rows = [
            f"| {_cell(given.given)} | {given.where} | {standing.message} | {standing.words} "
            f"| {standing.count} |\n"
            for given, standing in ((given, standings[given]) for given in members)
        ]
        parts.append(GROUP_HEAD.format(group=group.capitalize()) + "".join(rows) + "\n")
    return "".join(parts).removesuffix("\n")


def _not_shown(tests: Sequence[Shown]) -> str:
    left_out = [test for test in tests if test.outcome in {"skipped", "not run"}]
    if not left_out:
        return ""
    rows = [f"- {_link(test)}\n" for test in left_out]
    return "## Tests that were left out\n\n" + "".join(dict.fromkeys(rows))


def _passed(test: Shown) -> bool:
    return test.outcome == "passed"


def _link(test: Shown) -> str:
    link = f"[{_cell(test.says)}](../{test.file})"
    if test.outcome == "passed":
        return link
    if test.outcome == "failed":
        return f"**failed**: {link}"
    return f"**not shown**: {link}" + (f" ({_cell(test.reason)})" if test.reason else " (not run)")


def _quoted(text: str) -> str:
    """A message as code, which shows every character as it is; of a long one, the beginning."""
    line = " ".join(text.split())
    if len(line) > LONGEST_MESSAGE:
        line = line[:LONGEST_MESSAGE].rsplit(" ", 1)[0] + " ..."
    fence = "``" if "`" in line else "`"
    space = " " if "`" in line else ""
    return f"{fence}{space}{line}{space}{fence}".replace("|", "\\|")


def _cell(text: str) -> str:
    """A text that stays within its cell of a table, and within the brackets of a link."""
    return " ".join(text.split()).replace("|", "\\|").replace("[", "\\[").replace("]", "\\]")


def main(arguments: Sequence[str]) -> int:
    """Writes the table and returns 0 where everything is shown, else 1 with a line for each gap on stderr.

    Args:
        arguments: As on the command line.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("evidence", type=Path, help="what `pytest --reliability` has written")
    parser.add_argument("--into", type=Path, required=True, help="the document to write")
    options = parser.parse_args(arguments)
    evidence = Evidence.read(options.evidence)
    options.into.write_text(page(evidence), encoding="utf-8")
    lines = problems(evidence)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
