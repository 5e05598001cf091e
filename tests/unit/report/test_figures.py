"""Figures of planted points: what is drawn, where its marks are, and that its files hold nothing else."""

import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from tests.unit.report.planted_sections import curves, points, section

from scalewise.report.figures import FIGURES, STYLE, draw
from scalewise.report.section import Section

AMDAHL = {count: count / (1 + 0.05 * (count - 1)) for count in (1, 2, 4, 8, 16)}


def axes_of(name: str, study: Section) -> Any:
    """Return the only axes of a figure; the types of matplotlib are wider than what they hold."""
    with mpl.rc_context(STYLE):
        drawing = FIGURES[name].draw(study)
    assert drawing is not None
    (axes,) = drawing.axes
    return axes


def segments(axes: Axes) -> list[list[tuple[float, float]]]:
    """Return the ends of every interval that is drawn."""
    return [
        [(round(x, 6), round(y, 6)) for x, y in segment]
        for bars in axes.collections
        if hasattr(bars, "get_segments")
        for segment in bars.get_segments()
    ]


@pytest.mark.parametrize("counts", [(1, 2, 4), (1, 2, 4, 8, 16)], ids=["linear", "logarithmic"])
def test_marks_and_intervals_stand_at_the_values_of_the_table_on_every_axis(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    table = points({"all runs": {count: AMDAHL[count] for count in counts}})
    axes = axes_of("speedup", section(tmp_path, table))
    marked = {(x, round(y, 6)) for line in axes.lines for x, y in np.asarray(line.get_xydata()).tolist()}
    assert {(count, round(AMDAHL[count], 6)) for count in counts} <= marked
    expected = [
        [(row["devices"], round(row["speedup_low"], 6)), (row["devices"], round(row["speedup_high"], 6))]
        for _, row in table.iterrows()
    ]
    assert segments(axes) == expected


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (points({"all runs": {1: 1.0}}, 1), {"time_cost", "speedup", "efficiency"}),
        (points({"all runs": {count: 0.9 * count for count in range(1, 21)}}), set()),
        (points({f"series-{number}": AMDAHL for number in range(12)}, 1), set()),
    ],
    ids=["one point", "20 points", "12 series"],
)
def test_any_number_of_points_and_series_is_drawn(
    tmp_path: Path, table: pd.DataFrame, names: set[str]
) -> None:
    epochs = curves([1, 2], 3, 20, list(dict.fromkeys(table["series"])))
    study = section(tmp_path, table, epochs=epochs, target_accuracy=0.9)
    draw(study)
    drawn = {path.stem for path in study.figures.glob("*.svg")}
    assert drawn == FIGURES.keys() - names
    assert drawn == {path.stem for path in study.figures.glob("*.pdf")}


def test_bars_of_a_step_are_as_high_as_the_device_time_of_a_sample(tmp_path: Path) -> None:
    table = points({"all runs": {1: 1.0, 2: 1.6, 4: 2.5}})
    axes = axes_of("step", section(tmp_path, table))
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    tops = {round(bar.get_y() + bar.get_height(), 3) for bar in bars}
    heights = 1e6 * table["devices"] / table["throughput_samples_per_second"]
    assert {round(height, 3) for height in heights} <= tops
    assert {round(0.8 * height, 3) for height in heights} <= tops


def test_a_learning_curve_is_the_median_of_the_repeats_with_their_range(tmp_path: Path) -> None:
    table = points({"all runs": {1: 1.0}})
    axes = axes_of("accuracy", section(tmp_path, table, epochs=curves([1, 4], 3, 4), target_accuracy=0.9))
    medians = [100 * (1 - 0.5**epoch - 0.01) for epoch in range(1, 5)]
    *lines, target = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert lines == [pytest.approx(medians)] * 2
    assert target == [90, 90]
    edges = np.asarray(axes.patches[0].get_path().vertices)[:, 1]
    assert (edges.min(), edges.max()) == pytest.approx((100 * (0.5 - 0.02), 100 * (1 - 0.5**4)))


def test_figures_hold_nothing_else_and_no_id_of_two_is_equal(tmp_path: Path) -> None:
    table = points({"a": AMDAHL, "b": AMDAHL})
    draw(section(tmp_path / "1", table))
    draw(section(tmp_path / "other", table, name="other"))
    texts = [
        path.read_text() for name in ("1", "other") for path in (tmp_path / name / "figures").glob("*.svg")
    ]
    found = [each for text in texts for each in set(re.findall(r'\bid="([^"]+)"', text))]
    assert len(found) == len(set(found))
    for text in texts:
        root = fromstring(text)
        assert root.get("role") == "img"
        assert str(root.get("aria-label")).startswith("A study: ")
        assert not re.search(r"https?://(?!www\.w3\.org)|<script|<image", text)
