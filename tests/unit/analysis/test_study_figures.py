"""Figures that say what they show for every kind of study, and why a training stops scaling."""

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
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from tests.unit.analysis import planted_tables as planted
from tests.unit.analysis.planted_tables import ONLY, make_epochs, make_runs, results, spread

from scalewise.analysis.bottlenecks.time_parts import STEP_PARTS, UNKNOWN
from scalewise.analysis.report import (
    drawing,
    efficiency_figures,
    epoch_figures,
    scaling_figures,
    step_figures,
    style,
)
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.report.marks import Drawing
from scalewise.analysis.report.svg_file import draw_svg
from scalewise.analysis.scaling import scaling_table
from scalewise.plan.runs.runs import shown_names

pytestmark = pytest.mark.slow

TWO = ["bucket-view-off", "bucket-view-on"]
NO_RUN = ": no completed run to show"
FILES = {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "pdf")} | {"traces.json"}


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return make_runs({(ONLY, 1): spread(100), (ONLY, 2): spread(180), (ONLY, 4): spread(310)})


def draw(runs: pd.DataFrame, epochs: pd.DataFrame, folder: Path, device: str = "device") -> dict[str, bytes]:
    scaling = scaling_table(runs)
    decision = {"device": device}
    fields: dict[str, Any] = {"epochs": epochs, "min_efficiency": 0.7, "target": 0.97}
    drawing.draw(results(scaling, runs, folder=folder, decision=decision, **fields))
    return {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}


def words(axes: Axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


def x_of(line: Line2D) -> list[float]:
    return np.asarray(line.get_xdata()).tolist()  # type: ignore[no-any-return]


def y_of(line: Line2D) -> list[float]:
    return np.asarray(line.get_ydata()).tolist()  # type: ignore[no-any-return]


def marks(axes: Axes) -> Line2D:
    (line,) = (line for line in axes.lines if line.get_marker() == "o" and np.size(line.get_xdata()) > 1)
    return line


def ticks(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def named(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def test_figures_are_files_of_text_and_shapes_and_equal_data_make_equal_ones(
    runs: pd.DataFrame, tmp_path: Path
) -> None:
    first, second = (draw(runs, make_epochs(runs), tmp_path / name, "GPU") for name in ("one", "two"))
    assert first.keys() == FILES
    assert len(FILES) == 17
    assert [name for name in FILES if first[name] != second[name]] == []
    for name in FILES - {"traces.json"}:
        content = first[name]
        assert content.startswith(b"%PDF" if name.endswith("pdf") else b"<svg"), name
        assert len(content) > (2500 if name.split(".")[0] != "splits" else 500), name
        if name.endswith("svg"):
            assert b"<text" in content, name
            assert not re.search(b"<image|@import", content), name
            assert b"://" not in content.replace(b'"http://www.w3.org/', b'"'), name
        else:
            box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", content)
            assert box is not None, name
            assert round(float(box[1]) / 72 * 25.4) in {85, 178}, "the width of one column or of two"
    for name in ("accuracy.svg", "loss.svg"):
        assert b">GPUs (median of n = 3 runs" in first[name], name
        assert b"device" not in first[name], name


def test_throughput_and_memory_show_means_and_single_runs_with_their_units(runs: pd.DataFrame) -> None:
    (axes,) = drawing.memory(scaling_table(runs), runs).axes
    assert axes.get_ylabel() == "peak memory per device (MB)\nprocess peak RSS"
    assert [700.0] * 3 in map(y_of, axes.lines)
    (axes,) = drawing.throughput(scaling_table(runs), runs).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("devices", "throughput (samples/s)")
    assert ticks(axes) == ["1", "2", "4"]
    (rings,) = (line for line in axes.lines if line.get_markerfacecolor() == "none")
    assert np.size(rings.get_xdata()) == 9
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 1.01 * 310, "every ring is in the panel"


@pytest.mark.parametrize(("counts", "baseline"), [((1, 2, 4), "1 device"), ((2, 6), "2 devices")])
def test_speedup_is_drawn_against_the_ideal_and_names_its_baseline(
    counts: tuple[int, ...], baseline: str
) -> None:
    runs = make_runs({(ONLY, count): spread(90 * count) for count in counts})
    (axes,) = scaling_figures.speedup(scaling_table(runs)).axes
    assert axes.get_ylabel() == f"speedup over {baseline}"
    assert "ideal" in words(axes)
    assert y_of(axes.lines[0]) == [count / counts[0] for count in counts]


def test_series_with_different_baselines_each_have_their_ideal_line() -> None:
    other = f"{ONLY} (device model H100)"
    runs = make_runs(
        {(ONLY, 1): spread(100), (ONLY, 4): spread(310), (other, 2): spread(400), (other, 4): spread(700)}
    )
    figure = scaling_figures.speedup(scaling_table(runs))
    (axes,) = figure.axes
    assert axes.get_ylabel() == "speedup over the series' baseline"
    ideal = [y_of(line) for line in axes.lines if line.get_linestyle() == ":"]
    assert ideal[:2] == [[1.0, 2.0, 4.0], [1.0, 2.0]]
    assert named(figure) == ["all other runs", other]
    assert figure.series == [ONLY, other], "the legend hides with its series"
    assert shown_names(["bf16", "bf16 (A100)"]) == ["bf16 (all other runs)", "bf16 (A100)"]


def test_efficiency_shows_what_is_required_if_something_is(scaled: pd.DataFrame) -> None:
    figure = efficiency_figures.efficiency(scaled, 0.725)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "parallel efficiency"
    assert words(axes) == {"ideal: 100 %", "required: 72.5 %"}
    figure.draw_without_rendering()
    assert all(label.get_text().endswith("%") for label in axes.get_yticklabels())
    assert texts(efficiency_figures.efficiency(scaled, None)) == ["ideal: 100 %"]


def test_losses_are_of_both_splits_by_device_count_and_logarithmic_if_they_fall_to_a_third(
    runs: pd.DataFrame,
) -> None:
    epochs = make_epochs(runs)
    figure = epoch_figures.loss(epochs)
    assert [axes.get_xlabel() for axes in figure.axes] == ["epoch", "training time (s)"] * 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["test loss", "", "training loss", ""]
    assert named(figure) == ["1", "2", "4"]
    test, training = figure.axes[0].get_ylim(), figure.axes[2].get_ylim()
    assert figure.axes[1].get_ylim() == test
    assert test[1] > epochs["test_loss"].max()
    assert test != training, "each loss has an axis that fits it"
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    flat = epochs.assign(test_loss=1 + epochs["test_loss"], train_loss=epochs["train_loss"] - 0.6)
    scales = [axes.get_yscale() for axes in epoch_figures.loss(flat).axes]
    assert scales == ["linear"] * 4, "a loss at or below zero has no logarithm"


def test_accuracy_curves_show_the_target(runs: pd.DataFrame) -> None:
    figure = epoch_figures.accuracy(make_epochs(runs), 0.975)
    left, right = figure.axes
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", ""]
    assert [words(left), words(right)] == [set(), {"target\n97.5 %"}]
    figure.draw_without_rendering()
    (label,) = right.texts
    assert label.get_window_extent().x0 > right.get_window_extent().x1, "it lies across no curve"
    assert [text.get_text() for text in left.get_yticklabels()][-2:] == ["90 %", "100 %"]
    for axes in epoch_figures.accuracy(make_epochs(runs), None).axes:
        assert words(axes) == set()


@pytest.mark.parametrize(("on_one", "number"), [(2, "n = 2 to 3"), (3, "median of n = 3 runs")])
def test_the_legend_of_curves_has_the_number_of_runs(on_one: int, number: str) -> None:
    runs = make_runs({(ONLY, 1): [100.0] * on_one, (ONLY, 2): [200.0] * 3})
    (legend,) = epoch_figures.accuracy(make_epochs(runs), None).legends
    assert number in legend.get_title().get_text()


def test_a_curve_is_the_median_of_its_repeats_and_against_seconds_as_long_as_its_training_took(
    runs: pd.DataFrame,
) -> None:
    epochs = make_epochs(runs)
    epochs.loc[epochs["repeat"] == 3, "test_accuracy"] = 0.01
    epochs.loc[epochs["devices"] == 1, "elapsed_train_seconds"] *= np.repeat([0.9, 1, 1.2], 4)
    by_epoch, by_time = epoch_figures.accuracy(epochs, None).axes
    on_one = epochs[(epochs["devices"] == 1) & (epochs["repeat"] == 2)]
    assert curve(by_epoch, 1) == {epoch: pytest.approx(1 - 0.5 / epoch) for epoch in (1, 2, 3, 4)}
    assert list(curve(by_time, 1)) == pytest.approx(list(on_one["elapsed_train_seconds"]))
    assert list(curve(by_time, 1).values()) == list(curve(by_epoch, 1).values())
    # the bars reach from the fastest repeat to the slowest
    bars = np.asarray([path.vertices for path in by_time.collections[1].get_paths()])
    ends = epochs[epochs["devices"] == 1].groupby("epoch")["elapsed_train_seconds"].agg(["min", "max"])
    assert bars[:, :, 0].tolist() == pytest.approx(ends.to_numpy())
    assert by_time.get_xlim()[0] == 0


def test_a_sweep_of_cpus_has_a_panel_for_each_number() -> None:
    def epochs(faster: float) -> pd.DataFrame:
        """The epochs on 1 CPU, and on 2 that are so many times as fast."""
        points = {
            (f"cpus-per-device-{cpus}", d): spread(100 * rate * d)
            for cpus, rate in ((1, 1.0), (2, faster))
            for d in (1, 2)
        }
        return make_epochs(make_runs(points, cpus_per_device=[1] * 6 + [2] * 6))

    names = ["1 CPU per device", "2 CPUs per device"]
    figure = epoch_figures.accuracy(epochs(2), 0.9)
    assert titles(figure) == [*names, "", ""]
    assert [len(words(axes)) for axes in figure.axes] == [0, 1, 0, 1], "the target is named at the right"
    assert len({axes.get_xlim() for axes in figure.axes[2:]}) == 1, "times can be compared"
    # times that differ much have a logarithmic axis
    scales = [
        {axes.get_xscale() for axes in epoch_figures.accuracy(epochs(faster), 0.9).axes[2:]}
        for faster in (1, 5)
    ]
    assert scales == [{"linear"}, {"log"}]
    figure = epoch_figures.loss(epochs(2))
    assert titles(figure) == [*names, *[""] * 6]
    labels = ["test loss", "", "test loss", "", "training loss", "", "training loss", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == labels
    assert len({axes.get_ylim() for axes in figure.axes[:4]}) == 1, "panels can be compared"


def curve(axes: Axes, devices: int) -> dict[float, float]:
    (line,) = (line for line in axes.lines if line.get_label() == str(devices))
    return dict(zip(x_of(line), y_of(line), strict=True))


def faded(axes: Axes) -> list[Line2D]:
    lines = (line for line in axes.lines if line.get_alpha() == epoch_figures.FADED)
    return [line for line in lines if np.size(line.get_xdata()) > 1]


def test_repeats_that_stop_early_leave_a_curve_that_says_from_where() -> None:
    """At the target: the repeats that go on are not those that were fast."""
    epochs = make_epochs(make_runs({(ONLY, 1): spread(100), (ONLY, 2): spread(180)}), 6)
    stopped = (epochs["devices"] == 2) & (epochs["epoch"] > 2 + 2 * (epochs["repeat"] - 1))
    for axes in epoch_figures.loss(epochs[~stopped]).axes[::2]:
        assert list(curve(axes, 1)) == [1, 2, 3, 4, 5, 6]
        assert list(curve(axes, 2)) == [1, 2]
        (tail,) = faded(axes)
        assert x_of(tail) == [2, 3, 4, 5, 6]
    # repeats 2 and 3 have epochs 3 and 4, only repeat 3 has 5 and 6
    expected = [2 / 2 + 0.02, 2 / 3 + 0.025, 2 / 4 + 0.025, 2 / 5 + 0.03, 2 / 6 + 0.03]
    assert y_of(tail) == pytest.approx(expected)


def test_every_column_of_panels_has_its_axis_named_where_the_last_row_is_shorter() -> None:
    runs = make_runs({(f"series-{index}", d): spread(100 * d) for index in range(6) for d in (1, 2)})
    figure = epoch_figures.accuracy(make_epochs(runs), None)
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in drawn] == ["epoch"] * 6
    assert [axes.get_ylabel() for axes in drawn] == ["test accuracy", "", "", "", "test accuracy", ""]
    assert named(figure) == ["1", "2"]


def test_series_differ_by_color_marker_and_name() -> None:
    runs = make_runs({(series, d): spread(100 * d) for series in TWO for d in (1, 2, 4)})
    figure = drawing.throughput(scaling_table(runs), runs)
    (axes,) = figure.axes
    assert named(figure) == TWO
    first, second = (
        line for line in axes.lines if line.get_marker() in style.MARKERS and np.size(line.get_xdata()) == 3
    )
    assert first.get_marker() != second.get_marker()
    assert first.get_linestyle() != second.get_linestyle()
    assert first.get_color() != second.get_color()
    assert x_of(first) != x_of(second), "equal values of two series do not hide each other"
    assert titles(epoch_figures.accuracy(make_epochs(runs), None))[:2] == TWO


def test_many_device_counts_have_logarithmic_axes(scaled: pd.DataFrame, scaled_runs: pd.DataFrame) -> None:
    counts = [str(count) for count in planted.COUNTS]
    speedup = scaling_figures.speedup(scaled)
    for figure in (speedup, efficiency_figures.efficiency(scaled, 0.7), drawing.memory(scaled, scaled_runs)):
        (axes,) = figure.axes
        assert axes.get_xscale() == "log"
        assert ticks(axes) == counts
    (axes,) = speedup.axes
    assert axes.get_yscale() == "log", "ideal scaling is a straight line"
    assert [label.get_text() for label in axes.get_yticklabels()] == counts
    (axes,) = scaling_figures.speedup(scaled[:3]).axes
    assert axes.get_xscale() == "linear", "few counts"


def test_one_run_of_one_epoch_on_one_device_count_is_drawn(tmp_path: Path) -> None:
    runs = make_runs({(ONLY, 2): [100.0]})
    files = draw(runs, make_epochs(runs, 1), tmp_path)
    assert files.keys() == FILES
    assert len(files["throughput.svg"]) > len(files["efficiency.svg"]), "there is no efficiency to show"


def test_without_a_completed_run_every_figure_states_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[set[str]] = []

    def save(figure: Figure, path: Path, **_: Any) -> None:
        saved.append({*texts(figure)})
        path.touch()

    monkeypatch.setattr(Figure, "savefig", save)
    runs = make_runs({(ONLY, 1): ["failed"], (ONLY, 2): ["not run yet"]})
    assert draw(runs, make_epochs(runs), tmp_path).keys() == FILES
    others = {"splits": ": no trainings were planned"}
    assert saved == [{name + others.get(name, NO_RUN)} for name in FIGURES]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_run_that_diverged_does_not_keep_the_others_from_being_drawn(
    runs: pd.DataFrame, loss: float
) -> None:
    epochs = make_epochs(runs)
    epochs.loc[epochs["run"] == epochs["run"].iloc[-1], ["train_loss", "test_loss"]] = loss
    figure = epoch_figures.loss(epochs)
    assert len(curve(figure.axes[0], 4)) == 4
    assert draw_svg(figure, "Loss")[0].startswith("<svg")


# --- why a training stops scaling -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def scaled_runs() -> pd.DataFrame:
    return planted.with_steps(make_runs(planted.points([ONLY])))


@pytest.fixture(scope="module")
def scaled(scaled_runs: pd.DataFrame) -> pd.DataFrame:
    return scaling_table(scaled_runs)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def bands(axes: Axes) -> int:
    return sum(isinstance(drawn, FillBetweenPolyCollection) for drawn in axes.collections)


def heights(axes: Axes) -> np.ndarray:
    """Of the bars: parts by device counts."""
    bars = [patch.get_height() for patch in axes.patches if isinstance(patch, Rectangle)]
    return np.array(bars).reshape(-1, len(axes.get_xticks()))


def test_a_step_is_shown_in_parts_that_sum_to_device_time_per_sample(
    scaled: pd.DataFrame, scaled_runs: pd.DataFrame
) -> None:
    figure = step_figures.step(scaled, scaled_runs)
    step, start = figure.axes
    parts = heights(step)
    per_sample = scaled["devices"] / scaled["throughput_samples_per_second"] * 1e6
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
    assert "over the bars: ms per step" in texts(figure)
    assert f"{scaled['step_seconds'].iloc[-1] * 1e3:.3g}" in texts(figure)
    hatches = [part.hatch for part in (*STEP_PARTS, UNKNOWN)]
    assert len(set(hatches)) == len(hatches), "they differ in grey"


@pytest.mark.parametrize(
    "unknown",
    [["communication_seconds"], ["step_seconds", *(part.column for part in STEP_PARTS)]],
    ids=["one part", "all of it"],
)
def test_a_part_that_was_not_measured_is_said_to_be_unknown(
    scaled: pd.DataFrame, scaled_runs: pd.DataFrame, unknown: list[str]
) -> None:
    for table in (scaled.assign(**dict.fromkeys(unknown, np.nan)), scaled.drop(columns=unknown)):
        figure = step_figures.step(table, scaled_runs)
        assert named(figure)[5] == "not measured"
        parts = heights(figure.axes[0])
        known = scaled["devices"] / scaled["throughput_samples_per_second"] * 1e6
        assert parts.sum(axis=0) == pytest.approx(known.to_numpy(), rel=0.005)  # a smaller rest is rounding
        assert parts[-1][-1] > 0
    # an unknown jitter is in the communication
    shorter = scaled.assign(loader_seconds=0.9 * scaled["loader_seconds"], jitter_seconds=np.nan)
    assert "not measured" not in named(step_figures.step(shorter, scaled_runs))


def test_device_counts_that_would_touch_leave_out_some_and_never_the_last() -> None:
    counts, width = [*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128, 4096], style.PAGE_MM / 4
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
