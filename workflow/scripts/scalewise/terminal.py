"""The end of a command on the terminal: the answers as cards of plain text, and the runs that failed."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewise.execution.next_try import refused_runs
from scalewise.plan.plan_file import Plan, questions_of
from scalewise.records import RECORD, Failure, RecordError, read_failure, read_regular

WIDTH = 80
MAX_CAUTIONS = 3
MAX_RUNS = 6
"""Runs that are named of those that failed alike."""

REPORT, DECISION, ANSWER = "report.html", "decision.json", "answer.json"
_RANK = re.compile(r"^rank \d+ on \S+: ")
CLI = Path(__file__).resolve().parents[1] / "cli.py"

Answer = Mapping[str, Any]
"""Contents of answer.json, an element of decision.json."""


# ---- the end of a command


def end_message(plan: Plan, results: Path, *, failed: bool = False) -> str:
    """Return what a study has found: its answers, or what failed and how to go on.

    Args:
        plan: The study.
        results: Folder of all experiments.
        failed: Whether a step has failed, so that answers may be missing or old.
    """
    if not failed:
        return "\n".join(decision_lines(results))
    failures = {(experiment, run): failure for experiment, run, failure in failed_runs(plan, results)}
    lines = []
    for question, names in questions_of(plan).items():
        answer = results / question / ANSWER
        if answer.exists() and not any(name in names.values() for name, _ in failures):
            lines += _cards(answer, card_lines)
        else:
            lines.append(f"No answer for {question} yet.")
    repeats = failures and failures.keys() == refused_runs(plan, results).keys()
    again = "would end the same way" if repeats else "makes what is missing"
    here = CLI.relative_to(Path.cwd()) if CLI.is_relative_to(Path.cwd()) else CLI
    return "\n".join(
        [
            *lines,
            *failure_lines(failures),
            f"Not all steps were done. The same command {again}; for a report on the finished "
            f"runs: python {shlex.quote(str(here))} report",
        ]
    )


def decision_lines(results: Path) -> list[str]:
    """Return each experiment's card, and the path of the report; nothing if there is none."""
    path, report = results / DECISION, results / REPORT
    if not path.exists():
        return []
    return [*_cards(path, answer_lines), *([f"Report: {report}"] if report.exists() else [])]


def _cards(path: Path, lines: Callable[[Any], Iterable[str]]) -> list[str]:
    """Return the lines on answers; if their file is damaged, the one that says so, with the fix."""
    try:
        return list(lines(json.loads(read_regular(path))))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        report = path.with_name(REPORT)
        return [f"{path} is damaged. Delete it and {report}, and give the same snakemake command again."]


def failed_runs(plan: Plan, results: Path) -> Iterator[tuple[str, str, Failure]]:
    """Yield the runs without a result whose last start failed: experiment, run and that start."""
    for experiment, runs in plan["runs"].items():
        for run in runs:
            folder = results / experiment / "runs" / run
            # a damaged file is named by the job that reads it
            with suppress(RecordError):
                if not (folder / RECORD).exists() and (failure := read_failure(folder)):
                    yield experiment, run, failure


def failure_lines(failures: Mapping[tuple[str, str], Failure]) -> Iterator[str]:
    """Yield the reason of failed runs, those that failed alike together; Snakemake shows their logs."""
    alike: dict[str, list[str]] = {}
    for run, failure in failures.items():
        cause = _RANK.sub("", failure.reason)
        alike.setdefault(cause, []).append("/".join(run))
        if len(alike[cause]) == 1:
            yield f"{'/'.join(run)} {failure.outcome}: {failure.reason}"
    for first, *others in alike.values():
        if others:
            more = f" and {len(others) - MAX_RUNS} more" if len(others) > MAX_RUNS else ""
            yield f"{', '.join(others[:MAX_RUNS])}{more} failed like {first}."


# ---- cards


def answer_lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the card of each experiment; if there are several, first a table with a row for each."""
    if len(answers) > 1:
        yield from _overview(answers)
        yield ""
    for place, answer in enumerate(answers):
        if place:
            yield ""
        yield from card_lines(answer)


def card_lines(answer: Answer) -> Iterator[str]:
    """Yield the card of one experiment."""
    sure = "" if answer["certainty"] == "open" else f" [{answer['certainty']}]"
    yield from _wrapped("", f"{answer['experiment']}: {answer['verdict']}{sure}", indent=0)
    yield from _wrapped("", answer["reason"])
    label, text = (
        max((len(each[key]) for each in answer["figures"]), default=0) for key in ("label", "text")
    )
    for figure in answer["figures"]:
        line = f"  {figure['label']:{label}}  {figure['text']:{text}}"
        if len(line) + 2 + len(figure["note"]) <= WIDTH:
            yield f"{line}  {figure['note']}".rstrip()
        else:
            yield line.rstrip()
            yield from _wrapped("", figure["note"], indent=label + 4)
    yield from _wrapped("Basis", answer["basis"])
    yield from _wrapped("Rule", answer["rule"])
    yield from _wrapped("Next count", answer["next_larger"])
    yield from _wrapped("Slowed by", answer["limit"])
    for line in answer["options"]:
        yield from _wrapped("Option", line)
    for row in answer["candidates"]:
        if "best for" in row["verdict"]:
            amounts = ", ".join(filter(None, (row["time"], row["cost"], row["energy"])))
            yield from _wrapped("Candidate", f"{row['label']}: {amounts} [{row['verdict']}]")
    for line in answer["others"]:
        yield from _wrapped("Also", line)
    yield from _wrapped("Spent", answer["spent"])
    yield from _wrapped("To do", answer["to_do"])
    if answer["command"]:
        yield f"              {answer['command']}"
    cautions = [sentence for sentence, _ in answer["cautions"] if sentence != answer["reason"]]
    for line in cautions[:MAX_CAUTIONS]:
        yield from _wrapped("Caution", line)
    if len(cautions) > MAX_CAUTIONS:
        yield f"  {len(cautions) - MAX_CAUTIONS} more in the report."


def _overview(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a table with a row for each experiment; long names have a line above their answer."""
    rows = [("Experiment", "How sure", "Answer")]
    rows += [(each["experiment"], each["certainty"], each["verdict"]) for each in answers]
    most = max(len(row[2]) for row in rows)
    name = max(min(len(row[0]), max(WIDTH - most - 12, 10)) for row in rows)
    for row in rows:
        if len(row[0]) > name:
            yield row[0]
        yield f"{row[0] if len(row[0]) <= name else '':{name}}  {row[1]:8}  {row[2]}"


def _wrapped(label: str, text: str, indent: int = 2) -> list[str]:
    """Return the lines of a text, indented as far as its first word.

    Args:
        label: A column before the text; may be empty.
        text: One line; empty for none.
        indent: Columns before both.
    """
    if not text:
        return []
    first = " " * indent + (f"{label:10}  " if label else "")
    lines = textwrap.wrap(
        text.replace(" %", "\N{NO-BREAK SPACE}%"),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
