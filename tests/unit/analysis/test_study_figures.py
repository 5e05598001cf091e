"""Figures that say what they show, for every kind of study."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.unit.analysis.planted_tables import ALONE, make_epochs, make_runs, results, spread

from scalewise.analysis.report import drawing, epoch_figures, style
from scalewise.analysis.report import scaling_figures as relative
from scalewise.analysis.report.efficiency_figures import efficiency
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.scaling import scaling_table
from scalewise.plan.runs.runs import shown_names

pytestmark = pytest.mark.slow

NO_RUN = ": no completed run to show"
FILES = {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "pdf")} | {"traces.json"}


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return make_runs({(ALONE, 1): spread(100), (ALONE, 2): spread(180), (ALONE, 4): spread(310)})


def draw(runs: pd.DataFrame, epochs: pd.DataFrame, folder: Path, device: str = "device") -> dict[str, bytes]:
    scaling = scaling_table(runs, "strong")
    decision = {"device": device}
    fields: dict[str, Any] = {"epochs": epochs, "min_efficiency": 0.7, "target": 0.97}
    drawing.draw(results(scaling, runs, folder=folder, decision=decision, **fields))
    return {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}


def words(axes: Axes) -> set[str]:
    return {text.get_text() for text in axes.texts}


def ticks(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def named(figure: Figure) -> list[str]:
    """Labels of the one legend, which lies below the panels."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


@pytest.mark.slow
def test_figures_are_files_of_text_and_shapes_and_equal_data_make_equal_ones(
    runs: pd.DataFrame, tmp_path: Path
) -> None:
    first, second = (draw(runs, make_epochs(runs), tmp_path / "new" / name) for name in ("one", "two"))
    assert first.keys() == FILES
    assert len(FILES) == 21
    assert [name for name in FILES if first[name] != second[name]] == []
    for name in FILES - {"traces.json"}:
        content = first[name]
        assert content.startswith(b"%PDF" if name.endswith("pdf") else b"<svg"), name
        assert len(content) > (2500 if name.split(".")[0] not in {"prediction", "splits"} else 500), name
        if name.endswith("svg"):
            assert b"<text" in content, name
            assert b"<image" not in content, name
            assert b"@import" not in content, name
            assert b"://" not in content.replace(b'"http://www.w3.org/', b'"'), name


def test_throughput_shows_means_bounds_and_single_runs(runs: pd.DataFrame) -> None:
    (axes,) = drawing.throughput(scaling_table(runs, "strong"), runs).axes
    assert axes.get_xlabel() == "devices"
    assert axes.get_ylabel() == "throughput (samples/s)"
    assert ticks(axes) == ["1", "2", "4"]
    (rings,) = (line for line in axes.lines if line.get_markerfacecolor() == "none")
    assert np.size(rings.get_xdata()) == 9
    assert axes.get_ylim()[1] > 1.01 * 310, "every ring is in the panel"
    (line,) = (
        line for line in axes.lines if len(np.atleast_1d(line.get_ydata())) == 3 and line.get_marker() == "o"
    )
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([100.0, 180.0, 310.0], rel=0.01)
    assert axes.get_ylim()[0] == 0


def test_speedup_is_drawn_against_the_ideal_and_names_its_baseline(runs: pd.DataFrame) -> None:
    (axes,) = relative.speedup(scaling_table(runs, "strong")).axes
    assert axes.get_ylabel() == "speedup over 1 device"
    assert "ideal" in words(axes)
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [1.0, 2.0, 4.0]
    runs = make_runs({(ALONE, 2): spread(100), (ALONE, 6): spread(240)})
    (axes,) = relative.speedup(scaling_table(runs, "strong")).axes
    assert axes.get_ylabel() == "speedup over 2 devices"
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == [1.0, 3.0]


def test_series_with_different_baselines_each_have_their_ideal_line() -> None:
    other = f"{ALONE} (device model H100)"
    runs = make_runs(
        {(ALONE, 1): spread(100), (ALONE, 4): spread(310), (other, 2): spread(400), (other, 4): spread(700)}
    )
    figure = relative.speedup(scaling_table(runs, "strong"))
    (axes,) = figure.axes
    assert axes.get_ylabel() == "speedup over the series' baseline"
    ideal = [np.asarray(line.get_ydata()).tolist() for line in axes.lines if line.get_linestyle() == ":"]
    assert ideal[:2] == [[1.0, 2.0, 4.0], [1.0, 2.0]]
    assert named(figure) == ["all other runs", other]
    assert figure.series == [ALONE, other], "the legend hides with its series"
    assert shown_names(["bf16", "bf16 (A100)"]) == ["bf16 (all other runs)", "bf16 (A100)"]


def test_efficiency_shows_what_was_asked_for(runs: pd.DataFrame) -> None:
    figure = efficiency(scaling_table(runs, "strong"), 0.85)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "parallel efficiency"
    assert {"ideal: 100 %", "required: 85 %"} <= words(axes)
    figure.draw_without_rendering()
    assert all(label.get_text().endswith("%") for label in axes.get_yticklabels())


def test_memory_has_its_unit_and_says_what_it_counts(runs: pd.DataFrame) -> None:
    (axes,) = drawing.memory(scaling_table(runs, "strong"), runs).axes
    assert axes.get_ylabel() == "peak memory per device (MB)\nprocess peak RSS"
    drawn = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert [700.0] * 3 in drawn


def test_loss_curves_are_of_both_splits_by_device_count(runs: pd.DataFrame) -> None:
    epochs = make_epochs(runs)
    figure = epoch_figures.loss(epochs)
    assert [axes.get_xlabel() for axes in figure.axes] == ["epoch", "training time (s)"] * 2
    assert [axes.get_ylabel() for axes in figure.axes] == ["test loss", "", "training loss", ""]
    assert named(figure) == ["1", "2", "4"]
    test, training = figure.axes[0].get_ylim(), figure.axes[2].get_ylim()
    assert figure.axes[1].get_ylim() == test
    assert test[1] > epochs["test_loss"].max()
    assert test != training, "each loss has an axis that fits it"


def test_a_loss_that_falls_to_a_third_has_a_logarithmic_axis(runs: pd.DataFrame) -> None:
    epochs = make_epochs(runs)
    assert epochs["test_loss"].max() / epochs["test_loss"].min() > 3
    assert {axes.get_yscale() for axes in epoch_figures.loss(epochs).axes} == {"log"}
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


@pytest.mark.parametrize(
    ("repeats", "said"), [([3, 3], "median of n = 3 runs"), ([2, 3], "n = 2 to 3"), ([1, 1], "n = 1")]
)
def test_a_figure_of_curves_says_of_how_many_runs_they_are_and_what_a_device_is(
    tmp_path: Path, repeats: list[int], said: str
) -> None:
    """A figure that is printed in a paper comes without the caption of the page."""
    points = {(ALONE, d): [100.0 * d] * n for d, n in zip((1, 2), repeats, strict=True)}
    runs = make_runs(points)
    for device, devices in (("CPU process", "CPU processes"), ("GPU", "GPUs")):
        draw(runs, make_epochs(runs), tmp_path, device)
        for name in ("accuracy", "loss"):
            (title,) = re.findall(
                rf">({devices} \(.*?)</text>", (tmp_path / "figures" / f"{name}.svg").read_text()
            )
            assert said in title


def test_against_seconds_a_curve_is_as_long_as_its_training_took(runs: pd.DataFrame) -> None:
    epochs = make_epochs(runs)
    epochs.loc[epochs["devices"] == 1, "elapsed_train_seconds"] *= np.repeat([0.9, 1, 1.2], 4)
    by_epoch, by_time = epoch_figures.accuracy(epochs, None).axes
    on_one = epochs[(epochs["devices"] == 1) & (epochs["repeat"] == 2)]
    assert list(curve(by_time, 1)) == pytest.approx(list(on_one["elapsed_train_seconds"])), "the median"
    assert list(curve(by_time, 1).values()) == list(curve(by_epoch, 1).values())
    # the bars reach from the fastest repeat to the slowest
    bars = np.asarray([path.vertices for path in by_time.collections[1].get_paths()])
    ends = epochs[epochs["devices"] == 1].groupby("epoch")["elapsed_train_seconds"].agg(["min", "max"])
    assert bars[:, :, 0].tolist() == pytest.approx(ends.to_numpy())
    assert by_time.get_xlim()[0] == 0


def test_trainings_of_very_different_length_have_a_logarithmic_axis_that_all_panels_share() -> None:
    runs = pd.concat(
        make_runs({(f"cpus-per-device-{cpus}", d): spread(100 * rate * d) for d in (1, 2)}).assign(
            cpus_per_device=cpus
        )
        for cpus, rate in ((1, 1), (8, 5))
    )
    shown = epoch_figures.accuracy(make_epochs(runs), 0.9).axes[2:]
    assert {axes.get_xscale() for axes in shown} == {"log"}
    assert len({axes.get_xlim() for axes in shown}) == 1


def test_a_sweep_of_cpus_has_a_panel_for_each_number(tmp_path: Path) -> None:
    runs = pd.concat(
        [
            make_runs({(f"cpus-per-device-{cpus}", d): spread(100 * cpus * d) for d in (1, 2)}).assign(
                cpus_per_device=cpus
            )
            for cpus in (1, 2)
        ],
        ignore_index=True,
    )
    epochs = make_epochs(runs)
    names = ["1 CPU per device", "2 CPUs per device"]
    figure = epoch_figures.accuracy(epochs, 0.9)
    assert titles(figure) == [*names, "", ""]
    assert [len(words(axes)) for axes in figure.axes] == [0, 1, 0, 1], "the target is named at the right"
    assert len({axes.get_xlim() for axes in figure.axes[2:]}) == 1, "times can be compared"
    figure = epoch_figures.loss(epochs)
    assert titles(figure) == [*names, *[""] * 6]
    labels = ["test loss", "", "test loss", "", "training loss", "", "training loss", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == labels
    assert len({axes.get_ylim() for axes in figure.axes[:4]}) == 1, "panels can be compared"
    assert draw(runs, epochs, tmp_path).keys() == FILES


def curve(axes: Axes, devices: int) -> dict[float, float]:
    (line,) = (line for line in axes.lines if line.get_label() == str(devices))
    return dict(zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True))


def faded(axes: Axes) -> list[list[float]]:
    return [
        np.asarray(line.get_xdata()).tolist()
        for line in axes.lines
        if line.get_alpha() == epoch_figures.FADED and np.size(line.get_xdata()) > 1
    ]


def test_repeats_that_stop_early_leave_a_curve_that_says_from_where() -> None:
    """At the target: the repeats that go on are not those that were fast."""
    epochs = make_epochs(make_runs({(ALONE, 1): spread(100), (ALONE, 2): spread(180)}), 6)
    stopped = (epochs["devices"] == 2) & (epochs["epoch"] > 2 + 2 * (epochs["repeat"] - 1))
    epochs = epochs[~stopped]
    figure = epoch_figures.loss(epochs)
    for axes in figure.axes[::2]:
        assert list(curve(axes, 1)) == [1, 2, 3, 4, 5, 6]
        assert list(curve(axes, 2)) == [1, 2]
        assert faded(axes) == [[2, 3, 4, 5, 6]]
    tail = next(line for line in figure.axes[2].lines if line.get_alpha() and np.size(line.get_xdata()) > 1)
    # repeats 2 and 3 have epochs 3 and 4, repeat 3 alone has 5 and 6
    assert np.asarray(tail.get_ydata()).tolist() == pytest.approx(
        [2 / 2 + 0.02, 2 / 3 + 0.025, 2 / 4 + 0.025, 2 / 5 + 0.03, 2 / 6 + 0.03]
    )


def test_a_curve_is_the_median_of_its_repeats() -> None:
    epochs = make_epochs(make_runs({(ALONE, 1): spread(100)}))
    epochs.loc[epochs["repeat"] == 3, "test_accuracy"] = 0.01
    axes, _ = epoch_figures.accuracy(epochs, None).axes
    assert curve(axes, 1) == {epoch: pytest.approx(1 - 0.5 / epoch) for epoch in (1, 2, 3, 4)}
    assert faded(axes) == []


def test_every_column_of_panels_has_its_axis_named_where_the_last_row_is_shorter() -> None:
    runs = make_runs({(f"series-{index}", d): spread(100 * d) for index in range(6) for d in (1, 2)})
    figure = epoch_figures.accuracy(make_epochs(runs), None)
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in drawn] == ["epoch"] * 6
    assert [axes.get_ylabel() for axes in drawn] == ["test accuracy", "", "", "", "test accuracy", ""]
    assert named(figure) == ["1", "2"]


def test_series_are_told_apart_by_colour_marker_and_name() -> None:
    runs = make_runs(
        {(series, d): spread(100 * d) for series in ("bucket-view-off", "bucket-view-on") for d in (1, 2, 4)}
    )
    figure = drawing.throughput(scaling_table(runs, "strong"), runs)
    (axes,) = figure.axes
    assert named(figure) == ["bucket-view-off", "bucket-view-on"]
    marked = [
        line for line in axes.lines if line.get_marker() in style.MARKERS and np.size(line.get_xdata()) == 3
    ]
    assert len({line.get_marker() for line in marked}) == 2
    assert len({line.get_linestyle() for line in marked}) == 2
    assert len({line.get_color() for line in marked}) == 2
    # equal values of two series do not hide each other
    assert np.asarray(marked[0].get_xdata()).tolist() != np.asarray(marked[1].get_xdata()).tolist()
    curves = epoch_figures.accuracy(make_epochs(runs), None)
    assert titles(curves)[:2] == ["bucket-view-off", "bucket-view-on"]


def test_many_device_counts_have_a_logarithmic_axis(tmp_path: Path) -> None:
    counts = [1, 2, 4, 8, 16, 32, 64]
    runs = make_runs({(ALONE, count): spread(100 * count**0.9) for count in counts})
    scaling = scaling_table(runs, "strong")
    for figure in (relative.speedup(scaling), efficiency(scaling, 0.7), drawing.memory(scaling, runs)):
        (axes,) = figure.axes
        assert axes.get_xscale() == "log"
        assert ticks(axes) == [str(count) for count in counts]
    assert draw(runs, make_epochs(runs), tmp_path).keys() == FILES
    (axes,) = relative.speedup(scaling[:3]).axes
    assert axes.get_xscale() == "linear", "few counts"


@pytest.mark.slow
def test_one_run_of_one_epoch_on_one_device_count_is_drawn(tmp_path: Path) -> None:
    runs = make_runs({(ALONE, 2): [100.0]})
    files = draw(runs, make_epochs(runs, 1), tmp_path)
    assert files.keys() == FILES
    assert len(files["throughput.svg"]) > len(files["efficiency.svg"]), "there is no efficiency to show"


@pytest.mark.slow
def test_without_a_completed_run_every_figure_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[set[str]] = []
    save = Figure.savefig

    def note(figure: Figure, path: Path, **options: Any) -> None:
        saved.append({text for axes in figure.axes for text in words(axes)})
        save(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", note)
    runs = make_runs({(ALONE, 1): ["failed"], (ALONE, 2): ["not run yet"]})
    assert draw(runs, make_epochs(runs), tmp_path).keys() == FILES
    others = {"prediction": ": nothing was predicted", "splits": ": no trainings were planned"}
    said = [name + others.get(name, NO_RUN) for name in FIGURES]
    assert [{text} for text in said] == saved


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
@pytest.mark.slow
def test_a_run_that_diverged_does_not_keep_the_others_from_being_drawn(
    runs: pd.DataFrame, tmp_path: Path, loss: float
) -> None:
    epochs = make_epochs(runs)
    epochs.loc[epochs["run"] == epochs["run"].iloc[-1], ["train_loss", "test_loss"]] = loss
    assert draw(runs, epochs, tmp_path).keys() == FILES
