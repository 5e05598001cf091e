"""What the terminal says at the end of a study: the decision, why, and what weakens it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scalewise.plan.study import Study
from scalewise.plan.terminal.final_message import (
    EarlierFiles,
    decisions,
    end_with_errors,
    failures,
)


def answered(results: Path, *answers: dict[str, Any]) -> str:
    (results / "decision.json").write_text(json.dumps(answers))
    (results / "report.html").write_text("")
    return decisions(results)


STRONG = {
    "experiment": "strong",
    "sentence": "Use 4 devices.",
    "criterion": "Criterion: the knee.",
    "limits": ["Loader-bound at 8 devices: raise cpus_per_device.", "Stragglers."],
    "cautions": ["First.", "Second.", "Third."],
}


def test_below_a_decision_stand_its_criterion_its_first_limit_and_two_cautions(tmp_path: Path) -> None:
    assert answered(tmp_path, STRONG).splitlines() == [
        "strong: Use 4 devices.",
        "  Criterion: the knee.",
        "  Loader-bound at 8 devices: raise cpus_per_device.",
        "  Caution: First.",
        "  Caution: Second.",
        "  ... and 1 more caution in the report",
        f"Report: {tmp_path / 'report.html'}",
    ]


def test_the_cpus_per_device_are_told_where_they_are_swept(tmp_path: Path) -> None:
    cpus = {"per_device": 4, "sentences": ["Use 4 CPUs per device.", "Fewer are slower."]}
    told = answered(tmp_path, STRONG | {"cpus": cpus}).splitlines()
    assert told[1] == "  Use 4 CPUs per device. Fewer are slower."
    assert answered(tmp_path, STRONG | {"cpus": None}) == answered(tmp_path, STRONG)


def test_the_report_is_named_last_whatever_was_said_before(tmp_path: Path) -> None:
    told = answered(tmp_path, STRONG, {"experiment": "weak", "sentence": "Use 2 devices."})
    assert told.splitlines()[-2:] == ["weak: Use 2 devices.", f"Report: {tmp_path / 'report.html'}"]


@pytest.mark.parametrize("cautions", [[], ["First."], ["First.", "Second."]])
def test_cautions_that_are_all_shown_are_not_called_more(tmp_path: Path, cautions: list[str]) -> None:
    told = answered(tmp_path, STRONG | {"cautions": cautions})
    assert told.count("Caution:") == len(cautions)
    assert "more caution" not in told


def fail(results: Path, run: str, seconds: int) -> None:
    """A run that failed on a node whose clock shows so many seconds after 1970."""
    path = results / "strong" / "runs" / run / "failure.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    failure = {
        "definition": {"experiment": "strong", "run": run},
        "outcome": "failed",
        "reason": "Out of disk.",
        "traceback": "",
    }
    path.with_suffix(".new").write_text(json.dumps(failure))
    path.with_suffix(".new").replace(path)
    os.utime(path, (seconds, seconds))


@pytest.mark.parametrize("seconds", [1000, 10**10], ids=["clock behind", "clock ahead"])
def test_just_the_failures_of_this_session_are_told_whatever_a_file_servers_clock_says(
    seconds: int, tmp_path: Path
) -> None:
    earlier = EarlierFiles()
    fail(tmp_path, "d1.r1", seconds)
    fail(tmp_path, "d2.r1", seconds)
    earlier.look(tmp_path)

    assert failures(tmp_path, earlier) == ""
    fail(tmp_path, "d2.r1", seconds)
    fail(tmp_path, "d4.r1", seconds)
    assert failures(tmp_path, earlier).splitlines() == [
        "strong/d2.r1 failed: Out of disk.",
        "strong/d4.r1 failed: Out of disk.",
    ]


def test_a_failure_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    fail(tmp_path, "d1.r1", 1000)
    (path,) = tmp_path.rglob("failure.json")
    path.write_text("[]")

    assert failures(tmp_path, EarlierFiles()) == f"{path} cannot be read"


TWO = """\
defaults: {dataset: digits, model: linear, epochs: 1, global_batch_size: 64, devices: [1]}
experiments:
  strong: {repeats: 2}
  weak: {repeats: 2}
"""


def finish(results: Path, experiment: str, *runs: str, decided: bool = True) -> None:
    """Runs that have completed, and the decision on them, made later."""
    folder = results / experiment
    for run in runs:
        (folder / "runs" / run).mkdir(parents=True)
        (folder / "runs" / run / "summary.json").write_text("{}")
    if decided:
        decide(folder)


def decide(folder: Path, seconds: int = 10**10) -> None:
    (folder / "decision.json").write_text(json.dumps({"experiment": folder.name, "sentence": "Use it."}))
    os.utime(folder / "decision.json", (seconds, seconds))


def test_a_session_with_errors_ends_with_the_answers_that_are_known_the_reasons_and_what_is_missing(
    load: Callable[[str], Study], tmp_path: Path
) -> None:
    study, results = load(TWO), tmp_path / "results"
    finish(results, "strong", "d1.r1", "d1.r2")
    (results / "strong" / "report.html").write_text("")
    finish(results, "weak", "d1.r1")

    told = end_with_errors(study, results, EarlierFiles()).splitlines()

    assert told[:3] == ["strong: Use it.", f"  Report: {results / 'strong/report.html'}", told[2]]
    assert told[2].startswith("Not all steps were done.")
    assert told[-1] == "No answer for weak: 1 run has no result."


@pytest.mark.parametrize("stale", [False, True])
def test_finished_runs_without_tables_of_their_own_are_no_answer(
    load: Callable[[str], Study], tmp_path: Path, stale: bool
) -> None:
    study, results = load(TWO), tmp_path
    finish(results, "strong", "d1.r1", "d1.r2")
    finish(results, "weak", "d1.r1", "d1.r2", decided=False)
    if stale:
        decide(results / "weak", 1000)

    told = end_with_errors(study, results, EarlierFiles())

    assert told.startswith("strong: Use it.")
    assert told.endswith("No answer for weak: its tables are not made. Run the same command again.")


def test_answers_of_earlier_sessions_are_repeated_only_with_news(
    load: Callable[[str], Study], tmp_path: Path
) -> None:
    study, earlier = load(TWO), EarlierFiles()
    finish(tmp_path, "weak", "d1.r1", "d1.r2")
    fail(tmp_path, "d1.r1", 1000)
    earlier.look(tmp_path)
    assert end_with_errors(study, tmp_path, earlier) == ""

    fail(tmp_path, "d1.r2", 1000)

    told = end_with_errors(study, tmp_path, earlier)
    assert told.startswith("weak: Use it.")
    assert "strong/d1.r2 failed: Out of disk." in told
    assert told.endswith("No answer for strong: 2 runs have no result.")
