"""The end of a study for the terminal: its answers, and the reasons of failed runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scalewise.plan.planned_study import Study
from scalewise.plan.terminal.card_lines import answer_lines, card_lines
from scalewise.plan.terminal.failure_lines import reason_lines
from scalewise.records import FAILURE, RECORD, Failure, RecordError, read_failure, read_regular

REPORT = "report.html"
DECISION, ANSWER = "decision.json", "answer.json"
FAILURES = f"*/runs/*/{FAILURE}"

SCRIPTS = Path(__file__).resolve().parents[3]
PARTIAL_REPORT = "For a report on the finished runs, run `python {cli} report`."


class EarlierFiles:
    """Result files as they were before this session, to recognize those that it has written.

    A file is compared with its earlier state and not with the time: the clock of a file server or of another
    node may differ from this machine's.
    """

    def __init__(self) -> None:
        self._states: dict[Path, tuple[int, ...]] = {}

    def look(self, results: Path) -> None:
        """Record the state of the files for answers and failures."""
        patterns = (REPORT, f"*/{ANSWER}", FAILURES)
        paths = [path for pattern in patterns for path in results.glob(pattern)]
        self._states = {path: state for path in paths if (state := _state(path)) is not None}

    def has_new(self, path: Path) -> bool:
        """Return whether the file is new or differs from its state when the session began."""
        state = _state(path)
        return state is not None and state != self._states.get(path)


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def end_with_errors(
    study: Study,
    results: Path,
    earlier: EarlierFiles,
    refused: Mapping[tuple[str, str], Failure] = MappingProxyType({}),
) -> str:
    """Answers of the finished experiments, failures, and the experiments that have no answer yet.

    Args:
        study: Checked.
        results: Folder of all experiments.
        earlier: Files from before the session; empty if it has made no answer and no run has failed.
        refused: Failures of runs that the session did not start, by experiment and run.
    """
    failed, damaged = failures(results, earlier)
    failed = {**refused, **failed}
    answers: list[str] = []
    missing: list[str] = []
    answered: set[str] = set()
    alike = others = 0
    has_news = bool(failed or damaged)
    for name, planned in study.experiments.items():
        folder, answer = results / name, results / planned.key / ANSWER
        if runs := planned.missing_runs(folder):
            have = "1 run has" if len(runs) == 1 else f"{len(runs)} runs have"
            missing.append(f"No answer for {name}: {have} no result.")
            known = sum((name, run) in failed and failed[name, run].permanent for run in runs)
            alike, others = alike + known, others + len(runs) - known
        elif not _is_up_to_date(folder, answer):
            others += 1
            missing.append(f"No answer for {name}: its tables are not made. Run the same command again.")
        else:
            answers += [] if planned.key in answered else _lines(answer, card_lines)
            answered.add(planned.key)
            has_news = has_news or earlier.has_new(answer)
    if not has_news:
        return ""
    named = sorted(("/".join(run), failure) for run, failure in failed.items())
    cli, here = SCRIPTS / "cli.py", Path.cwd()
    shown = cli.relative_to(here) if cli.is_relative_to(here) else cli
    report = PARTIAL_REPORT.format(cli=shlex.quote(str(shown)))
    lines = [*answers, _what_to_do(alike, others), report, *reason_lines(named), *damaged, *missing]
    return "\n".join(lines)


def _what_to_do(alike: int, others: int) -> str:
    """Return whether the same command helps.

    Args:
        alike: Number of runs that would end as they did.
        others: Number of other things that are missing.
    """
    first = "Not all steps were done."
    if not alike:
        return f"{first} Run the same command to try again."
    if not others:
        return f"{first} The same command would end the same way: first follow the advice below."
    these = "1 run would end the same way: first follow its advice below"
    if alike > 1:
        these = f"{alike} runs would end the same way: first follow their advice below"
    return f"{first} Run the same command to try again. {these}."


def latest_answers(results: Path) -> list[str]:
    """Return the cards of a study, and the path of its report; nothing if a run is newer than its answer.

    Args:
        results: Folder of all experiments.
    """
    if not _is_up_to_date(results, results / DECISION, "*/"):
        return []
    return _cards(results)


def _cards(results: Path) -> list[str]:
    report = results / REPORT
    answered = _lines(results / DECISION, lambda answers: list(answer_lines(answers)))
    return [*answered, *([f"Report: {report}"] if report.exists() else [])]


def _lines(path: Path, lines: Callable[[Any], Iterable[str]]) -> list[str]:
    """Return the lines on an answer; if its file is damaged, the one that says so, with the fix.

    Args:
        path: The file of the answer.
        lines: Makes the lines of its contents.
    """
    try:
        return list(lines(json.loads(read_regular(path))))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        # Snakemake makes a missing file only for a report that is missing, too
        return [
            f"{path} is damaged, so its answer is not shown. Delete it and {path.with_name(REPORT)}, and "
            "give the same snakemake command again: it makes both."
        ]


def _is_up_to_date(folder: Path, answer: Path, experiments: str = "") -> bool:
    """Return whether an answer is newer than every run, as Snakemake compares them.

    Args:
        folder: Holds the runs.
        answer: File of the answer.
        experiments: Pattern of the folders below it that hold runs: none for a folder of one experiment.
    """
    patterns = (f"{experiments}runs/*/{RECORD}", f"{experiments}repeats/*.json")
    made_from = [path for pattern in patterns for path in folder.glob(pattern)]
    return answer.exists() and all(path.stat().st_mtime_ns <= answer.stat().st_mtime_ns for path in made_from)


def failures(results: Path, earlier: EarlierFiles) -> tuple[dict[tuple[str, str], Failure], list[str]]:
    """Return the failures of this session by experiment and run, and the errors of damaged files.

    Args:
        results: Folder of all experiments.
        earlier: Files from before the session, which are left out.
    """
    failed: dict[tuple[str, str], Failure] = {}
    damaged: list[str] = []
    for path in sorted(results.glob(FAILURES)):
        if not earlier.has_new(path):
            continue
        try:
            if (failure := read_failure(path.parent)) is not None:
                failed[path.parts[-4], path.parent.name] = failure
        except RecordError as error:
            damaged.append(str(error))
    return failed, damaged


def decisions(results: Path, earlier: EarlierFiles | None = None) -> str:
    """Return each experiment's card, and the path of the report; nothing if the session has not made it.

    Args:
        results: Folder of all experiments.
        earlier: Files from before the session; None for a report of any session.
    """
    if not (earlier or EarlierFiles()).has_new(results / REPORT):
        return ""
    return "\n".join(_cards(results))
