"""The table for a proposal: what computing centres ask for, ready to be pasted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from tests.unit.analysis.planted_proposal import experiment, planted_results, planted_runs, spec_of
from tests.unit.analysis.planted_proposal import write as proposal_of
from tests.unit.analysis.planted_tables import ALONE, decision_on, make_runs, results, spread
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.proposal.folder import write_proposal
from scalewise.analysis.proposal.markup import latex_text
from scalewise.analysis.scaling import scaling_table

RATES = {1: 100.0, 2: 190.0, 4: 300.0, 8: 400.0}


@pytest.fixture
def runs() -> pd.DataFrame:
    """Two series of four points; 8 devices of the second have no result."""
    points: dict[tuple[str, int], list[float | str]] = {
        (series, n): list(spread(r)) for series in ("view_off", "view_on") for n, r in RATES.items()
    }
    points["view_on", 8] = ["out-of-memory"] * 3
    runs = make_runs(points)
    runs["wall_seconds"] = 120 + 600_000 / runs["throughput_samples_per_second"]
    runs["device_hours"] = runs["wall_seconds"] * runs["devices"] / 3600
    return runs


@pytest.fixture
def scaling(runs: pd.DataFrame) -> pd.DataFrame:
    return scaling_table(runs, "strong")


@pytest.fixture
def decision(runs: pd.DataFrame) -> Decision:
    return decision_on(runs, name="digits_strong")


def write(scaling: pd.DataFrame, decision: Decision, folder: Path) -> None:
    made = results(scaling, folder=folder, name=decision.experiment, decision=decision.as_dict())
    write_proposal(made, experiment(), spec_of())


@pytest.fixture
def written(scaling: pd.DataFrame, decision: Decision, tmp_path: Path) -> Path:
    write(scaling, decision, tmp_path)
    return tmp_path / "proposal"


def test_a_program_reads_every_point_unrounded_with_its_bounds(written: Path) -> None:
    table = pd.read_csv(written / "table.csv")
    assert len(table) == 8
    chosen = table[table["recommended"]]
    assert chosen["devices"].tolist() == [4]
    row = chosen.iloc[0]
    assert (row["series"], row["nodes"], row["n"]) == ("view_off", 1, 3)
    assert row["speedup"] == pytest.approx(3.0)
    assert row["speedup_low"] == pytest.approx(welch_bounds(spread(300), spread(100))[0])
    assert row["wall_seconds"] == pytest.approx(2120, rel=1e-3)
    assert row["device_hours"] == pytest.approx(2120 * 4 / 3600, rel=1e-3)
    assert {"wall_seconds_high", "parallel_efficiency_low"} <= set(table.columns)


def test_a_page_shows_time_speedup_efficiency_and_device_hours_with_intervals(written: Path) -> None:
    text = (written / "proposal.md").read_text(encoding="utf-8")
    low, high = welch_bounds(spread(300), spread(100))
    assert (
        "| devices | nodes | n | total time (min) | samples/s, steps | speedup, steps | efficiency, steps | "
        "device-hours |"
    ) in text
    assert (
        "| **4** | **1** | **3** | **35.3** [34.5 to 36.2] | **300** [293 to 308] "
        f"| **3.00** [{low:.2f} to {high:.2f}] | **0.75** [{low / 4:.2f} to {high / 4:.2f}] | **2.36** |"
    ) in text
    assert "| 1 | 1 | 3 | 102 [99.5 to 105] | 100 [97.5 to 103] | 1.00 | 1.00 | 1.70 |" in text


def test_the_method_names_the_clock_and_the_baselines_absolute_figure(written: Path) -> None:
    text = (written / "proposal.md").read_text(encoding="utf-8")
    method = next(line for line in text.splitlines() if line.startswith("Each row"))
    assert "geometric mean of n runs" in method
    assert "95 % intervals by Student's t on logarithms" in method
    assert (
        "Speedup and efficiency compare the throughput of training steps, relative to 1 "
        "device, 100 samples/s." in method
    )


def test_a_requirement_by_total_time_makes_all_speedups_those_of_total_times(tmp_path: Path) -> None:
    runs = planted_runs()
    spec = spec_of("csc-roihu")
    folder = proposal_of(tmp_path, spec, planted_results(tmp_path, runs))
    text = (folder / "proposal.md").read_text(encoding="utf-8")
    # the start-up of 20 s does not scale
    speedup = (20 + 600_000 / 400) / (20 + 600_000 / 1270)
    assert "| speedup, total time | efficiency, total time |" in text
    assert f"| **{speedup:.2f}** [" in text
    assert "compare total times of whole runs, relative to 4 GPUs, 25.3 min." in text
    assert f"By total time they are {speedup:.2f} times as fast as 4 GPUs" in text
    assert "parallel efficiency by total time against nodes" in text
    checklist = (folder / "checklist.md").read_text(encoding="utf-8")
    assert "`table.csv`, columns `wall_speedup`, `wall_efficiency`" in checklist
    row = pd.read_csv(folder / "table.csv").set_index("devices").loc[16]
    assert row["speedup"] == pytest.approx(1270 / 400)
    assert row["wall_speedup"] == pytest.approx(speedup, rel=1e-3)
    assert row["wall_efficiency"] == pytest.approx(speedup / 4, rel=1e-3)


@pytest.mark.parametrize(("seconds", "of"), [(7.0, ""), (900.0, "dominates")])
def test_a_start_up_has_figures_that_agree_and_stands_first_if_it_dominates(
    tmp_path: Path, seconds: float, of: str
) -> None:
    runs = planted_runs(preparation_seconds=seconds, imports_seconds=0.0, first_step_seconds=0.0)
    runs["train_seconds"] = 20.0
    folder = proposal_of(tmp_path, spec_of("csc-roihu"), planted_results(tmp_path, runs))
    text = (folder / "proposal.md").read_text(encoding="utf-8")
    found = re.search(r"at most (\S+) % of a run: (\S+) of (\S+) \w+ on", text)
    assert found
    share, begun, wall = found.groups()
    assert float(begun) / float(wall) == pytest.approx(float(share) / 100, rel=0.02)
    verdict = text.index("1 to 2 nodes")
    hidden = text.find("so total times hide how the training scales. Make the runs longer.")
    assert 0 < hidden < verdict if of else hidden < 0


def test_small_memory_has_a_readable_unit(tmp_path: Path) -> None:
    runs = planted_runs(peak_memory_bytes=31e6)
    folder = proposal_of(tmp_path, spec_of(), planted_results(tmp_path, runs))
    text = (folder / "proposal.md").read_text(encoding="utf-8")
    assert "| memory a GPU (MB) |" in text
    assert "| 31.0 |" in text


def test_the_text_shows_the_decided_series_and_the_table_all(
    scaling: pd.DataFrame, decision: Decision, tmp_path: Path
) -> None:
    write(scaling, replace(decision, series="view_on", devices=2), tmp_path)
    text = (tmp_path / "proposal/proposal.md").read_text(encoding="utf-8")
    assert "*Scaling: digits_strong, view_on. The recommended row is in bold.*" in text
    assert "| **2** |" in text
    assert "| 8 | – | 0 | – | – | – | – | – |" in text, "what has no result is not left out"
    assert "view_off" not in text
    assert pd.read_csv(tmp_path / "proposal/table.csv")["series"].unique().tolist() == ["view_on", "view_off"]


def test_latex_is_balanced_and_escaped(written: Path) -> None:
    text = (written / "proposal.tex").read_text(encoding="utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    unescaped = re.sub(r"\\[\\&%$#_{}]", "", body)
    assert unescaped.count("{") == unescaped.count("}")
    assert not re.search(r"[%#$_^]", unescaped)
    for name in ("document", "table", "tabular", "center"):
        assert body.count(f"\\begin{{{name}}}") == body.count(f"\\end{{{name}}}") > 0
    assert body.isascii()
    assert set(re.findall(r"\\usepackage(?:\[.*?\])?\{(\w+)\}", body)) == {
        "fontenc",
        "geometry",
        "array",
        "booktabs",
        "graphicx",
    }
    rows = [line for line in body.split("table}")[1].splitlines() if "\\\\" in line]
    assert {re.sub(r"\\&", "", row).count("&") for row in rows} == {7}
    assert len(rows) == 2 + 4 + 4, "headings in two lines, the points, and the bounds of those that have any"
    labels = re.findall(r"\\label\{(.*)\}", body)
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 50% of {x} #1 $", r"a\_b \& 50\% of \{x\} \#1 \$"),
        ("a\\b~c^d", r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d"),
    ],
)
def test_what_latex_would_read_as_a_command_is_made_plain(text: str, escaped: str) -> None:
    assert latex_text(text) == escaped


@pytest.mark.parametrize(("seconds", "unit", "shown"), [(59.0, "s", "59.0"), (36_000.0, "h", "10.0")])
def test_times_are_read_in_the_unit_that_fits_them(
    tmp_path: Path, seconds: float, unit: str, shown: str
) -> None:
    runs = make_runs({(ALONE, 1): [100.0], (ALONE, 2): [190.0]}, wall_seconds=seconds)
    scaling = scaling_table(runs, "strong")
    write(scaling, decision_on(runs), tmp_path)
    text = (tmp_path / "proposal/proposal.md").read_text(encoding="utf-8")
    assert f"total time ({unit})" in text
    assert f"| {shown} |" in text
    assert "one run has no interval" in text


def test_published_walls_are_told_as_walls(tmp_path: Path) -> None:
    runs = pd.DataFrame({"devices": [1, 2, 4], "wall_seconds": [151.0, 111.0, 96.0]})
    runs = runs.assign(experiment="palmetto", series=ALONE, outcome="completed")
    scaling = scaling_table(runs, "strong")
    write(scaling, decision_on(runs, name="palmetto"), tmp_path)
    text = (tmp_path / "proposal/proposal.md").read_text(encoding="utf-8")
    assert "compare total times of whole runs, relative to 1 device, 151 s." in text
    assert "| 2 | – | 1 | 111 | – | 1.36 | 0.68 | 0.0617 |" in text
    assert "warm-up" not in text


def test_a_study_without_a_result_still_has_its_table(tmp_path: Path) -> None:
    runs = make_runs({(ALONE, 1): ["failed"], (ALONE, 2): ["failed"]})
    scaling = scaling_table(runs, "strong")
    write(scaling, decision_on(runs), tmp_path)
    text = (tmp_path / "proposal/proposal.md").read_text("utf-8")
    assert "There is no baseline, and so no speedup." in text
