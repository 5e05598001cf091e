"""Figures in a page: marks that stand for the points of the tables, with ids and sizes that fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from tests.unit.analysis import hand_made_study as made

from scalewise.analysis.report import figures, scaling_figures, step_figures, style
from scalewise.analysis.report.inline_figures import figure_data, inline_svg
from scalewise.analysis.report.marks import point_values, tell_panels
from scalewise.analysis.report.page_tables import number
from scalewise.analysis.report.svg_file import compact
from scalewise.analysis.scaling import scaling_table

Runs = Callable[..., pd.DataFrame]

HOSTILE = "<script>alert('x')</script> & \"more\" for $5 or $6"
NAMES = ["bucket-view-off", HOSTILE]


@pytest.fixture(scope="module")
def runs(make_runs: Runs) -> pd.DataFrame:
    table = made.with_steps(make_runs(made.points(NAMES)))
    table["hosts"] = ["node-a" if devices < 8 else "node-a, node-b" for devices in table["devices"]]
    return table


@pytest.fixture(scope="module")
def scaling(runs: pd.DataFrame) -> pd.DataFrame:
    return scaling_table(runs, "strong")


@pytest.fixture(scope="module")
def folder(runs: pd.DataFrame, scaling: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of three figures of the study."""
    style.set_style()
    folder = tmp_path_factory.mktemp("figures")
    drawings = {
        "speedup": scaling_figures.speedup(scaling, made.laws(NAMES)),
        "throughput": figures.throughput(scaling, runs),
        "step": step_figures.step(scaling, runs),
    }
    for name, figure in drawings.items():
        tell_panels(figure, stacked=name == "step")
        drawn = folder / "drawn.svg"
        figure.savefig(drawn)
        text = compact(drawn.read_text(encoding="utf-8"), name)
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
    return folder


def marks(svg: str, kind: str, data: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Series, devices and value of each mark of a kind of trace."""
    found = []
    for group in fromstring(svg).iter():
        trace = data["traces"][int(group.get("data-trace", -1))] if group.get("data-trace") else None
        if trace is None or trace["kind"] != kind:
            continue
        drawn = [mark for mark in group.iter() if mark.get("class") == "mark"]
        numbers = trace.get("marks", range(len(trace["x"])))
        for mark, index in zip(drawn, numbers, strict=True):
            assert {"x", "d"} & set(mark.attrib)
            found.append((trace["series"], trace["x"][index], trace["value"][index]))
    return found


@pytest.mark.parametrize(
    ("name", "column"), [("speedup", "speedup"), ("throughput", "throughput_samples_per_second")]
)
def test_marks_are_the_points_of_the_table(
    folder: Path, runs: pd.DataFrame, scaling: pd.DataFrame, name: str, column: str
) -> None:
    data = figure_data(folder, [name], runs)[name]
    shown = sorted(marks(inline_svg(folder / f"{name}.svg", name, "0."), "measured", data))
    points = sorted(zip(scaling["series"], scaling["devices"], scaling[column], strict=True))
    assert [mark[:2] for mark in shown] == [point[:2] for point in points]
    assert [mark[2] for mark in shown] == pytest.approx([point[2] for point in points], rel=1e-5)
    trace = next(each for each in data["traces"] if each["kind"] == "measured" and each["series"] == NAMES[0])
    mine = scaling[scaling["series"] == NAMES[0]]
    assert trace["low"] == pytest.approx(mine[f"{column}_low"].tolist(), rel=1e-5)
    assert trace["high"] == pytest.approx(mine[f"{column}_high"].tolist(), rel=1e-5)
    assert trace["n"] == 3


def test_every_run_has_a_mark_and_every_point_its_runs_and_hosts(folder: Path, runs: pd.DataFrame) -> None:
    data = figure_data(folder, ["throughput"], runs)
    shown = marks(inline_svg(folder / "throughput.svg", "throughput", "0."), "run", data["throughput"])
    assert sorted(value for _, _, value in shown) == pytest.approx(
        sorted(runs["throughput_samples_per_second"]), rel=1e-5
    )
    named, hosts = data["runs"][NAMES[0]]["8"]
    assert named == [f"d8.{NAMES[0]}.r{repeat}" for repeat in (1, 2, 3)]
    assert hosts == ["node-a, node-b"]
    elsewhere = runs.assign(hosts=[f"node{place % 3}" for place in range(len(runs))])
    mine = elsewhere[(elsewhere["series"] == NAMES[0]) & (elsewhere["devices"] == 8)]
    assert figure_data(folder, [], elsewhere)["runs"][NAMES[0]]["8"][1] == mine["hosts"].tolist()


def test_the_parts_of_a_bar_are_marks_that_sum_to_it(
    folder: Path, runs: pd.DataFrame, scaling: pd.DataFrame
) -> None:
    data = figure_data(folder, ["step"], runs)["step"]
    steps = {**data, "traces": [dict(trace) for trace in data["traces"]]}
    for trace in steps["traces"]:
        trace["kind"] = trace["unit"]
    parts = marks(inline_svg(folder / "step.svg", "step", "0."), "µs per sample", steps)
    for series, devices, rate in zip(
        scaling["series"], scaling["devices"], scaling["throughput_samples_per_second"], strict=True
    ):
        assert all(trace["n"] == 3 for trace in data["traces"])
        whole = sum(value for name, count, value in parts if (name, count) == (series, devices))
        assert whole == pytest.approx(devices / rate * 1e6, rel=0.02)


def test_a_single_run_has_no_interval_and_a_speedup_the_runs_of_its_fewer_side() -> None:
    points = pd.DataFrame(
        {
            "speedup": [1.0, 1.93, 3.5],
            "speedup_low": [1.0, None, 3.3],
            "speedup_high": [1.0, None, 3.7],
            "speedup_n": [None, 1, 2],
            "n": [3, 1, 4],
        }
    )
    values = pd.DataFrame(point_values(points, "speedup"))
    assert values["n"].tolist() == [3, 1, 2]
    assert values["low"].dropna().to_dict() == {0: 1.0, 2: 3.3}
    assert values["high"].dropna().to_dict() == {0: 1.0, 2: 3.7}


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5678, "1,235"), (123456.0, "123,456"), (12.3456, "12.3"), (0.0000123, "0.0000123")],
)
def test_a_number_of_a_table_is_written_without_an_exponent(value: float, text: str) -> None:
    assert number(value, "{:.3g}") == text


def test_ids_are_unique_over_a_page_and_every_reference_is_met(folder: Path) -> None:
    page = "".join(
        inline_svg(folder / f"{name}.svg", name, f"{experiment}.{place}.")
        for experiment in (0, 1)
        for place, name in enumerate(("speedup", "throughput", "step"))
    )
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)) != set()
    assert {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)} <= set(ids)
    assert re.findall(r'<svg role="img" aria-label="(\w+)', page) == ["Speedup", "Throughput", "Where"] * 2


def test_everything_of_a_series_can_be_hidden_and_nothing_in_its_name_is_markup(
    folder: Path, runs: pd.DataFrame
) -> None:
    for name in ("speedup", "throughput", "step"):
        page = inline_svg(folder / f"{name}.svg", name, "0.")
        assert "<script" not in page
        traces = figure_data(folder, [name], runs)[name]["traces"]
        named = {group.get("data-series") for group in fromstring(page).iter()} - {None}
        of_traces = {traces[int(group.get("data-trace", 0))]["series"] for group in fromstring(page).iter()}
        assert named | of_traces == set(NAMES)
    legend = fromstring(inline_svg(folder / "throughput.svg", "throughput", "0."))
    of_series = {
        text.text: group.get("data-series")
        for group in legend.iter()
        if group.get("data-series")
        for text in group.iter("text")
    }
    assert of_series == {name: name for name in NAMES}


@pytest.mark.parametrize("name", ["speedup", "throughput", "step"])
def test_text_and_axes_take_their_colours_from_the_page(folder: Path, name: str) -> None:
    sheet = (Path(style.__file__).parent / "report.css").read_text(encoding="utf-8")
    drawing = fromstring(inline_svg(folder / f"{name}.svg", name, "0."))
    axes = [part for axis in drawing.iter() if "axis" in axis.get("class", "") for part in axis.iter()]
    background = [part for part in drawing.iter() if part.get("class") == "back"]
    coloured = {
        f'[{key}="{part.get(key)}"]'
        for part in [*drawing.iter("text"), *axes, *background]
        for key in ("fill", "stroke")
        if part.get(key, "none") != "none"
    }
    assert len(coloured) >= 3
    for colour in coloured:
        assert re.search(rf"{re.escape(colour)}[^{{]*{{ (fill|stroke): var\(--", sheet), colour


def test_a_file_says_frames_round_marks_and_what_stays_in_its_panel_in_few_words(folder: Path) -> None:
    drawn = (folder / "throughput.svg").read_text(encoding="utf-8")
    assert re.search(r'd="M([\d.]+) ([\d.]+) \1 ([\d.]+) ([\d.]+) \3 \4 \2Z"', drawn)
    assert re.search(r'<circle id="m\d+" r="2"/>', drawn)
    assert "clip-path" not in drawn


def test_a_line_that_leaves_its_panel_is_cut_and_no_other_is(tmp_path: Path) -> None:
    figure, axes = plt.subplots()
    axes.plot([1, 2], [1, 2], color="#ff0000")
    axes.plot([1, 9], [1, 9], color="#0000ff")
    axes.set(xlim=(0, 3), ylim=(0, 3))
    tell_panels(figure, stacked=False)
    figure.savefig(tmp_path / "drawn.svg")
    plt.close(figure)
    drawn = compact((tmp_path / "drawn.svg").read_text(encoding="utf-8"), "lines")
    assert re.findall(r'stroke="(#[^"]+)"[^>]* clip-path="url\(#c\d+\)"', drawn) == ["#0000ff"]


def test_a_file_that_another_version_has_drawn_is_shown_without_marks(tmp_path: Path) -> None:
    (tmp_path / "speedup.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0L1 1"/></svg>'
    )
    assert 'd="M0 0L1 1"' in inline_svg(tmp_path / "speedup.svg", "speedup", "0.")
    data = figure_data(tmp_path, ["speedup"], pd.DataFrame({"outcome": [], "series": [], "devices": []}))
    assert data["speedup"] == {"panels": [], "traces": []}


def test_figures_of_twenty_four_runs_are_small(make_runs: Runs, make_epochs: Runs, tmp_path: Path) -> None:
    names = ["bucket-view-off", "bucket-view-on"]
    small = made.with_steps(make_runs({(name, d): [100.0 * d] * 6 for name in names for d in (1, 2)}))
    figures.draw_all(
        scaling_table(small, "strong"), small, make_epochs(small), tmp_path, min_efficiency=0.7, target=0.9
    )
    assert sum(path.stat().st_size for path in tmp_path.glob("*.svg")) < 120_000
