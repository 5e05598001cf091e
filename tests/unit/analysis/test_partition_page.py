"""The report on an experiment across its partitions, and its card in the terminal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from tests.truth.partitions import A100, CASES, Planted, Truth, answer_on
from tests.unit.analysis.report_page import Page, cells

from scalewise.analysis.partitions.answer import PartitionAnswer
from scalewise.analysis.partitions.compare import write_comparison
from scalewise.analysis.report.partition_page import draw_partitions, write_partition_report
from scalewise.plan.plan_file import COMPARISON
from scalewise.plan.terminal.card_lines import WIDTH, partition_lines
from scalewise.plan.terminal.final_message import decisions


def write(found: PartitionAnswer, folder: Path, title: str = "Digits") -> str:
    """Write the comparison of a study with its figures and its report; return the report."""
    write_comparison("digits", found, folder)
    draw_partitions(folder)
    own = {name: study.results.decision for name, study in found.points.studies.items()}
    write_partition_report(folder, own, title=title)
    return (folder / "report.html").read_text(encoding="utf-8")


def planted(name: str) -> PartitionAnswer:
    """Return the answer on a planted case with little noise."""
    return answer_on(CASES[name], np.random.default_rng(3), 0.005, 3)


def test_the_page_begins_with_the_partition_to_use_and_why(tmp_path: Path) -> None:
    page = Page(write(planted("fast and cheap"), tmp_path))
    texts = [text for _, text in page.after_heading()]

    assert texts[0].startswith("Use 1 GPU on h200: 1.3")
    assert texts[1] == "How sure: clear"
    assert texts.index("the shortest time") < texts.index("All points")
    links = [values["href"] for tag, values in page.elements if tag == "a" and "href" in values]
    assert links[1:] == ["../study%40a100/report.html", "../study%40h200/report.html"]


def test_the_table_has_every_point_and_marks_the_best_the_worse_and_the_failed(tmp_path: Path) -> None:
    html = write(planted("one out of memory"), tmp_path)
    rows = cells(html, "All points")

    assert [row.strip("|").split("|")[:2] for row in rows if "no result" not in row][1:] == [
        ["a100", "1"], ["a100", "2"], ["a100", "4"], ["h200", "1"], ["h200", "2"],
    ]  # fmt: skip
    assert any("1 GPU on a100: no result (3 out-of-memory)" in row for row in rows)
    assert html.count('<tr class="failed">') == 2
    assert '<tr class="chosen">' in html


def test_dominated_points_are_grey_in_the_figure(tmp_path: Path) -> None:
    write(planted("fast and cheap"), tmp_path)
    root = fromstring((tmp_path / "figures" / "time_cost.svg").read_text(encoding="utf-8"))
    texts = ["".join(each.itertext()) for each in root.iter() if each.tag.endswith("text")]
    strokes = [each.get("stroke") for each in root.iter()]

    assert "dominated" in texts
    # three points and the mark of the legend
    assert strokes.count("#999999") >= 3
    traces = json.loads((tmp_path / "figures" / "traces.json").read_text(encoding="utf-8"))
    assert traces["time_devices"]["series"] == ["a100", "h200"]


def test_equal_data_make_equal_files(tmp_path: Path) -> None:
    found = planted("long queues")
    first, second = write(found, tmp_path / "1"), write(found, tmp_path / "2")

    assert first == second
    for name in ("time_cost.svg", "time_cost.pdf", "time_devices.svg"):
        assert (tmp_path / "1/figures" / name).read_bytes() == (tmp_path / "2/figures" / name).read_bytes()


@pytest.mark.parametrize("name", ["long queues", "without Slurm"])
def test_waits_are_on_the_page_only_if_jobs_wait(tmp_path: Path, name: str) -> None:
    truth = CASES["long queues"]
    if name == "without Slurm":
        none = {key: replace(each, wait_minutes=None) for key, each in truth.partitions.items()}
        truth = replace(truth, partitions=none)
    html = write(answer_on(truth, np.random.default_rng(3), 0.005, 3), tmp_path)
    shown = html.partition('id="page.what-if-data"')[0]

    waits = name == "long queues"
    assert ('name="wait.a100"' in html) is waits
    assert ("<dt>Waits</dt>" in html) is waits
    assert ("wait and run" in shown.lower()) is waits
    assert ("earliest end" in shown) is waits


def test_a_title_is_text_and_never_markup(tmp_path: Path) -> None:
    html = write(planted("a tie"), tmp_path, title="<script>alert(1)</script>")

    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html


def test_an_experiment_without_any_result_has_a_page_that_says_so(tmp_path: Path) -> None:
    nothing = Truth({name: Planted(dict.fromkeys(A100)) for name in ("a100", "h200")})
    html = write(answer_on(nothing, np.random.default_rng(1), 0.01, 3), tmp_path)

    assert "No partition can be recommended." in html
    assert "no result (3 out-of-memory)" in html
    assert "no point has a known time" in html


@pytest.mark.parametrize("name", list(CASES))
def test_the_card_fits_the_terminal_and_begins_with_the_answer(tmp_path: Path, name: str) -> None:
    found = planted(name)
    write_comparison("digits", found, tmp_path)
    answer: dict[str, Any] = json.loads((tmp_path / COMPARISON).read_text(encoding="utf-8"))
    lines = list(partition_lines(answer))

    assert max(map(len, lines)) <= WIDTH
    assert re.sub(r"\s+", " ", " ".join(lines)).startswith(f"digits: {answer['card']['verdict']}")


def test_the_end_of_a_study_shows_the_answer_across_partitions_first(tmp_path: Path) -> None:
    found = planted("fast and cheap")
    write_comparison("digits", found, tmp_path / "digits")
    own = [study.results.decision for study in found.points.studies.values()]
    named = [
        {**card, "experiment": f"digits@{name}"} for card, name in zip(own, ("a100", "h200"), strict=True)
    ]
    (tmp_path / "decision.json").write_text(json.dumps(named), encoding="utf-8")
    (tmp_path / "report.html").touch()

    text = decisions(tmp_path)
    assert text.startswith("digits: Use 1 GPU on h200: ")
    assert text.index("digits: ") < text.index("digits@a100: ")
