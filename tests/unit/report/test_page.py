"""The page: the answer first, whatever users call things is text, and tables have what the results have."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
from tests.unit.analysis.report_page import Page, cells
from tests.unit.report.planted_sections import ANSWER, HOSTILE, points, section

from scalewise.analysis.disturbed import DISTURBED
from scalewise.report.figures import draw
from scalewise.report.page import measured_on, write_page
from scalewise.report.section import Section
from scalewise.report.tables import MOST_OPEN, filled_tables

SPEEDUPS = {"all runs": {1: 1.0, 2: 1.9, 4: 3.4}}


def page_of(folder: Path, *sections: Section) -> str:
    for each in sections:
        draw(each)
    write_page(sections, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_all_answers_come_before_any_figure_and_each_section_has_its_parts(tmp_path: Path) -> None:
    table = points(SPEEDUPS)
    apart = pd.DataFrame({"run": ["d1.r2"], "outcome": [DISTURBED], "reason": ["a busy host"]})
    html = page_of(
        tmp_path,
        section(tmp_path / "a", table, name="first", title="First"),
        section(tmp_path / "b", table, name="second", title="Second", runs=apart),
    )
    page = Page(html)
    assert [text for tag, text in page.text if tag == "h1"] == ["How many GPUs?"]
    assert html.index("</nav>") < html.index("<svg")
    assert html[: html.index("</nav>")].count("Use 4 GPUs.") == 2
    text = page.all_text()
    for part in (*ANSWER.required[0], "Caution 3.", "Action 1.", "2 more", ANSWER.sentence, "4 GPUs on a100"):
        assert part in text
    assert "d1.r2" in text
    assert "<code>repeats: 5</code>" in html, "what stands in backticks is code"
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {"first.speedup", "second.points", "second.left-out"} <= set(ids)


def test_whatever_a_user_writes_is_text_and_never_markup(tmp_path: Path) -> None:
    table = points({HOSTILE: SPEEDUPS["all runs"], "other": SPEEDUPS["all runs"]})
    runs = pd.DataFrame(
        {"run": [HOSTILE], "outcome": [DISTURBED], "reason": [HOSTILE], "device_name": [HOSTILE]}
    )
    html = page_of(tmp_path, section(tmp_path, table, runs=runs, title=HOSTILE, description=HOSTILE))
    assert html.count("<script") == 1
    assert "<b>'bold'" not in html
    assert Page(html).all_text().count("<script>alert(1)</script>") >= 4


def test_tables_show_values_intervals_and_dashes_and_leave_out_what_nobody_knows(tmp_path: Path) -> None:
    table = points(SPEEDUPS).assign(final_accuracy=float("nan"))
    table.loc[1, "peak_memory_bytes"] = float("nan")
    rows = cells(page_of(tmp_path, section(tmp_path, table)), "Scaling")
    assert (
        rows[0] == "|GPUs|n|samples/s|speedup|efficiency|time of a run|cost in time of one GPU|memory (MB)|"
    )
    assert rows[2].startswith("|2|3|190|180 to 200|1.90|1.80 to 1.99|0.95|")
    assert rows[2].endswith("|5.26 min|5.00 to 5.53|10.5 min|–|")
    assert rows[3].endswith("|3,000|2,850 to 3,150|")


def test_a_long_table_is_behind_its_title_and_single_runs_have_no_interval(tmp_path: Path) -> None:
    counts = {count: float(count) for count in range(1, MOST_OPEN + 2)}
    (long,) = (
        each
        for each in filled_tables(section(tmp_path, points({"all runs": counts}, None)))
        if each.name == "points"
    )
    assert not long.is_open
    assert {cell.below for row, _ in long.rows for cell in row} == {""}
    assert [best for _, best in long.rows].index(True) == 3


def test_the_page_loads_nothing_and_allows_its_own_script_only(tmp_path: Path) -> None:
    html = page_of(tmp_path, section(tmp_path, points(SPEEDUPS)))
    page = Page(html)
    assert not [tag for tag, _ in page.elements if tag in {"link", "iframe", "object", "embed", "img"}]
    for _, attrs in page.elements:
        for key in ("src", "href", "xlink:href", "srcset", "action"):
            assert (attrs.get(key) or "#").startswith("#")
    assert not re.search(r"@import|url\((?!#)", html)
    (policy,) = (attrs["content"] for _, attrs in page.elements if "http-equiv" in attrs)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy


def test_the_line_on_what_was_measured_has_runs_days_and_devices() -> None:
    runs = pd.DataFrame(
        {
            "outcome": ["completed", "completed", "failed"],
            "device_name": ["A100", "H100", "A100"],
            "devices": [1, 2, 4],
            "started_at": ["2026-03-01T09:00", "2026-03-02T09:00", None],
        }
    )
    assert measured_on(runs, "GPU") == (
        "2 of 3 runs completed, 2026-03-01 to 2026-03-02, A100 (1 GPU), H100 (2 GPUs)"
    )
    assert measured_on(runs.iloc[2:], "GPU") == ""
