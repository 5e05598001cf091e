"""The report: the answer first, one file that needs nothing else, whatever a user calls things."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis import planted_tables as planted
from tests.unit.analysis.planted_tables import ONLY, decision_on, make_runs
from tests.unit.analysis.reference import welch_bounds
from tests.unit.analysis.report_page import Page, below, cells

from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.report.page import as_script_data, render
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule

MakeSection = Callable[..., ExperimentResults]

HOSTILE = "<script>alert('x')</script> & \"more\""
MEASURED: dict[tuple[str, int], list[float | str]] = {
    (ONLY, 1): [98.0, 100.0, 102.0],
    (ONLY, 2): [178.0, 180.0, 182.0],
}


@pytest.fixture
def section(tmp_path: Path) -> MakeSection:
    """Make the results of planted runs, with tables that were read from files and figures to show."""
    (tmp_path / "figures").mkdir()
    for name in FIGURES:
        (tmp_path / "figures" / f"{name}.svg").write_text(f"<svg><text>{name}</text></svg>", encoding="utf-8")
    drawn = {name: {"panels": [], "traces": [], "message": ""} for name in FIGURES}
    (tmp_path / "figures" / "traces.json").write_text(json.dumps(drawn), encoding="utf-8")

    def make(
        name: str = "study",
        points: dict[tuple[str, int], list[float | str]] = MEASURED,
        swept: dict[str, list[str]] | None = None,
        fields: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> ExperimentResults:
        runs = make_runs(points, **columns)
        decision = decision_on(runs, DecisionRule(min_efficiency=0.7), name=name, swept=swept)
        tables = {
            "runs": runs,
            "scaling": scaling_table(runs, "strong"),
            "options": option_table(runs, swept or {}),
        }
        for file, table in tables.items():
            table.to_csv(tmp_path / f"{file}.csv", index=False)
        usual: dict[str, Any] = {"title": "Title", "origins": {"commit": ["abc123"]}}
        usual |= {file: pd.read_csv(tmp_path / f"{file}.csv") for file in tables}
        answer = decision.as_dict() | {"repeats": []}
        return ExperimentResults(name, tmp_path, answer, **usual | dict(fields or {}))

    return make


def test_what_is_required_is_shown(section: MakeSection) -> None:
    made = section()
    (made.folder / "proposal").mkdir()
    sentences = ["Required is 0.75.", "1 to 2 nodes: 1.85x (1.81 to 1.89), above the required 1.5."]
    (made.folder / "proposal" / "requirement.json").write_text(json.dumps({"sentences": sentences}))
    assert f"<dt>Required</dt><dd>{' '.join(sentences)}</dd>" in render([made], partial=False)


def test_the_answer_comes_right_after_the_heading(section: MakeSection) -> None:
    html = render([section(fields={"title": "Digits, strong scaling"})], partial=False)
    page = Page(html)
    assert ("h1", "Digits, strong scaling") in page.text
    assert page.after_heading()[0] == ("p", "Use 2 devices.")
    for absent in ("<dt>Required</dt>", "What was held equal</h3>", "What options gain", "Partial report"):
        assert absent not in html
    page = Page(render([section()], partial=True))
    assert page.after_heading()[0] == ("strong", "Partial report.")


def test_a_report_of_several_experiments_gives_all_answers_before_any_detail(section: MakeSection) -> None:
    undecided = section("second", {(ONLY, 1): ["failed"]}, fields={"title": "Second study"})
    ended_early = section("first", fields={"title": "First study"}, device_hours=math.nan)
    html = render([ended_early, undecided], partial=False)
    page = Page(html)
    assert ("h1", "How many devices?") in page.text
    text = [data for _, data in page.after_heading()]
    in_order = ("First study", "Use 2 devices.", "Second study", "No answer yet.", "Scaling", "Provenance")
    places = [text.index(each) for each in in_order]
    assert places == sorted(places)
    assert [data for tag, data in page.text if tag == "h2"] == ["First study", "Second study", "Methods"]
    sections = [attrs.get("id") for tag, attrs in page.elements if tag == "section"]
    named = ["first", "second", "page.methods"]
    assert [each for each in sections if each in named] == named
    links = [attrs.get("href") for tag, attrs in page.elements if tag == "a"]
    assert {"#first", "#second", "#first.decision", "#second.speedup"} <= set(links)
    # others in the column of costs are in device-hours
    assert "<td>1.80x</td><td>0.90</td><td>1.11x that on 1 device</td>" in html
    rules = html.split("<ol>")[1].split("</ol>")[0]
    assert rules.count("<li>") == 12
    assert "What this cannot tell" in html


def test_no_name_of_an_experiment_is_an_id_of_something_else(section: MakeSection) -> None:
    names = ["mnist", "mnist-memory", "memory", "toolbox"]
    page = Page(render([section(name) for name in names], partial=False))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert set(names) <= set(ids)
    assert len(ids) == len(set(ids))


def test_the_file_needs_nothing_else_and_its_figures_are_described(section: MakeSection) -> None:
    html = render([section(time_to_accuracy_seconds=None, epochs_to_accuracy=None)], partial=False)
    page = Page(html)
    assert not [tag for tag, _ in page.elements if tag in {"link", "iframe", "object", "embed", "img"}]
    for tag, attrs in page.elements:
        for key in ("src", "href", "srcset", "action", "poster"):
            assert (attrs.get(key) or "#").startswith(("data:", "#")), (tag, key)
    assert "@import" not in html
    assert "url(" not in html
    # figures with nothing to show are left out
    assert figures(page) == [name for name in FIGURES if name not in {"prediction", "efficiencies", "splits"}]
    drawn = [attrs for tag, attrs in page.elements if tag == "svg"]
    assert len(drawn) == len(figures(page))
    for name, attrs in zip(figures(page), drawn, strict=True):
        assert f">{name}<" in html
        assert attrs["role"] == "img"
        assert re.match(r"[A-Z][a-z ]+\.", str(attrs["aria-label"]))


def figures(page: Page) -> list[str]:
    return [str(attrs["data-figure"]) for tag, attrs in page.elements if tag == "figure"]


def test_whatever_a_user_writes_is_text_and_never_markup(section: MakeSection) -> None:
    written = {"title": HOSTILE, "description": HOSTILE, "origins": {HOSTILE: [HOSTILE]}}
    reasons = [""] * 6 + [HOSTILE]
    hostile = section(points=MEASURED | {(ONLY, 4): ["failed"]}, reason=reasons, fields=written)
    html = render([hostile, section("other")], partial=False)
    page = Page(html)
    ours = [attrs for tag, attrs in page.elements if tag == "script"]
    assert html.count("<script") == len(ours) == html.count("</script")
    assert all(set(attrs) <= {"type", "class", "data-experiment"} for attrs in ours)
    assert page.all_text().count("<script>alert('x')</script>") >= 5


def test_no_name_ends_the_element_that_holds_the_data_of_the_scripts() -> None:
    data = {"name": '</script><!-- & "more"', "rates": [1.5, float("nan"), float("inf")], "n": 3}
    text = as_script_data(data)
    assert "<" not in text
    assert json.loads(text) == data | {"rates": [1.5, None, None]}


def test_what_did_not_complete_is_listed_with_its_reason(section: MakeSection) -> None:
    some = section(points=MEASURED | {(ONLY, 4): ["failed", "not run yet", "out-of-memory"]})
    none = section("b", points={(ONLY, 1): ["failed"], (ONLY, 2): ["not run yet"]})
    text = Page(render([some, none], partial=True)).all_text()
    assert "6 completed, 1 failed, 1 not run yet, 1 out-of-memory" in text
    assert "why it is failed" in text
    assert "why it is out-of-memory" in text
    assert "no completed run (failed, not run yet, out-of-memory)" in text
    assert not re.search(r"\b(nan|None|NaN|NaT)\b", text)


def test_the_tables_show_values_bounds_and_units(section: MakeSection) -> None:
    study = section()
    html = render([study], partial=False)
    headings = {data for tag, data in Page(html).text if tag == "th"}
    assert headings >= {"throughput (samples/s)", "time to target (s)", "start-up (s)"}
    assert headings >= {"memory in training (MB)", "in evaluation (MB)"}
    rows = [re.sub(r"<[^>]+>", "|", row) for row in re.findall(r"<tr\b.*?</tr>", html)]
    two = next(row for row in rows if row.startswith("||all runs||2||3||"))
    low, high = welch_bounds([178.0, 180.0, 182.0], [98.0, 100.0, 102.0])
    assert "180||175 to 185" in two
    assert f"1.80||{low:.2f} to {high:.2f}" in two
    assert f"0.90||{low / 2:.2f} to {high / 2:.2f}" in two
    assert "98.0 %" in two
    apart = replace(study, scaling=study.scaling.assign(n_not_comparable=[0, 2]))
    assert "|2|3 (2 not comparable)|" in cells(render([apart], partial=False), "Scaling")[2]


def test_a_row_of_options_is_of_its_series_however_two_tables_write_its_values(section: MakeSection) -> None:
    swept: dict[str, list[Any]] = {"opt": ["Adam", "SGD"], "cap": [0.5, 50]}
    names = [f"{opt} {cap}" for opt in swept["opt"] for cap in swept["cap"]]
    points: dict[tuple[str, int], list[float | str]] = {(name, 2): [100.0, 101.0] for name in names}
    opts, caps = ([value for name in names for value in [name.split()[part]] * 2] for part in (0, 1))
    study = section(points=points, swept=swept, opt=opts, cap=[float(cap) for cap in caps])
    rows = below(render([study], partial=False), "What options gain").split("</table>", maxsplit=1)[0]
    # a row has the number of its series, which the page's script takes as its name
    order = list(dict.fromkeys(study.runs["series"]))
    shown = re.findall(r'<tr data-series="(\d+)".*?<th scope="row">([^<]*)</th>', rows, re.DOTALL)
    assert len(shown) == 4
    for number, cell in shown:
        assert cell.split()[1] in order[int(number)].split(), "the row's value is one of its series"


def test_of_many_comparisons_those_on_the_answer_stand_in_the_open_and_all_one_click_away(
    section: MakeSection,
) -> None:
    hooks: list[Any] = [None, *(f"hook{index}" for index in range(5))]
    points: dict[tuple[str, int], list[float | str]] = {
        (str(hook), devices): [100.0 * devices, 101.0 * devices] for devices in (1, 2) for hook in hooks
    }
    order = [hook for _ in (1, 2) for hook in hooks for _ in (1, 2)]
    page = render([section(points=points, swept={"hook": hooks}, hook=order)], partial=False)
    first, all_of_them = below(page, "What options gain").split("All 10 comparisons", maxsplit=1)
    assert first.count("on 2 devices: ") == 5
    assert "on 1 device: " not in first
    assert all_of_them.split("</details>")[0].count("<p>") == 10
    # a swept null is the default
    assert cells(page, "What options gain")[1].startswith("|hook hook0|default|1|")


def test_what_the_devices_did_with_their_time_is_shown(
    section: MakeSection,
) -> None:
    note = "rank 0: not monitored: NVML: Driver Not Loaded"
    html = render(
        [section(mean_utilization=[0.9] * 3 + [0.3] * 3, monitor_note=[note] + [""] * 5)], partial=False
    )
    _, one, two = cells(html, "Devices at work")
    assert one == "|all runs|1|3|90 %|resident|1.0 %|10.0 %|700|–|5.00|20.0|"
    assert two == "|all runs|2|3|30 %|resident|1.0 %|10.0 %|700|–|5.00|20.0|"
    assert f"{note} (1 of 6 runs)." in Page(html).all_text()


@pytest.fixture
def whole(section: MakeSection) -> ExperimentResults:
    """A study with everything that a report can show."""
    runs = planted.with_steps(make_runs(planted.points([ONLY])))
    study = section(
        points=planted.points([ONLY]),
        fields={
            "laws": planted.laws([ONLY]) + PEAKS,
            "prediction": planted.prediction([ONLY]),
            "prediction_notes": ["From 16 devices on, communication no longer hides."],
        },
        **{name: list(runs[name]) for name in [*STEP, "wall_seconds", "fingerprint"]},
    )
    splits = {"best": 1, "sentences": ["8 trainings on 16 devices: two at a time on 8 devices each."]}
    repeats = ["d8: 2 more repeats were asked for."]
    return replace(study, decision={**study.decision, "repeats": repeats, "splits": splits})


PEAKS = [
    {"series": ONLY, "law": "usl", "confidence": 0.95, "refused": "",
     "parameters": {"peak_devices": {"estimate": peak, "low": 10.0, "high": None}},
     "curve": [{"devices": 16, "speedup": 9.0, "low": 8.0, "high": 10.0}]}
    for peak in (12.0, 40.0)
]  # fmt: skip
"""Laws by which the throughput is highest on a measured device count, and beyond."""
STEP = [
    "step_seconds", "compute_seconds", "communication_seconds", "loader_seconds", "straggler_seconds",
    "jitter_seconds", "crosscheck_communication_seconds",
]  # fmt: skip


def test_the_answer_is_followed_by_what_slows_it_down_what_it_costs_and_what_lies_beyond(
    whole: ExperimentResults,
) -> None:
    slowdown = {"sentence": "On 16 GPUs, 38 % of each step is lost.", "advice": "Double the batch size."}
    further = {"limits": ["On 4 GPUs, less is lost."], "startup": ["Start-up takes 90 %."]}
    more = {"slowdown": slowdown, "beyond": ["64 devices: 24x."]}
    html = render([replace(whole, decision=dict(whole.decision) | further | more)], partial=False)
    text = Page(html.split("All measurements</h2>")[0] + "</body>").all_text()
    order = (
        *(whole.decision["card"]["verdict"], whole.decision["card"]["rule"], "What slows it down"),
        *("On 16 GPUs, 38 % of each step is lost.", "Double the batch size."),
        *("On 4 GPUs, less is lost.", "Start-up takes 90 %.", "What it costs"),
        *("Beyond what was measured", "64 devices: 24x."),
    )
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    assert re.search(r"[\d,]+ samples/s on 1 device \([\d,]+ to [\d,]+\)", text)


def test_step_parts_laws_and_predictions_are_in_tables_next_to_the_measurements(
    whole: ExperimentResults,
) -> None:
    # runs that are not comparable are not part of n, and not of the fit
    study = replace(whole, scaling=whole.scaling.assign(n_not_comparable=1))
    for name, points in (("speedup", 241), ("step", 505)):
        svg = f'<svg viewBox="0 0 {points} 200"></svg>'
        (whole.folder / "figures" / f"{name}.svg").write_text(svg, encoding="utf-8")
    html = render([study], partial=False)
    assert figures(Page(html)) == list(FIGURES)
    wide = [attrs["data-figure"] for tag, attrs in Page(html).elements if "wide" in str(attrs.get("class"))]
    assert wide == ["step"], "it has a row to itself"
    last = cells(html, "Where a step's time goes, and start-up")[-1].split("|")
    assert last[1:4] == [ONLY, "16", "3"]
    point = whole.scaling.iloc[-1]
    shown = [
        (f"{point[name] * 1e3:.3g}", f"{100 * point[name] / point['step_seconds']:.1f} %")
        for name in STEP[1:5]
    ]
    assert last[5:13] == [cell for pair in shown for cell in pair]

    fitted, refused, *peaks = cells(html, "Laws of scaling")[1:]
    assert re.search(r"\|15 runs on 5 device counts\|.*serial fraction 0.02 \(0.017\d* to 0.022\d*\)", fitted)
    assert "|Not fitted: the universal scalability law needs runs on 6 or more device counts" in refused
    assert [row.split("|")[4] for row in peaks] == [
        "devices of the highest throughput 12 (10 to ∞)",
        "devices of the highest throughput 40 (10 to ∞), not measured",
    ]

    rows = cells(html, "Prediction beside measurement")[1:]
    assert len(rows) == len(planted.COUNTS) + len(planted.PROJECTED)
    unmeasured = [row.split("|")[2:4] for row in rows if "|not measured|" in row]
    assert unmeasured == [["64", "16x4"], ["256", "64x4"], ["1,024", "256x4"]]
    eight = whole.scaling[whole.scaling["devices"] == 8]["step_seconds"].item()
    predicted = planted.prediction([ONLY]).set_index("devices").loc[8, "step_seconds"]
    assert f"|{predicted / eight:.2f}|" in rows[3]
    reason = "no prediction for all runs: no run on 1 device has completed."
    html = render([replace(whole, prediction=None, prediction_notes=[reason])], partial=False)
    assert reason in html.split("Prediction beside measurement")[1]


def test_learning_curves_are_the_first_figures_of_a_study_that_sweeps_cpus(section: MakeSection) -> None:
    sweep = section(
        points={(f"cpus-per-device-{cpus}", d): [100.0 * d] * 3 for cpus in (1, 4) for d in (1, 2)}
    )
    sweep.runs["cpus_per_device"] = sweep.runs["series"].str.rpartition("-")[2].astype(int)
    cpus = {"learning": "CPUs change only the time.", "sentences": ["Use 4 CPUs per device."]}
    html = render([replace(sweep, decision=dict(sweep.decision) | {"cpus": cpus})], partial=False)
    shown = figures(Page(html))
    assert shown[:4] == ["accuracy", "loss", "speedup", "efficiency"]
    assert sorted(shown) == sorted(set(shown))
    caption = html.split("<figcaption", 2)[1]
    assert "<b>Test accuracy.</b> CPUs change only the time. Final test accuracy is " in caption
    assert below(html, "How many CPUs per device").split("<p>", 2)[1].startswith("Use 4 CPUs per device.")
    assert "accuracy" not in below(html, "All measurements").split("More figures")[1].split("</summary>")[0]
