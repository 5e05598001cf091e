"""Figures in a page: marks that stand for the points of the tables, with ids and sizes that fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pandas as pd
import pytest
from tests.unit.analysis import planted_tables as planted
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.report import drawing, scaling_figures, step_figures, style
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.report.inline_figures import inline_figure, runs_of_points
from scalewise.analysis.report.marks import (
    EPOCHS,
    EXPECTED,
    MEASURED,
    Drawing,
    point_values,
    tell,
    trace,
)
from scalewise.analysis.report.svg_file import draw_svg
from scalewise.analysis.scaling import scaling_table

NAN = float("nan")
HOSTILE = "<script>alert('x')</script> & \"more\" for $5 or $6"
NAMES = ["bucket-view-off", HOSTILE]


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    table = planted.with_steps(make_runs(planted.points(NAMES)))
    table["hosts"] = ["node-a" if devices < 8 else "node-a, node-b" for devices in table["devices"]]
    return table


@pytest.fixture(scope="module")
def scaling(runs: pd.DataFrame) -> pd.DataFrame:
    return scaling_table(runs)


@dataclass(frozen=True)
class Drawn:
    """A figure of the study."""

    file: Path
    data: dict[str, Any]

    def inline(self, prefix: str = "0.") -> str:
        return inline_figure(self.file, FIGURES[self.file.stem].title, prefix, self.data).svg

    def marks(self) -> list[tuple[dict[str, Any], int]]:
        """The trace of each mark in the page, and the number of its point."""
        keys = [element.get("data-mark", "") for element in fromstring(self.inline()).iter()]
        pairs = (key.split(".") for key in keys if key)
        return [(self.traces()[int(number)], int(index)) for number, index in pairs]

    def traces(self) -> list[dict[str, Any]]:
        """The traces with the names of their series, as the page's script reads them."""
        return [trace | {"series": self.data["series"][trace["series"]]} for trace in self.data["traces"]]


@pytest.fixture(scope="module")
def drawn(
    runs: pd.DataFrame, scaling: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Drawn]:
    style.set_style()
    folder = tmp_path_factory.mktemp("figures")
    drawings = {
        "speedup": scaling_figures.speedup(scaling),
        "throughput": drawing.throughput(scaling, runs),
        "step": step_figures.step(scaling, runs),
    }
    made_files = {}
    for name, figure in drawings.items():
        text, data = draw_svg(figure, name)
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
        made_files[name] = Drawn(folder / f"{name}.svg", data)
    return made_files


def values(drawn: Drawn, kind: str) -> list[tuple[str, int, float]]:
    return [
        (trace["series"], trace["x"][index], trace["value"][index])
        for trace, index in drawn.marks()
        if trace["kind"] == kind
    ]


def test_marks_are_the_points_of_the_table_and_their_runs(
    drawn: dict[str, Drawn], scaling: pd.DataFrame, runs: pd.DataFrame
) -> None:
    figure, column = drawn["throughput"], "throughput_samples_per_second"
    shown = sorted(values(figure, "measured"))
    points = sorted(zip(scaling["series"], scaling["devices"], scaling[column], strict=True))
    assert [mark[:2] for mark in shown] == [point[:2] for point in points]
    assert [mark[2] for mark in shown] == pytest.approx([point[2] for point in points], rel=1e-5)
    rates = sorted(value for _, _, value in values(figure, "run"))
    assert rates == pytest.approx(sorted(runs[column]), rel=1e-5)
    of_points = runs_of_points(runs)
    named = [
        of_points[trace["series"]][str(trace["x"][index])]["runs"][trace["place"][index]]
        for trace, index in figure.marks()
        if "place" in trace
    ]
    assert sorted(named) == sorted(runs["run"])
    assert of_points[NAMES[0]]["8"]["hosts"] == ["node-a, node-b"]


def test_marks_of_a_curve_of_which_some_points_have_one_keep_their_numbers() -> None:
    figure = Drawing(85, 62)
    axes = figure.subplots()
    x, y = [1, 2, 3, 4, 5], [10.0, float("nan"), 30.0, 40.0, 50.0]
    (line,) = axes.plot(x, y, marker="o", markevery=2)
    tell(line, series="a", trace=trace(EPOCHS, "a", "loss", x, {"value": y}, every=2))
    svg, data = draw_svg(figure, "curve")
    assert re.findall(r'data-mark="0\.(\d)"', svg) == ["0", "2", "4"]
    assert data["traces"][0]["text"] == ["10.0", "30.0", "50.0"]
    assert data["traces"][0]["panel"] == 0


def test_hatches_are_lines_inside_the_panels_of_their_bars(drawn: dict[str, Drawn]) -> None:
    text = drawn["step"].inline()
    assert "pattern" not in text
    hatches = [path.attrib for path in fromstring(text).iter("path") if path.get("class") == "hatch"]
    of_bars = [each["d"] for each in hatches if each.get("data-series")]
    assert len(of_bars) > 10
    boxes = [panel["box"] for panel in drawn["step"].data["panels"]]
    for path in of_bars[:20]:
        numbers = [float(each) for each in re.findall(r"-?[\d.]+", path)]
        assert any(
            left <= min(numbers[::2]) and max(numbers[::2]) <= right and top <= min(numbers[1::2])
            for left, top, right, _ in boxes
        )


@pytest.mark.parametrize(
    ("kind", "n", "bounds", "text"),
    [
        (MEASURED, 3, (1.9, 2.1), "1.90 to 2.10"),
        (MEASURED, 3, (1.0, 1.0), "the baseline"),
        (MEASURED, 1, (None, None), "one run"),
        (MEASURED, 2, (None, None), "two runs"),
        (EXPECTED, None, (1.9, 2.1), "1.90 to 2.10"),
    ],
)
def test_an_interval_says_what_it_is(
    kind: str, n: int | None, bounds: tuple[float | None, float | None], text: str
) -> None:
    columns = {"value": [2.0], "low": [bounds[0] or NAN], "high": [bounds[1] or NAN], "n": [n or NAN]}
    facts = trace(kind, "a", "speedup", [2], columns)
    assert (facts["text"], facts["interval"]) == (["2.00"], [text])


def test_a_single_run_has_no_interval_and_a_speedup_the_runs_of_its_fewer_side() -> None:
    rows = [(1.0, 1.0, 1.0, None, 3), (1.93, None, None, 1, 1), (3.5, 3.3, 3.7, 2, 4)]
    columns = ["speedup", "speedup_low", "speedup_high", "speedup_n", "n"]
    values = pd.DataFrame(point_values(pd.DataFrame(rows, columns=columns), "speedup"))
    assert values["n"].tolist() == [3, 1, 2]
    assert values["low"].dropna().to_dict() == {0: 1.0, 2: 3.3}
    assert values["high"].dropna().to_dict() == {0: 1.0, 2: 3.7}


def test_an_entry_of_a_legend_is_of_its_series_whatever_its_name(drawn: dict[str, Drawn]) -> None:
    figure = drawn["throughput"]
    legend = {
        text.text: figure.data["series"][int(group.attrib["data-series"])]
        for group in fromstring(figure.inline()).iter()
        if group.get("data-series")
        for text in group.iter("text")
    }
    assert legend == {name: name for name in NAMES}


def test_ids_are_unique_over_a_page_and_every_reference_is_met(drawn: dict[str, Drawn]) -> None:
    page = "".join(
        drawn[name].inline(f"{experiment}.{place}.")
        for experiment in (0, 1)
        for place, name in enumerate(("speedup", "throughput", "step"))
    )
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    met = {one or other for one, other in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page)}
    assert met
    assert met <= set(ids)
    assert re.findall(r'role="img" aria-label="(\w+)', page) == ["Speedup", "Throughput", "Where"] * 2


@pytest.mark.parametrize("name", ["speedup", "throughput", "step"])
def test_text_and_axes_take_their_colors_from_the_page(drawn: dict[str, Drawn], name: str) -> None:
    sheet = (Path(style.__file__).parent / "report.css").read_text(encoding="utf-8")
    drawing = fromstring(drawn[name].inline())
    axes = [part for axis in drawing.iter() if "axis" in axis.get("class", "") for part in axis.iter()]
    background = drawing.findall("svg/path")[:1]
    colored = {
        f'[{key}="{part.get(key)}"]'
        for part in [*drawing.iter("text"), *axes, *background]
        for key in ("fill", "stroke")
        if part.get(key, "none") != "none"
    }
    assert len(colored) >= 3
    for color in colored:
        assert re.search(rf"{re.escape(color)}[^{{]*{{ (fill|stroke): var\(--", sheet), color


def test_a_band_is_an_area_of_its_panel_that_moves_with_the_scale() -> None:
    figure = Drawing(85, 62)
    axes = figure.subplots()
    band = axes.fill_between([1, 2], [1, 1], [2, 2], color="#ff0000")
    tell(band, series="a")
    svg, data = draw_svg(figure, "band")
    left, top, right, bottom = data["panels"][0]["box"]
    (path,) = re.findall(r'<path d="([^"]*)" fill="#ff0000"', svg)
    numbers = [float(each) for each in re.findall(r"-?[\d.]+", path)]
    assert left <= min(numbers[::2]) < max(numbers[::2]) <= right
    assert top <= min(numbers[1::2]) < max(numbers[1::2]) <= bottom


def test_a_line_that_leaves_its_panel_is_cut_there() -> None:
    figure = Drawing(85, 62)
    axes = figure.subplots()
    axes.plot([1, 9], [1, 9], color="#0000ff")
    axes.set(xlim=(0, 3), ylim=(0, 3))
    svg, data = draw_svg(figure, "line")
    left, top, right, bottom = data["panels"][0]["box"]
    clip = f"M{left} {top}L{right} {top}L{right} {bottom}L{left} {bottom}Z"
    assert f'<clipPath id="c0"><path d="{clip}"/></clipPath>' in svg
    assert re.search(r'stroke="#0000ff"[^>]* clip-path="url\(#c0\)"', svg)
