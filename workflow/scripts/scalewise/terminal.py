"""The end of a command on the terminal: the answers as cards of plain text, and the runs that failed."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewise.execution.run_folder import refused_runs
from scalewise.plan.plan_file import Plan
from scalewise.records import Failure, RecordError, read_failure

WIDTH = 80
MAX_CAUTIONS = 3
MAX_RUNS = 6
"""Runs that are named of those that failed alike."""

REPORT, DECISION, ANSWER = "report.html", "decision.json", "answer.json"
_RANK = re.compile(r"^rank \d+ on \S+: ")
CLI = Path(__file__).resolve().parents[1] / "cli.py"

Answer = Mapping[str, Any]
"""Contents of answer.json, an element of decision.json."""

LABELS = {
    "basis": "Basis",
    "rule": "Rule",
    "next_larger": "Next count",
    "limit": "Slowed by",
    "options": "Option",
    "others": "Also",
    "spent": "Spent",
    "to_do": "To do",
}
"""Sentences of a card below its figures; some are empty, and two are lists."""


# ---- the end of a command


def end_message(plan: Plan, results: Path, *, failed: bool = False) -> str:
    """Return what a study has found: its answers, or what failed and how to go on.

    Args:
        plan: The study.
        results: Folder of all experiments.
        failed: Whether a step has failed, so that answers may be missing or old.
    """
    failures = dict(failed_runs(plan, results)) if failed else {}
    lines: list[str] = []
    for name in plan["experiments"]:
        answer = results / name / ANSWER
        if answer.exists() and name not in {experiment for experiment, _ in failures}:
            try:
                card = list(card_lines(json.loads(answer.read_bytes())))
            except (OSError, ValueError, LookupError, TypeError):
                card = [f"{answer} is damaged. Delete it, and give the same snakemake command again."]
            lines += [*([""] if lines else []), *card]
        elif failed:
            lines.append(f"No answer for {name} yet.")
    if not failed:
        report = results / REPORT
        return "\n".join([*lines, f"Report: {report}"] if report.exists() else lines)
    repeats = failures and failures.keys() == refused_runs(plan, results).keys()
    again = "would end the same way" if repeats else "makes what is missing"
    here = CLI.relative_to(Path.cwd()) if CLI.is_relative_to(Path.cwd()) else CLI
    return "\n".join(
        [
            *lines,
            *failure_lines(("/".join(run), each.outcome, each.reason) for run, each in failures.items()),
            f"Not all steps were done. The same command {again}; for a report on the finished "
            f"runs: python {shlex.quote(str(here))} report",
        ]
    )


def failed_runs(plan: Plan, results: Path) -> Iterator[tuple[tuple[str, str], Failure]]:
    """Yield the runs without a result, experiment and name, and how their last try ended."""
    for experiment, runs in plan["runs"].items():
        for run in runs:
            # a damaged file is named by the job that reads it
            with suppress(RecordError):
                if failure := read_failure(results / experiment / "runs" / run):
                    yield (experiment, run), failure


def failure_lines(failures: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the reason of runs without a result, those that ended alike together.

    Args:
        failures: Name, outcome and reason of each; Snakemake shows their logs.
    """
    alike: dict[str, list[str]] = {}
    reasons = {}
    for name, outcome, reason in failures:
        alike.setdefault(_RANK.sub("", reason), []).append(name)
        reasons[name] = f"{name} {outcome}: {reason}"
    for first, *others in alike.values():
        yield reasons[first]
        if others:
            more = f" and {len(others) - MAX_RUNS} more" if len(others) > MAX_RUNS else ""
            yield f"{', '.join(others[:MAX_RUNS])}{more} ended like {first}."


# ---- cards


def answer_line(name: str, verdict: str, certainty: str) -> str:
    """Return the answer of an experiment and how sure it is, in a line."""
    return f"{name}: {verdict}{'' if certainty == 'open' else f' [{certainty}]'}"


def card_lines(answer: Answer) -> Iterator[str]:
    """Yield the card of one experiment."""
    yield from wrapped(answer_line(answer["experiment"], answer["verdict"], answer["certainty"]), hang=0)
    yield from wrapped(answer["reason"], "  ", hang=0)
    rows = [(each["label"], f"{each['text']}  {each['note']}") for each in answer["figures"]]
    for key, label in LABELS.items():
        sentences = answer[key] if isinstance(answer[key], list) else [answer[key]]
        rows += [(label, sentence) for sentence in sentences]
    cautions = [sentence for sentence, _ in answer["cautions"] if sentence != answer["reason"]]
    width = max([len("Next count"), *(len(each["label"]) for each in answer["figures"])])
    for label, sentence in rows:
        yield from wrapped(sentence, f"  {label:{width}}  ", hang=0)
    if answer["command"]:
        yield f"{'':{width + 4}}{answer['command']}"
    for sentence in cautions[:MAX_CAUTIONS]:
        yield from wrapped(sentence, f"  {'Caution':{width}}  ", hang=0)
    if len(cautions) > MAX_CAUTIONS:
        yield f"  {len(cautions) - MAX_CAUTIONS} more in the report."


def wrapped(text: str, first: str = "", hang: int = 2) -> list[str]:
    """Return the lines of a text that fits the terminal, none of an empty one.

    Args:
        text: One line.
        first: Columns before the text.
        hang: Further columns before the lines after the first.
    """
    lines = textwrap.wrap(
        text.replace(" %", "\N{NO-BREAK SPACE}%"),
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * (len(first) + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
