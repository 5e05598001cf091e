"""Tables, figures and report of a study that has not measured every device count."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.planted_study import CHOOSING, PlantedStudy, overhead
from tests.unit.analysis import planted_tables as planted
from tests.unit.analysis.report_page import Page, cells
from tests.unit.planted_rounds import FIRST, LAST, SECOND, THIRD, Asked, leave, planted_round, unmeasured

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.finished_report import report_finished
from scalewise.analysis.report import drawing, scaling_figures
from scalewise.analysis.report.drawing import draw
from scalewise.analysis.report.efficiency_figures import efficiency
from scalewise.analysis.report.page import write_report
from scalewise.analysis.report.series_lines import EXPECTED, MEASURED
from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.analysis.rounds.sentences import STOPPING_AT_DECISION, repeat_sentences
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.runs.rounds import SeriesChoice


@dataclass(frozen=True)
class Ended:
    """A study whose rounds requested 1, 8 and 12 devices, with its tables, figures and report."""

    results: ExperimentResults
    page: str

    @property
    def choice(self) -> ChoiceSummary:
        assert self.results.choice is not None
        return self.results.choice

    @property
    def scaling(self) -> pd.DataFrame:
        return self.results.scaling

    @property
    def expected(self) -> pd.DataFrame:
        return self.results.unmeasured


def played(folder: Path, rounds: int, *, with_asked: bool = True) -> PlantedStudy:
    """Return the study after so many rounds, with the runs that the last one requested, or without."""
    study = PlantedStudy(folder, CHOOSING, overhead(0.25))
    study.make_runs()
    for judged in (FIRST, SECOND, THIRD, LAST)[:rounds]:
        leave(study.folder, judged)
        if with_asked or judged.number < rounds:
            study.make_runs()
    return study


def tabulated(study: PlantedStudy) -> ExperimentResults:
    """Return the results after their tables and decision were written."""
    compute(AnalysisSpec.from_json(study.planned.analysis_definition), study.folder / "runs", study.folder)
    return ExperimentResults.of_study(make_plan(study.study)["experiments"]["gpt"], study.folder)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    study = played(tmp_path_factory.mktemp("ended"), 4)
    results = tabulated(study)
    draw(results)
    report = study.results / "report.html"
    write_report([results], report)
    return Ended(results, report.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_decision_keeps_what_was_not_measured_and_figures_show_its_throughput(
    ended: Ended,
) -> None:
    assert ended.results.decision["devices"] == 8
    assert ended.choice.measured == [1, 8, 12]
    assert [each.devices for each in ended.choice.unmeasured] == [2, 4, 16]
    assert ended.choice.next_runs == ""
    assert ChoiceSummary.from_dict(json.loads(json.dumps(ended.choice.as_dict()))) == ended.choice

    points = ended.expected.set_index("devices")
    base = ended.scaling.loc[ended.scaling["devices"] == 1, THROUGHPUT].item()
    speedup = points[["speedup", "speedup_low", "speedup_high"]].to_numpy()
    assert speedup[1].tolist() == pytest.approx([3.2, 2.88, 3.52])
    assert points["parallel_efficiency"].tolist() == pytest.approx([0.8] * 3)
    assert points[THROUGHPUT].tolist() == pytest.approx([base * speedup for speedup in (1.6, 3.2, 12.8)])

    assert ended.results.expected is not None
    assert len(ended.results.expected) == 3
    to_target = replace(ended.results, decision={**ended.results.decision, "measure": "time to target"})
    assert to_target.expected is not None
    assert to_target.expected.empty
    all_measured = replace(ended.results, choice=None)
    assert all_measured.unmeasured.empty
    assert all_measured.expected is None


def test_each_series_of_a_sweep_has_its_own_unmeasured_counts(ended: Ended) -> None:
    other = SeriesChoice(series="b", devices=8, other_answer=0.01, unmeasured=[unmeasured(4, 0.01, 0.5)])
    choice = replace(ended.choice, series="a", others=[other])
    scaling = pd.concat([ended.scaling.assign(series=name) for name in "ab"])

    expected = replace(ended.results, choice=choice, scaling=scaling).unmeasured

    assert expected[["series", "devices"]].to_numpy().tolist() == [["a", 2], ["a", 4], ["a", 16], ["b", 4]]
    assert expected["speedup"].tolist()[-1] == 2.0
    assert "counts of a were measured (1, 8, 12) in 7 runs of all series: " in choice.sentences()[0]
    assert (choice.chance_of_another("a"), choice.chance_of_another("b")) == (ended.choice.other_answer, 0.01)
    figure = scaling_figures.speedup(scaling, expected=expected)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", EXPECTED]


def hollow(axes: Axes) -> dict[int, float]:
    found: dict[int, float] = {}
    for line in axes.lines:
        if line.get_markerfacecolor() == "white":
            marks = zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True)
            found |= {round(float(devices)): float(value) for devices, value in marks}
    return found


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


FIGURES: dict[str, Callable[[Ended], Figure]] = {
    "speedup": lambda study: scaling_figures.speedup(study.scaling, expected=study.expected),
    "parallel_efficiency": lambda study: efficiency(study.scaling, 0.7, study.expected),
    THROUGHPUT: lambda study: drawing.throughput(study.scaling, study.results.runs, study.expected),
}


@pytest.mark.parametrize("column", FIGURES)
def test_counts_that_were_not_measured_are_hollow_marks_that_the_legend_names(
    column: str, ended: Ended
) -> None:
    figure = FIGURES[column](ended)
    (axes,) = figure.axes

    assert hollow(axes) == pytest.approx(dict(zip((2, 4, 16), ended.expected[column], strict=True)))
    lines = [bars.get_segments() for bars in axes.collections if hasattr(bars, "get_segments")]
    bands = [segment[:, 1] for segments in lines for segment in segments if len(segment)]
    for _, point in ended.expected.iterrows():
        ends = [point[f"{column}_low"], point[f"{column}_high"]]
        assert any(np.allclose(band, ends) for band in bands)
    assert labels(figure)[:2] == [MEASURED, EXPECTED]
    marked = [line.get_linestyle() for line in axes.lines if line.get_marker() == "o"]
    assert set(marked) == {"None"}, "no line passes over a count that was not measured"
    assert axes.get_xlim()[1] > 16


def test_marks_that_would_touch_are_left_out_and_the_last_is_not(ended: Ended) -> None:
    many = [unmeasured(devices, 0.0, 0.5) for devices in range(16, 1025, 4)]
    expected = replace(ended.results, choice=replace(ended.choice, unmeasured=many)).unmeasured
    (axes,) = scaling_figures.speedup(ended.scaling, expected=expected).axes
    shown = sorted(hollow(axes))
    assert shown[-1] == 1024
    assert 10 < len(shown) < 60


def test_a_single_run_has_no_interval(ended: Ended) -> None:
    row = next(row for row in cells(ended.page, "Scaling") if "|12|" in row)
    assert re.fullmatch(r"\|all runs\|12\|1\|[\d,]+\|[\d.]+\|0\.64\|.*", row), row
    table = ended.results.points.set_index("devices")[["speedup_low", "speedup_high", f"{THROUGHPUT}_low"]]
    assert table.isna().all(axis="columns").to_dict() == {1: False, 8: False, 12: True}


def test_the_answer_says_what_was_measured_and_what_it_saved(ended: Ended) -> None:
    text = " ".join(Page(ended.page).all_text().split())
    assert "3 of 6 device counts were measured (1, 8, 12) in 7 runs: " in text
    assert "with 18 runs." in text
    assert "Not measured: 2, 4, 16 devices. The chance" in text
    assert ended.page.count("A hollow mark is an estimate for a GPU count") >= 3
    assert "<dt>Chosen device counts</dt>" in ended.page
    assert "Some points have only 1 completed run" not in text, "the study requested one"
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)


def test_a_table_lists_what_was_not_measured_with_its_chance(ended: Ended) -> None:
    rows = cells(ended.page, "Device counts that were not measured")[1:]
    assert [row.strip("|") for row in rows] == [
        "all runs|2|not measured|1.60|1.44 to 1.76|0.80|0.72 to 0.88|less than 0.1 %|0.0200",
        "all runs|4|not measured|3.20|2.88 to 3.52|0.80|0.72 to 0.88|less than 0.1 %|0.0400",
        "all runs|16|not measured|12.80|11.52 to 14.08|0.80|0.72 to 0.88|3 %|0.160",
    ]


def test_the_runs_of_each_point_have_their_reason() -> None:
    points = repeat_sentences([FIRST, SECOND, THIRD, LAST])
    assert [each.split(" (")[0] for each in points] == ["1 and 8 devices: 3 runs each", "12 devices: 1 run"]
    points = repeat_sentences([FIRST, SECOND])
    assert [each.split(" (")[0] for each in points] == ["1 device: 2 runs", "8 devices: 1 run"]
    assert ["baseline" in each for each in points] == [True, False]
    requested = planted_round(3, {1: (3, 3, "most repeats"), 8: (1, 2, "undecided")}, 8, {})
    made: Asked = {1: (3, 3, "most repeats"), 8: (2, 2, "not needed"), 4: (2, 2, "not needed")}
    *points, stopping = repeat_sentences([requested, planted_round(4, made, 8, {})])
    assert all(why in each for why, each in zip(("baseline", "earlier", "open"), points, strict=True))
    assert stopping == STOPPING_AT_DECISION


def test_a_count_whose_runs_all_failed_is_neither_measured_nor_expected(tmp_path: Path) -> None:
    speed = overhead(0.25)
    study = PlantedStudy(tmp_path, CHOOSING, lambda run: None if run.point == "d12" else speed(run))
    leave(study.folder, FIRST, SECOND)
    study.make_runs()
    once: Asked = {1: (2, 2, "not needed"), 8: (1, 1, "not needed"), 12: (1, 1, "not needed")}
    failed = planted_round(3, once, 8, {2: 0.0, 4: 0.0})
    without = {"d12": {"completed": 0}}
    points = [each.model_copy(update=without.get(each.point, {})) for each in failed.points]
    failed = failed.model_copy(update={"points": points})
    leave(study.folder, failed)

    choice = tabulated(study).choice

    assert choice is not None
    assert (choice.measured, choice.no_result) == ([1, 8], [12])
    assert "2 of 5 device counts were measured (1, 8)" in choice.sentences()[0]
    assert "without a result: 12 devices" in choice.sentences()[1]
    assert "12 devices: 1 run without a result" in repeat_sentences([FIRST, SECOND, failed])[-1]


def test_what_a_spent_budget_leaves_open_is_the_first_caution(tmp_path: Path) -> None:
    study = played(tmp_path, 1)
    once: Asked = {1: (2, 2, "not needed"), 8: (1, 1, "not needed")}
    leave(study.folder, planted_round(2, once, 8, {2: 0.0, 4: 0.0, 12: 0.12, 16: 0.02}, budget=2.0))

    decision = tabulated(study).decision

    facts = (
        "The budget of 2.00 device-hours",
        "0.102 are spent",
        "12 (12 %), 16 (2 %)",
        "0.280 device-hours",
    )
    assert all(fact in decision["cautions"][0] for fact in facts)
    assert not decision["clear"]


@pytest.mark.slow
def test_a_study_that_continues_has_the_best_answer_so_far_and_what_comes_next(tmp_path: Path) -> None:
    study = played(tmp_path, 2, with_asked=False)

    lines = report_finished(make_plan(study.study), study.results)

    assert lines[0].startswith("gpt: Use 8 ")
    assert "next: 1 run on 12 devices" in lines[-2]
    decision = planted.read_json(study.results / "partial/gpt/decision.json")
    assert "has not ended: the chance that another GPU count is the answer is 14 %" in decision["cautions"][0]
    page = (study.results / "report.html").read_text(encoding="utf-8")
    assert "next: 1 run on 12 devices" in page

    study.make_runs()
    choice = tabulated(study).choice
    assert choice is not None
    assert choice.measured == [1, 8, 12], "12 was measured since the last round"
    assert [each.devices for each in choice.unmeasured] == [2, 4, 16]
    assert choice.next_runs == "what is measured next has not been judged"
