"""The end of a study in the terminal: the answer, why, and what weakens it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.golden import compare
from tests.paths import ROOT
from tests.planted_records import leave_failure
from tests.small_runs import definition
from tests.unit.plan.conftest import Load

from scalewise.plan.terminal.failure_lines import failure_lines, reason_lines
from scalewise.plan.terminal.final_message import (
    EarlierFiles,
    decisions,
    end_with_errors,
    failures,
    latest_answers,
)
from scalewise.records import read_failure


def answered(results: Path, *answers: dict[str, Any]) -> str:
    results.mkdir(exist_ok=True)
    (results / "decision.json").write_text(json.dumps(answers))
    (results / "report.html").write_text("")
    return decisions(results)


def card(experiment: str, verdict: str, *cautions: str, **fields: Any) -> dict[str, Any]:
    """Return the contents of an answer.json."""
    texts = ("reason", "basis", "rule", "next_larger", "limit", "spent", "to_do", "command")
    lists = ("figures", "options", "others", "candidates")
    usual: dict[str, Any] = dict.fromkeys(texts, "") | {name: [] for name in lists} | {"certainty": "clear"}
    found = {"experiment": experiment, "verdict": verdict, "cautions": [[each, ""] for each in cautions]}
    return usual | found | fields


FIGURES = [
    {"label": "Speed", "text": "3.40x (3.32 to 3.48)", "note": "as fast as 1 GPU"},
    {"label": "Cost", "text": "9.75 GPU-hours", "note": f"{'a long note, ' * 5}in full"},
]
LONG = " ".join(["Words"] * 40) + "."
NAME = "an-experiment-with-a-long-name"
STRONG = card(
    "strong", "Use 4 GPUs.", "First.", "Second.", LONG, "Fourth.", certainty="likely", reason="A reason.",
    figures=FIGURES, basis=LONG, rule=LONG, next_larger="8 GPUs would be 1.41x as fast.", limit="Jitter.",
    options=["precision: fp32"], to_do="Set the repeats to 5.", command="repeats: 5",
)  # fmt: skip
H200 = {"label": "2 GPUs on h200", "time": "2.24 min", "cost": "0.335 units", "energy": "", "wait": "1.00 h"}
CANDIDATES = [H200 | {"verdict": "best for time"}, H200 | {"label": "1 GPU on h200", "verdict": ""}]
ANSWERS: dict[str, list[dict[str, Any]]] = {
    "one answer": [STRONG | {"spent": "2 points were measured."}],
    "candidates": [card("strong", "Use 2 GPUs on h200.", candidates=CANDIDATES)],
    "several answers": [STRONG | {"cautions": []}, card("weak", "No answer yet.", certainty="open")],
    "a long name": [card("strong", "Use 4 GPUs."), card(NAME, "Use 12 CPU processes with a-long-series.")],
}
WORDS = Path(__file__).with_name("final_messages.txt")


def test_answers_and_failures_are_shown_as_they_are_kept(
    load: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {name: answered(tmp_path / "answered", *answers) for name, answers in ANSWERS.items()}

    for text in shown.values():
        *lines, last = text.splitlines()
        assert max(map(len, lines)) <= 80
        assert last == f"Report: {tmp_path / 'answered' / 'report.html'}"
    shown |= dict(with_failures(load, tmp_path))
    texts = {name: text.replace(str(tmp_path), "RESULTS") for name, text in shown.items()}
    # shown relative to the folder of the command, if it is below that
    blocks = [f"# {name}\n\n{text.replace(f'{ROOT}/', '')}\n" for name, text in texts.items()]
    compare(WORDS, "\n".join(blocks), __file__, capsys)


def reasons(results: Path, earlier: EarlierFiles) -> str:
    """Return the failures of a session, as its end lists them."""
    failed, damaged = failures(results, earlier)
    return "\n".join([*reason_lines(("/".join(run), each) for run, each in failed.items()), *damaged])


def with_failures(load: Load, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the ends of sessions in which runs failed, or of which some answers are missing."""
    alike = folder / "alike"
    fail(alike, "d1.r1", 1000, "rank 0 on a: Out of disk.")
    fail(alike, "d2.r1", 1000, "rank 1 on b: Out of disk.")
    yield "runs that failed alike on other ranks", reasons(alike, EarlierFiles())

    shown: dict[str, str] = {}
    lines = []
    for run in ("d1.r1", "d1.r2"):
        failed = fail(folder / "long", run, 1000, tail=[f"step {number}" for number in range(40)])
        failure = read_failure(failed)
        assert failure is not None
        lines += failure_lines(f"strong/{run}", failure, failed / "train.log", shown)
    yield "the last 30 lines of a run, and one that failed like it", "\n".join(lines)

    study, results = load(TWO), folder / "one-answer"
    finish(results, "strong", "d1.r1", "d1.r2")
    finish(results, "weak", "d1.r1")
    yield "an experiment without all of its runs", end_with_errors(study, results, EarlierFiles())

    results = folder / "no-tables"
    finish(results, "strong", "d1.r1", "d1.r2")
    finish(results, "weak", "d1.r1", "d1.r2", decided=False)
    yield "an experiment without tables", end_with_errors(study, results, EarlierFiles())
    decide(results / "weak", 1000)
    yield "an experiment with tables of earlier runs", end_with_errors(study, results, EarlierFiles())

    earlier, results = EarlierFiles(), folder / "earlier"
    finish(results, "weak", "d1.r1", "d1.r2")
    fail(results, "d1.r1", 1000)
    earlier.look(results)
    assert end_with_errors(study, results, earlier) == "", "answers of earlier sessions without news"
    fail(results, "d1.r2", 1000)
    yield "an answer of an earlier session with news", end_with_errors(study, results, earlier)

    results, earlier = folder / "limited", EarlierFiles()
    finish(results, "weak", "d1.r1", "d1.r2")
    ended = read_failure(fail(results, "d1.r1", 1000, "stopped after 1 minute. Raise runtime_minutes."))
    assert ended is not None
    failure = ended.model_copy(update={"outcome": "timed-out", "permanent": True})
    earlier.look(results)
    refused = {("strong", "d1.r1"): failure}
    yield "a run that was not started, and another", end_with_errors(study, results, earlier, refused)
    refused["strong", "d1.r2"] = failure
    yield "no run that the same command helps", end_with_errors(study, results, earlier, refused)


def test_only_a_report_that_this_command_made_is_announced(tmp_path: Path) -> None:
    assert decisions(tmp_path) == ""
    earlier = EarlierFiles()
    answered(tmp_path, STRONG)
    earlier.look(tmp_path)

    assert decisions(tmp_path, earlier) == ""
    (tmp_path / "report.html").write_text("again")
    assert decisions(tmp_path, earlier) != ""


def test_the_latest_answers_are_shown_until_a_run_is_newer(tmp_path: Path) -> None:
    answered(tmp_path, STRONG)
    assert latest_answers(tmp_path)[0].startswith("strong: Use 4 GPUs.")
    summary = tmp_path / "strong" / "runs" / "d1.r1" / "record.json"
    summary.parent.mkdir(parents=True)
    summary.touch()
    os.utime(summary, (10**10, 10**10))
    assert latest_answers(tmp_path) == []


DAMAGED = {
    "empty": "",
    "truncated": json.dumps([STRONG])[:-40],
    "no list": "3",
    "a mapping": '{"experiment": "strong"}',
    "other keys": '[{"experiment": "strong", "verdict": "Use 4 GPUs."}]',
    "no text": '[{"experiment": 4, "card": []}]',
    "bytes": "\udcff",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in DAMAGED.items()])
def test_a_damaged_answer_is_named_with_what_makes_it_again(text: str, tmp_path: Path, load: Load) -> None:
    damaged = text.encode("utf-8", "surrogateescape")
    answered(tmp_path, STRONG)
    (tmp_path / "decision.json").write_bytes(damaged)
    for shown in (latest_answers(tmp_path), decisions(tmp_path).splitlines()):
        line, report = shown
        assert line.startswith(f"{tmp_path}/decision.json is damaged")
        assert f"{tmp_path}/report.html" in line
        assert report == f"Report: {tmp_path}/report.html"

    study, results = load(TWO), tmp_path / "ended"
    for name in ("strong", "weak"):
        finish(results, name, "d1.r1", "d1.r2")
    fail(results, "d1.r1", 1000)
    path = results / "strong" / "answer.json"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(damaged)
    os.utime(path, ns=times)
    message = end_with_errors(study, results, EarlierFiles())
    assert f"{path} is damaged" in message
    assert "weak: " in message


def fail(
    results: Path, run: str, seconds: int, reason: str = "Out of disk.", tail: Sequence[str] = ()
) -> Path:
    """A run that failed on a node whose clock shows so many seconds after 1970."""
    path = results / "strong" / "runs" / run / "failure.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    run_of = definition().model_copy(update={"experiment": "strong", "run": run})
    leave_failure(path.parent, run_of, "failed", reason, log_tail=list(tail))
    os.utime(path, (seconds, seconds))
    return path.parent


@pytest.mark.parametrize("seconds", [1000, 10**10], ids=["clock behind", "clock ahead"])
def test_only_the_failures_of_this_session_are_shown_with_any_clock_of_the_file_server(
    seconds: int, tmp_path: Path
) -> None:
    earlier = EarlierFiles()
    fail(tmp_path, "d1.r1", seconds)
    fail(tmp_path, "d2.r1", seconds)
    earlier.look(tmp_path)

    assert reasons(tmp_path, earlier) == ""
    fail(tmp_path, "d2.r1", seconds)
    fail(tmp_path, "d4.r1", seconds, "No such user.")
    assert reasons(tmp_path, earlier).splitlines() == [
        "strong/d2.r1 failed: Out of disk.",
        "strong/d4.r1 failed: No such user.",
    ]


def test_a_traceback_that_has_left_the_last_lines_is_shown_instead(tmp_path: Path) -> None:
    failure = read_failure(fail(tmp_path, "d1.r1", 1000, tail=["aborted"]))
    assert failure is not None
    raised = failure.model_copy(update={"traceback": "Traceback\nOSError: full\n"})
    assert raised.output == ["Traceback", "OSError: full"]
    last = raised.model_copy(update={"log_tail": ["step 1", "OSError: full", "aborted"]})
    assert last.output == last.log_tail


def test_a_failure_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = fail(tmp_path, "d1.r1", 1000) / "failure.json"
    path.write_text("[]")

    assert str(path) in reasons(tmp_path, EarlierFiles())


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
        (folder / "runs" / run / "record.json").write_text("{}")
    if decided:
        decide(folder)


def decide(folder: Path, seconds: int = 10**10) -> None:
    (folder / "answer.json").write_text(json.dumps(card(folder.name, "Use it.")))
    os.utime(folder / "answer.json", (seconds, seconds))
