"""The numbers of a proposal: table, verdict on each doubling, total in the centre's unit, time of the job."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.planted_proposal import planted_results, planted_runs, spec_of, write
from tests.unit.analysis.planted_tables import ONLY, decision_on, make_runs, read_json, results, spread
from tests.unit.analysis.reference import ratio_bounds

from scalewise.analysis.proposal.answer_job import time_limit
from scalewise.analysis.proposal.markup import latex_text
from scalewise.analysis.proposal.table import time_unit
from scalewise.analysis.proposal.totals import Totals, find_totals
from scalewise.analysis.proposal_files import VERDICTS
from scalewise.analysis.requirement import find_doublings, requirement_sentences, unmet
from scalewise.analysis.scaling import scaling_table
from scalewise.plan.config.centre import Requirement

pytestmark = pytest.mark.slow

RATES = {1: 100.0, 2: 190.0, 4: 300.0, 8: 400.0}


def planted_series() -> pd.DataFrame:
    """Two series of four points; 8 devices of the second have no result."""
    points: dict[tuple[str, int], list[float | str]] = {
        (series, n): list(spread(r)) for series in ("view_off", "view_on") for n, r in RATES.items()
    }
    points["view_on", 8] = ["out-of-memory"] * 3
    runs = make_runs(points)
    runs["wall_seconds"] = 120 + 600_000 / runs["throughput_samples_per_second"]
    runs["device_hours"] = runs["wall_seconds"] * runs["devices"] / 3600
    return runs


def write_table(runs: pd.DataFrame, folder: Path, **changed: Any) -> Path:
    """Write the proposal of runs; ``changed`` are parts of their decision."""
    decision = replace(decision_on(runs, name="digits_strong"), **changed)
    made = results(
        scaling_table(runs, "strong"), folder=folder, name="digits_strong", decision=decision.as_dict()
    )
    return write(folder, made=made, figures=False)


def written_text(runs: pd.DataFrame, folder: Path, centre: str = "generic") -> str:
    """Return the text of the proposal of the study on nodes with these runs."""
    written = write(folder, spec_of(centre), planted_results(folder, runs), figures=False)
    return (written / "proposal.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(planted_series(), tmp_path_factory.mktemp("series"))


def test_a_program_reads_every_point_unrounded_with_its_bounds(written: Path) -> None:
    table = pd.read_csv(written / "table.csv")
    assert len(table) == 8
    chosen = table[table["recommended"]]
    assert chosen["devices"].tolist() == [4]
    row = chosen.iloc[0]
    assert (row["series"], row["nodes"], row["n"]) == ("view_off", 1, 3)
    assert row["speedup"] == pytest.approx(3.0)
    assert row["speedup_low"] == pytest.approx(ratio_bounds(spread(300), spread(100))[0])
    assert row["wall_seconds"] == pytest.approx(2120, rel=1e-3)
    assert row["device_hours"] == pytest.approx(2120 * 4 / 3600, rel=1e-3)
    assert {"wall_seconds_high", "parallel_efficiency_low"} <= set(table.columns)


def test_a_page_shows_time_speedup_efficiency_and_device_hours_with_intervals(written: Path) -> None:
    text = (written / "proposal.md").read_text(encoding="utf-8")
    low, high = ratio_bounds(spread(300), spread(100))
    assert (
        "| devices | nodes | n | total time (min) | samples/s, steps | speedup, steps | efficiency, steps | "
        "device-hours |"
    ) in text
    assert (
        "| **4** | **1** | **3** | **35.3** [34.5 to 36.2] | **300** [293 to 308] "
        f"| **3.00** [{low:.2f} to {high:.2f}] | **0.75** [{low / 4:.2f} to {high / 4:.2f}] | **2.36** |"
    ) in text
    assert "| 1 | 1 | 3 | 102 [99.5 to 105] | 100 [97.5 to 103] | 1.00 | 1.00 | 1.70 |" in text
    compared = "compare the throughput of training steps, relative to 1 device, 100 samples/s."
    method = "95 % intervals by Student's t on logarithms; fewer than 3 runs have no interval."
    assert f"{method} Speedup and efficiency {compared}" in text


def test_a_requirement_by_total_time_makes_all_speedups_those_of_total_times(tmp_path: Path) -> None:
    folder = write(tmp_path, spec_of("csc-roihu"), figures=False)
    text = (folder / "proposal.md").read_text(encoding="utf-8")
    # the start-up of 20 s does not scale
    speedup = (20 + 600_000 / 400) / (20 + 600_000 / 1270)
    assert "| speedup, total time | efficiency, total time |" in text
    assert f"| **{speedup:.2f}** [" in text
    assert "compare total times of whole runs, relative to 4 GPUs, 25.3 min." in text
    assert f"By total time they are {speedup:.2f} times as fast as 4 GPUs" in text
    assert "parallel efficiency by total time against nodes" in text
    verdicts = read_json(folder / VERDICTS)
    assert (verdicts["required"]["by"], len(verdicts["doublings"])) == ("total_time", 3)
    assert all(sentence in text for sentence in verdicts["sentences"])
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
    text = written_text(runs.assign(train_seconds=20.0), tmp_path, "csc-roihu")
    found = re.search(r"at most (\S+) % of a run: (\S+) of (\S+) \w+ on", text)
    assert found
    share, begun, wall = map(float, found.groups())
    assert begun / wall == pytest.approx(share / 100, rel=0.02)
    hidden = text.find("so total times hide how the training scales. Make the runs longer.")
    assert 0 < hidden < text.index("1 to 2 nodes") if of else hidden < 0


def test_the_text_shows_the_decided_series_and_the_table_all(tmp_path: Path) -> None:
    folder = write_table(planted_series(), tmp_path, series="view_on", devices=2)
    text = (folder / "proposal.md").read_text(encoding="utf-8")
    assert "*Scaling: digits_strong, view_on. The recommended row is in bold.*" in text
    assert "| **2** |" in text
    assert "| 8 | – | 0 | – | – | – | – | – |" in text, "what has no result is not left out"
    assert "view_off" not in text
    assert pd.read_csv(folder / "table.csv")["series"].unique().tolist() == ["view_on", "view_off"]


def test_latex_is_balanced_and_escaped(written: Path) -> None:
    text = (written / "proposal.tex").read_text(encoding="utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    unescaped = re.sub(r"\\[\\&%$#_{}]", "", body)
    assert unescaped.count("{") == unescaped.count("}")
    assert not re.search(r"[%#$_^]", unescaped)
    for name in ("document", "table", "tabular", "center"):
        assert body.count(f"\\begin{{{name}}}") == body.count(f"\\end{{{name}}}") > 0
    assert body.isascii()
    packages = {"fontenc", "geometry", "array", "booktabs", "graphicx"}
    assert set(re.findall(r"\\usepackage(?:\[.*?\])?\{(\w+)\}", body)) == packages
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


@pytest.mark.parametrize(
    ("seconds", "unit"), [(599.0, "s"), (600.0, "min"), (35_999.0, "min"), (36_000.0, "h"), (math.nan, "s")]
)
def test_times_are_read_in_the_unit_that_fits_them(seconds: float, unit: str) -> None:
    assert time_unit(seconds)[0] == unit


def test_published_walls_are_compared_as_walls(tmp_path: Path) -> None:
    runs = pd.DataFrame({"devices": [1, 2, 4], "wall_seconds": [151.0, 111.0, 96.0]})
    runs = runs.assign(experiment="palmetto", series=ONLY, outcome="completed")
    text = (write_table(runs, tmp_path) / "proposal.md").read_text(encoding="utf-8")
    assert "compare total times of whole runs, relative to 1 device, 151 s." in text
    assert "| 2 | – | 1 | 111 | – | 1.36 | 0.68 | 0.0617 |" in text
    assert "warm-up" not in text


# --- the requirement on each doubling, and the total of the trainings -----------------------------------


REQUIRED = Requirement(efficiency=0.75)


def test_each_doubling_of_nodes_has_its_speedup_interval_and_verdict(tmp_path: Path) -> None:
    made = planted_results(tmp_path)
    found = find_doublings(made, REQUIRED)
    assert [each.verdict for each in found] == ["above", "above", "below"]
    first = found[0].ratio
    assert first is not None
    assert first.estimate == pytest.approx(740 / 400)
    assert (first.at_least, first.at_most) == pytest.approx(ratio_bounds(spread(740), spread(400)), rel=1e-6)
    sentences = requirement_sentences(REQUIRED, found, made)
    assert "so a speedup of 1.5. Compared is the throughput, with 95 % intervals." in sentences[0]
    assert sentences[-1] == "4 to 8 nodes: 1.42x (1.39 to 1.45), below the required 1.5."
    by_time = Requirement(efficiency=0.75, by="total_time")
    found = find_doublings(made, by_time, is_fixed_work=False)
    assert {each.by for each in found} == {"throughput"}, "total times are of different work"


def test_a_limit_inside_the_interval_is_left_open(tmp_path: Path) -> None:
    made = planted_results(tmp_path, planted_runs({4: 400.0, 8: 602.0}))
    (found,) = find_doublings(made, REQUIRED)
    assert found.verdict == "cannot tell"
    assert (
        "cannot tell. The estimate is above the required 1.5, and the interval holds it."
        in found.sentence("GPU")
    )
    assert list(unmet([found], made)) == ["A verdict is open. Add repeats."]


@pytest.mark.parametrize(("repeats", "said"), [(1, "(1 run)"), (2, "(2 runs)")])
def test_fewer_than_three_runs_decide_no_requirement(tmp_path: Path, repeats: int, said: str) -> None:
    runs = planted_runs()
    made = planted_results(tmp_path, runs[runs["repeat"] <= repeats])
    first = find_doublings(made, REQUIRED)[0]
    assert first.verdict == "cannot tell"
    assert said in first.sentence("GPU")
    assert (first.as_dict()["low"], first.as_dict()["high"]) == (None, None)


def test_throughput_takes_the_place_of_unknown_total_times_with_a_note(tmp_path: Path) -> None:
    runs = planted_runs(wall_seconds=float("nan"), device_hours=float("nan"), peak_memory_bytes=31e6)
    text = written_text(runs, tmp_path, "csc-roihu")
    assert "Total times and device-hours are unknown: no run is a whole one." in text
    assert "with 95 % intervals, because total times of equal work are unknown." in text
    checklist = (tmp_path / "proposal/checklist.md").read_text(encoding="utf-8")
    assert 'section "Parallel efficiency": verdict on each doubling. 1 to 2 nodes: 1.85x' in checklist
    assert "- [ ] missing: Total times of equal work are unknown. Measure whole runs of one" in checklist
    assert "| memory a GPU (MB) |" in text
    assert "| 31.0 |" in text


def test_doublings_of_devices_need_no_second_node(tmp_path: Path) -> None:
    runs = make_runs({(ONLY, devices): spread(rate) for devices, rate in {1: 100.0, 2: 190.0}.items()})
    made = planted_results(tmp_path, runs.assign(nodes=1.0, wall_seconds=100.0))
    assert find_doublings(made, REQUIRED) == []
    required = Requirement(efficiency=0.75, per="doubling_of_devices")
    (found,) = find_doublings(made, required)
    assert found.sentence("GPU").startswith("1 to 2 GPUs: 1.90x")


def test_a_recommendation_beyond_the_requirement_is_named(tmp_path: Path) -> None:
    made = planted_results(tmp_path, planted_runs({4: 400.0, 8: 580.0, 16: 1150.0}))
    found = find_doublings(made, REQUIRED)
    assert made.devices == 16
    assert list(unmet(found, made)) == [
        "Beyond 1 node, a doubling is below the required speedup.",
        "The recommended 4 nodes are more than that. Request 1 node, or change `decision`.",
    ]


def total(folder: Path, centre: str, runs: pd.DataFrame | None = None, **keys: Any) -> Totals:
    """Return the totals of the planted study; raise ``LookupError`` with the reason if they are unknown."""
    found = find_totals(planted_results(folder, runs), spec_of(centre, **keys))
    if isinstance(found, str):
        raise LookupError(found)
    return found


HOURS = (20 + 600_000 / 1270) / 3600


@pytest.mark.parametrize(
    ("centre", "keys", "units", "name"),
    [
        ("ncar", {}, 16, "GPU-hours"),
        ("incite", {}, 4, "node-hours"),
        ("nhr", {}, 16 * 150, "core-hours"),
        ("csc-roihu", {}, 16 * 200, "GPU billing units"),
        ("archer2", {}, 4, "CU"),
        ("generic", {"unit_factor": 0.5}, 16 * 0.5, "units"),
    ],
)
def test_a_total_is_trainings_x_cost_x_margin_in_the_centres_unit(
    centre: str, keys: dict[str, Any], units: float, name: str, tmp_path: Path
) -> None:
    found = total(tmp_path, centre, trainings=200, margin=0.05, **keys)
    assert found.unit == name
    assert found.cost.estimate == pytest.approx(HOURS * units, rel=1e-3)
    assert found.total is not None
    assert found.total.estimate == pytest.approx(HOURS * units * 210, rel=1e-3)
    assert found.total.low < found.total.estimate < found.total.high


def test_months_divide_the_total_and_whole_nodes_that_are_billed_are_in_it(tmp_path: Path) -> None:
    found = total(tmp_path, "ncar", trainings=200, months=10)
    assert "We request 438 (427 to 448) GPU-hours" in found.text()
    assert "Over 10 months, that is 43.8 (42.7 to 44.8) GPU-hours per month." in found.text()
    made = planted_results(tmp_path)
    billed = made.scaling.assign(billed_devices=made.scaling["devices"] * 2)
    doubled = find_totals(replace(made, scaling=billed), spec_of("ncar"))
    assert isinstance(doubled, Totals)
    assert doubled.cost.estimate == pytest.approx(2 * found.cost.estimate)


def test_a_training_longer_than_the_runs_follows_from_its_samples(tmp_path: Path) -> None:
    runs = planted_runs(wall_seconds=float("nan"), device_hours=float("nan"))
    with pytest.raises(LookupError, match="samples_per_training"):
        total(tmp_path, "generic", runs, trainings=2)
    found = total(tmp_path, "generic", runs, trainings=2, samples_per_training=12_700_000)
    assert found.cost.estimate == pytest.approx(16 * 10_000 / 3600, rel=1e-3)
    assert "start-up and evaluation are not in it" in found.text()


def test_a_factor_that_only_the_user_knows_is_requested(tmp_path: Path) -> None:
    file = tmp_path / "centre.yaml"
    file.write_text(
        "name: Ours\nunit: {name: credits, factor: ask}\ndemands:\n"
        "  - {heading: Cost, demand: Credits., sections: [totals]}\n",
        encoding="utf-8",
    )
    with pytest.raises(LookupError, match=r"`proposal: \{unit_factor: \.\.\.\}`"):
        total(tmp_path, str(file), trainings=2)
    known = total(tmp_path, str(file), trainings=2, unit_factor=3)
    assert known.cost.estimate == pytest.approx(HOURS * 16 * 3, rel=1e-3)


# --- the time limit of the job script -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("walls", "minutes"),
    [
        pytest.param({"wall_n": 3, "wall_seconds": 600.0, "wall_seconds_next": 700.0}, 16, id="measured"),
        pytest.param({"wall_n": 1, "wall_seconds": 30.0, "wall_seconds_next": 40.0}, 3, id="a short run"),
        pytest.param({"wall_n": math.nan, "wall_seconds_next": math.nan}, 60, id="steps only"),
    ],
)
def test_the_time_limit_is_the_bound_of_one_more_run_with_a_fifth_and_two_minutes(
    walls: dict[str, float], minutes: int
) -> None:
    row = pd.Series({"wall_seconds_low": 550.0, "wall_seconds_high": 650.0} | walls)

    assert time_limit(row, planned_minutes=60).minutes == minutes
