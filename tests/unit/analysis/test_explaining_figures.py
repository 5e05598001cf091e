"""Figures that say why a training stops scaling, what to expect beyond, and how sure that is."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from tests.unit.analysis import planted_tables as planted
from tests.unit.analysis.planted_tables import ALONE, make_epochs, make_runs

from scalewise.analysis.bottlenecks.time_parts import STEP_PARTS, UNKNOWN
from scalewise.analysis.report import drawing, efficiency_figures, scaling_figures, step_figures, style
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.report.marks import Drawing
from scalewise.analysis.scaling import scaling_table

TWO = ["bucket-view-off", "bucket-view-on"]


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return planted.with_steps(make_runs(planted.points([ALONE])))


@pytest.fixture(scope="module")
def scaling(runs: pd.DataFrame) -> pd.DataFrame:
    return scaling_table(runs, "strong")


@pytest.fixture(scope="module")
def two_scaling() -> pd.DataFrame:
    return scaling_table(planted.with_steps(make_runs(planted.points(TWO))), "strong")


def words(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def named(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def bands(axes: Axes) -> int:
    return sum(isinstance(drawn, FillBetweenPolyCollection) for drawn in axes.collections)


def heights(axes: Axes) -> np.ndarray:
    """Of the bars: parts by device counts."""
    bars = [patch.get_height() for patch in axes.patches if isinstance(patch, Rectangle)]
    return np.array(bars).reshape(-1, len(axes.get_xticks()))


def test_a_fitted_law_is_drawn_with_its_band_in_place_of_joining_lines(scaling: pd.DataFrame) -> None:
    plain = scaling_figures.speedup(scaling)
    figure = scaling_figures.speedup(scaling, planted.laws([ALONE]))
    (axes,) = figure.axes
    assert named(figure) == ["Amdahl's law, 95 % band"]
    assert named(plain) == []
    assert bands(axes) == 1
    assert bands(plain.axes[0]) == 0
    (marks,) = (line for line in axes.lines if line.get_marker() == "o")
    assert marks.get_linestyle() == "None"
    (joined,) = (line for line in plain.axes[0].lines if line.get_marker() == "o")
    assert joined.get_linestyle() == "-"
    refused = scaling_figures.speedup(scaling, [law for law in planted.laws([ALONE]) if law["refused"]])
    assert (named(refused), bands(refused.axes[0])) == ([], 0)


def test_the_predicted_bound_stands_beside_the_speedup_and_never_beyond_what_was_planned(
    scaling: pd.DataFrame,
) -> None:
    figure = scaling_figures.speedup(scaling, (), planted.prediction([ALONE]))
    assert named(figure) == ["predicted bound"]
    (axes,) = figure.axes
    assert max(np.asarray(line.get_xdata()).max() for line in axes.lines) == 16
    assert "not measured" not in words(figure)


def test_series_with_laws_have_a_panel_each(two_scaling: pd.DataFrame) -> None:
    figure = scaling_figures.speedup(two_scaling, planted.laws(TWO), planted.prediction(TWO))
    assert [axes.get_title() for axes in figure.axes] == TWO
    assert [bands(axes) for axes in figure.axes] == [2, 2]
    bound_alone = scaling_figures.speedup(two_scaling, (), planted.prediction(TWO))
    joined = [line for axes in bound_alone.axes for line in axes.lines if line.get_marker() in {"o", "s"}]
    assert [line.get_linestyle() for line in joined] == ["-", "-"], "dashes are the predicted bound's"
    assert [axes.get_ylabel() for axes in figure.axes] == ["speedup over 1 device", ""]
    assert len(scaling_figures.speedup(two_scaling).axes) == 1


def test_ideal_scaling_is_a_straight_line_on_logarithmic_axes_too(scaling: pd.DataFrame) -> None:
    (axes,) = scaling_figures.speedup(scaling).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2", "4", "8", "16"]


def test_the_prediction_is_drawn_with_its_band_beside_what_was_measured(scaling: pd.DataFrame) -> None:
    figure = scaling_figures.prediction(scaling, planted.prediction([ALONE]))
    step, efficiency = figure.axes
    assert (step.get_ylabel(), efficiency.get_ylabel()) == ("step (ms)", "parallel efficiency")
    assert named(figure) == ["measured", "predicted", "compute alone"]
    for axes in figure.axes:
        assert bands(axes) == 1
        (marks,) = (line for line in axes.lines if line.get_marker() == "o")
        assert np.asarray(marks.get_xdata()).tolist() == [1, 2, 4, 8, 16]
    marks = next(line for line in step.lines if line.get_marker() == "o")
    assert np.asarray(marks.get_ydata())[0] == pytest.approx(250, rel=0.01), "milliseconds"


@pytest.mark.parametrize(("points", "last", "first"), [(5, 16, 64), (1, 1, 2), (0, 1, 2)])
def test_what_was_not_measured_lies_in_a_pale_area_that_says_so(
    scaling: pd.DataFrame, points: int, last: int, first: int
) -> None:
    figure = scaling_figures.prediction(scaling[:points], planted.prediction([ALONE]))
    assert words(figure) == ["not measured", "not measured"]
    for axes in figure.axes:
        (area,) = axes.patches
        assert isinstance(area, Rectangle)
        assert last < area.get_x() < first
        assert area.get_x() + area.get_width() > 1024
    measured_alone = scaling_figures.prediction(scaling, planted.prediction([ALONE], projected=()))
    assert words(measured_alone) == []


def test_a_step_is_shown_in_parts_that_sum_to_device_time_per_sample(
    scaling: pd.DataFrame, runs: pd.DataFrame
) -> None:
    figure = step_figures.step(scaling, runs)
    step, start = figure.axes
    parts = heights(step)
    per_sample = scaling["devices"] / scaling["throughput_samples_per_second"] * 1e6
    assert parts.sum(axis=0) == pytest.approx(per_sample.to_numpy())
    compute, communication, loader, straggler, jitter, unknown = parts
    assert compute == pytest.approx(planted.COMPUTE_SECONDS / planted.BATCH * 1e6, rel=0.05)
    assert communication[-1] == pytest.approx(3.5 * loader[-1])
    assert loader[-1] == pytest.approx(2 * straggler[-1])
    assert unknown.sum() == jitter.sum() == 0
    assert heights(start).sum(axis=0) == pytest.approx([4.0] * 5)
    named_parts = ["computing", "communication", "waiting for data", "one slow rank", "uneven ranks", ""]
    starts = ["launch", "imports", "process group", "data", "model", "first step"]
    assert named(figure) == [*named_parts, *starts]
    assert "over the bars: ms per step" in words(figure)
    assert f"{scaling['step_seconds'].iloc[-1] * 1e3:.3g}" in words(figure)
    hatches = [part.hatch for part in (*STEP_PARTS, UNKNOWN)]
    assert len(set(hatches)) == len(hatches), "they differ in grey"


@pytest.mark.parametrize(
    "unknown",
    [["communication_seconds"], ["step_seconds", *(part.column for part in STEP_PARTS)]],
    ids=["one part", "all of it"],
)
def test_a_part_that_was_not_measured_is_said_to_be_unknown(
    scaling: pd.DataFrame, runs: pd.DataFrame, unknown: list[str]
) -> None:
    for table in (scaling.assign(**dict.fromkeys(unknown, np.nan)), scaling.drop(columns=unknown)):
        figure = step_figures.step(table, runs)
        assert named(figure)[5] == "not measured"
        parts = heights(figure.axes[0])
        known = scaling["devices"] / scaling["throughput_samples_per_second"] * 1e6
        assert parts.sum(axis=0) == pytest.approx(known.to_numpy(), rel=0.005)  # a smaller rest is rounding
        assert parts[-1][-1] > 0


def test_records_that_do_not_know_the_jitter_leave_no_part_of_a_step_unknown(
    scaling: pd.DataFrame, runs: pd.DataFrame
) -> None:
    shorter = scaling.assign(loader_seconds=0.9 * scaling["loader_seconds"], jitter_seconds=np.nan)
    figure = step_figures.step(shorter, runs)
    assert "not measured" not in named(figure)


def test_two_efficiencies_and_their_product_are_shown_apart(scaling: pd.DataFrame) -> None:
    table = scaling.assign(
        statistical_efficiency=[1.0, 1.0, 0.9, 0.8, 0.5],
        time_to_accuracy_speedup=[1.0, 1.9, 3.2, 5.0, np.nan],
    )
    figure = efficiency_figures.efficiencies(table, 0.9)
    assert [axes.get_title().split(":")[0] for axes in figure.axes] == ["hardware", "statistical", "both"]
    both = next(line for line in figure.axes[2].lines if line.get_marker() == "o")
    assert np.asarray(both.get_ydata()).tolist() == pytest.approx([1.0, 0.95, 0.8, 0.625])
    assert "not reached: 16 devices" in words(figure)
    assert not any("required" in said for said in words(figure))


def test_what_is_asked_of_the_time_to_the_target_stands_where_that_is_shown(scaling: pd.DataFrame) -> None:
    table = scaling.assign(statistical_efficiency=0.9, time_to_accuracy_speedup=0.9 * scaling["speedup"])
    figure = efficiency_figures.efficiencies(table, 0.9, 0.725)
    asked = [
        [text.get_text() for text in axes.texts if "required" in text.get_text()] for axes in figure.axes
    ]
    assert asked == [[], [], ["required: 72.5 %"]]


def test_ratios_to_a_target_rest_on_the_runs_that_reached_it(scaling: pd.DataFrame) -> None:
    reached = [3, 3, 1, 2, 0]
    table = scaling.assign(
        statistical_efficiency=0.9,
        time_to_accuracy_speedup=0.9 * scaling["speedup"],
        n_reached=reached,
        time_to_accuracy_baseline_devices=1,
    )
    told = [trace["n"] for trace in efficiency_figures.efficiencies(table, 0.9).traces]
    assert told[1:] == [reached, reached]


@pytest.mark.parametrize(("target", "why"), [(None, "no target is set"), (0.99, "99.0 % accuracy")])
def test_where_no_target_is_set_or_reached_the_panels_say_so(
    scaling: pd.DataFrame, target: float | None, why: str
) -> None:
    unknown = ["statistical_efficiency", "time_to_accuracy_speedup"]
    for table in (scaling.drop(columns=unknown), scaling.assign(**dict.fromkeys(unknown, np.nan))):
        figure = efficiency_figures.efficiencies(table, target)
        assert sum(why in text for text in words(figure)) == 2


def test_nothing_is_asked_for_where_the_criterion_is_another(scaling: pd.DataFrame) -> None:
    assert words(efficiency_figures.efficiency(scaling, None)) == ["ideal: 100 %"]
    assert words(efficiency_figures.efficiency(scaling, 0.725)) == ["ideal: 100 %", "required: 72.5 %"]


@pytest.mark.slow
def test_every_figure_has_the_width_of_one_column_or_two(
    runs: pd.DataFrame, scaling: pd.DataFrame, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"laws": planted.laws([ALONE]), "prediction": planted.prediction([ALONE])}
    epochs = make_epochs(runs)
    drawing.draw(planted.results(scaling, runs, folder=tmp_path, epochs=epochs, target=0.9, **fields))
    for name in FIGURES:
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", (tmp_path / "figures" / f"{name}.pdf").read_bytes())
        assert box is not None, name
        assert round(float(box[1]) / 72 * 25.4) in {85, 178}, name


@pytest.mark.parametrize("width", [style.COLUMN_MM, style.PAGE_MM / 4])
def test_device_counts_that_would_touch_leave_out_some_and_never_the_last(width: float) -> None:
    counts = [*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128, 4096]
    style.set_style()
    figure = Drawing(width, 50)
    axes = figure.subplots()
    style.device_axis(axes, counts, width)
    figure.draw_without_rendering()
    labels = axes.get_xticklabels()
    assert labels[-1].get_text() == "4,096"
    boxes = [label.get_window_extent() for label in labels]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert len(labels) >= 5


@pytest.mark.slow
def test_twelve_series_of_eight_device_counts_keep_names_and_values_apart() -> None:
    names = [f"parallelism-zero{index}.bucket-view-on" for index in range(14)]
    counts = [1, 2, 4, 8, 16, 32, 64, 128]
    runs = planted.with_steps(make_runs(planted.points(names, counts)))
    scaling = scaling_table(runs, "strong")
    figure = scaling_figures.speedup(scaling, planted.laws(names, counts))
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 12
    assert titles[-1].endswith("(and 2 more in scaling.csv)")
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    title_boxes = [axes.title.get_window_extent() for axes in figure.axes[:4]]
    assert all(left.x1 < right.x0 for left, right in pairwise(title_boxes))
    step_figures.step(scaling, runs).draw_without_rendering()
