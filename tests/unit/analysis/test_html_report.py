"""The report: the answer first, one file that needs nothing else, whatever a user calls things."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalewise.analysis.captions import CAPTIONS
from scalewise.analysis.decision import decide
from scalewise.analysis.report import Section, render
from scalewise.analysis.scaling import option_table, scaling_table

Runs = Callable[..., pd.DataFrame]
MakeSection = Callable[..., Section]

ALONE = "all runs"
HOSTILE = "<script>alert('x')</script> & \"more\""
MEASURED: dict[tuple[str, int], list[float | str]] = {
    (ALONE, 1): [98.0, 100.0, 102.0],
    (ALONE, 2): [178.0, 180.0, 182.0],
}


class Page(HTMLParser):
    """Elements with attributes, and the text of each ``p``, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open:
            self.text.append((self._open[-1], data.strip()))

    def after_heading(self) -> list[tuple[str, str]]:
        index = next(index for index, (tag, _) in enumerate(self.text) if tag == "h1")
        return self.text[index + 1 :]

    def all_text(self) -> str:
        return "\n".join(data for _, data in self.text)


@pytest.fixture
def section(make_runs: Runs, tmp_path: Path) -> MakeSection:
    for name in CAPTIONS:
        (tmp_path / f"{name}.svg").write_text(f"<svg>{name}</svg>", encoding="utf-8")

    def make(
        name: str = "study",
        title: str = "Title",
        description: str = "",
        points: dict[tuple[str, int], list[float | str]] = MEASURED,
        origins: dict[str, list[str]] | None = None,
        reason: str | None = None,
        swept: dict[str, list[str]] | None = None,
        **columns: Any,
    ) -> Section:
        runs = make_runs(points, **columns)
        if reason is not None:
            runs.loc[runs["outcome"] != "completed", "reason"] = reason
        scaling = scaling_table(runs, "strong")
        options = option_table(runs, swept or {})
        decision = decide(name, scaling, options, 0.7)
        for table, file in ((runs, "runs.csv"), (scaling, "scaling.csv"), (options, "options.csv")):
            table.to_csv(tmp_path / file, index=False)
        return Section(
            name=name,
            title=title,
            description=description,
            decision=decision.as_dict(),
            scaling=pd.read_csv(tmp_path / "scaling.csv"),
            runs=pd.read_csv(tmp_path / "runs.csv"),
            options=pd.read_csv(tmp_path / "options.csv"),
            origins=origins or {"commit": ["abc123"]},
            figures=tmp_path,
        )

    return make


def test_the_answer_comes_right_after_the_heading(section: MakeSection) -> None:
    page = Page(render([section(title="Digits, strong scaling")], partial=False))
    assert ("h1", "Digits, strong scaling") in page.text
    tag, first = page.after_heading()[0]
    assert tag == "p"
    assert first.startswith("Use 2 devices: 1.80x")


def test_a_report_of_several_experiments_gives_all_answers_before_any_detail(section: MakeSection) -> None:
    undecided = section("second", "Second study", points={(ALONE, 1): ["failed"]})
    page = Page(render([section("first", "First study"), undecided], partial=False))
    assert ("h1", "How many devices?") in page.text
    text = [data for _, data in page.after_heading()]
    assert text[0] == "First study"
    assert text[1].startswith("Use 2 devices")
    assert text.index("Second study") < text.index("Scaling")
    assert text[text.index("Second study") + 1] == "No decision: no completed run (failed)."
    assert [data for tag, data in page.text if tag == "h2"] == ["First study", "Second study"]
    assert {attrs.get("id") for tag, attrs in page.elements if tag == "section"} == {"first", "second"}


def test_the_file_needs_nothing_else(section: MakeSection) -> None:
    html = render([section()], partial=False)
    page = Page(html)
    assert not [tag for tag, _ in page.elements if tag in {"script", "link", "iframe", "object", "embed"}]
    for tag, attrs in page.elements:
        for key in ("src", "href", "srcset", "action", "poster"):
            assert (attrs.get(key) or "data:").startswith("data:"), (tag, key)
    assert "@import" not in html
    assert "url(" not in html
    images = [str(attrs["src"]) for tag, attrs in page.elements if tag == "img"]
    prefix = "data:image/svg+xml;base64,"
    shown = [base64.b64decode(image.removeprefix(prefix)).decode() for image in images]
    assert shown == [f"<svg>{name}</svg>" for name in CAPTIONS]


def test_every_image_is_described_for_those_who_cannot_see_it(section: MakeSection) -> None:
    page = Page(render([section()], partial=False))
    described = [str(attrs["alt"]) for tag, attrs in page.elements if tag == "img"]
    assert [text.split(":")[0] for text in described] == list(CAPTIONS)
    assert all(len(text) > 30 for text in described)


def test_whatever_a_user_writes_is_text_and_never_markup(section: MakeSection) -> None:
    hostile = section(
        title=HOSTILE,
        description=HOSTILE,
        points=MEASURED | {(ALONE, 4): ["failed"]},
        origins={HOSTILE: [HOSTILE]},
        reason=HOSTILE,
    )
    for sections in ([hostile], [hostile, section("other")]):
        html = render(sections, partial=False)
        assert "<script" not in html
        page = Page(html)
        assert page.all_text().count("<script>alert('x')</script>") >= 5


def test_a_partial_report_says_so_first(section: MakeSection) -> None:
    page = Page(render([section()], partial=True))
    assert page.after_heading()[0] == ("strong", "Partial report.")
    assert "Partial report" not in render([section()], partial=False)


def test_what_did_not_complete_is_listed_with_its_reason(section: MakeSection) -> None:
    points = MEASURED | {(ALONE, 4): ["failed", "not run yet", "out-of-memory"]}
    text = Page(render([section(points=points)], partial=True)).all_text()
    assert "6 completed, 1 failed, 1 not run yet, 1 out-of-memory" in text
    assert "why it is failed" in text
    assert "why it is out-of-memory" in text
    assert "no completed run (failed, not run yet, out-of-memory)" in text


def test_the_tables_show_values_bounds_and_units(section: MakeSection) -> None:
    html = render([section()], partial=False)
    headings = [data for tag, data in Page(html).text if tag == "th"]
    assert {"throughput (samples/s)", "memory (MB)", "time to target (s)", "start-up (s)"} <= set(headings)
    rows = [re.sub(r"<[^>]+>", "|", row) for row in re.findall(r"<tr>.*?</tr>", html)]
    (two,) = (row for row in rows if row.startswith("||all runs||2||3||"))
    assert "180||178 to 182" in two
    assert f"1.80||{178 / 102:.2f} to {182 / 98:.2f}" in two
    assert f"0.90||{178 / 204:.2f} to {182 / 196:.2f}" in two
    assert "98.0%" in two
    assert "700" in two


def cells(html: str, heading: str) -> list[str]:
    """The rows of the table below a heading, cells parted by bars."""
    table = html.split(f"<h3>{heading}</h3>")[1].split("</table>", maxsplit=1)[0]
    return [re.sub(r"(<[^>]+>)+", "|", row) for row in re.findall(r"<tr>.*?</tr>", table)]


def test_memory_per_device_of_each_parallelism_stands_beside_ddps_in_the_first_table(
    section: MakeSection,
) -> None:
    names = ["ddp", "zero1", "fsdp"]
    points: dict[tuple[str, int], list[float | str]] = {
        (f"parallelism-{name}", devices): [100.0 * devices, 101.0 * devices, 102.0 * devices]
        for name in names
        for devices in (1, 2)
    }
    sharded = {"ddp": 8e9, "zero1": 6e9, "fsdp": 2e9}
    order = [name for name in names for _ in range(6)]
    html = render(
        [
            section(
                points=points,
                swept={"parallelism": names},
                parallelism=order,
                peak_memory_bytes=[sharded[name] for name in order],
            )
        ],
        partial=False,
    )
    rows = cells(html, "Options: throughput and memory per device")
    assert [row.split("|")[1:5] for row in rows[1:]] == [
        ["parallelism zero1", "ddp", "1", "3"],
        ["parallelism fsdp", "ddp", "1", "3"],
        ["parallelism zero1", "ddp", "2", "3"],
        ["parallelism fsdp", "ddp", "2", "3"],
    ]
    assert rows[1].endswith("|6,000|8,000|0.750|")
    assert rows[4].endswith("|2,000|8,000|0.250|")
    headings = [data for tag, data in Page(html).text if tag == "h3"]
    assert headings[0] == "Options: throughput and memory per device"


def test_without_a_sweep_there_is_no_table_of_options(section: MakeSection) -> None:
    assert "Options:" not in render([section()], partial=False)


def test_what_the_devices_did_with_their_time_is_shown_with_the_cause_where_they_waited(
    section: MakeSection,
) -> None:
    note = "rank 0: not monitored: NVML: Driver Not Loaded"
    html = render(
        [section(mean_utilization=[0.9] * 3 + [0.3] * 3, monitor_note=[note] + [""] * 5)], partial=False
    )
    _, one, two, why = cells(html, "Devices at work")
    assert one == "|all runs|1|90%|resident|1.0%|10.0%|5.00|20.0|"
    assert two == "|all runs|2|30%|resident|1.0%|10.0%|5.00|20.0|"
    assert "Launch-bound" in why
    assert f"{note} (1 of 6 runs)." in Page(html).all_text()


def test_no_value_is_shown_as_nan_or_none(section: MakeSection) -> None:
    points: dict[tuple[str, int], list[float | str]] = {(ALONE, 1): ["failed"], (ALONE, 2): ["not run yet"]}
    for sections in ([section(points=points)], [section(), section("b", points=points)]):
        text = Page(render(sections, partial=True)).all_text()
        assert not re.search(r"\b(nan|None|NaN|NaT)\b", text)


def test_the_confidence_that_the_intervals_have_is_stated(section: MakeSection) -> None:
    text = Page(render([section()], partial=False)).all_text()
    assert "a confidence of 75% for medians and 90% for speedups" in text


def test_one_run_a_point_carries_no_interval_and_the_report_says_so(section: MakeSection) -> None:
    points: dict[tuple[str, int], list[float | str]] = {(ALONE, 1): [100.0], (ALONE, 2): [180.0]}
    text = Page(render([section(points=points)], partial=False)).all_text()
    assert "not defined: one run a point" in text
    assert "0% for medians" not in text
