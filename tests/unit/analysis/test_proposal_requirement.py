"""A centre's requirement on each doubling gets a verdict, and the trainings a total in its unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.planted_proposal import planted_results, planted_runs, spec_of, write
from tests.unit.analysis.planted_tables import ALONE, make_runs, spread
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.proposal.totals import Totals, find_totals
from scalewise.analysis.requirement import find_doublings, requirement_sentences, unmet
from scalewise.plan.config.centre import Requirement

REQUIRED = Requirement(efficiency=0.75)


def test_each_doubling_of_nodes_has_its_speedup_interval_and_verdict(tmp_path: Path) -> None:
    made = planted_results(tmp_path)
    found = find_doublings(made, REQUIRED)
    assert [each.verdict for each in found] == ["above", "above", "below"]
    first = found[0].ratio
    assert first is not None
    assert first.estimate == pytest.approx(740 / 400)
    assert (first.at_least, first.at_most) == pytest.approx(welch_bounds(spread(740), spread(400)), rel=1e-6)
    assert requirement_sentences(REQUIRED, found, made) == [
        "Required is an efficiency of 0.75 for each doubling of nodes, so a speedup of 1.5. Compared is the "
        "throughput, with 95 % intervals.",
        "1 to 2 nodes: 1.85x (1.81 to 1.89), above the required 1.5.",
        "2 to 4 nodes: 1.72x (1.68 to 1.76), above the required 1.5.",
        "4 to 8 nodes: 1.42x (1.39 to 1.45), below the required 1.5.",
    ]


def test_a_limit_inside_the_interval_cannot_be_told(tmp_path: Path) -> None:
    made = planted_results(tmp_path, planted_runs({4: 400.0, 8: 602.0}))
    (found,) = find_doublings(made, REQUIRED)
    assert found.verdict == "cannot tell"
    assert (
        "cannot tell. The estimate is above the required 1.5, and the interval holds it."
        in found.sentence("GPU")
    )
    assert list(unmet([found], made)) == ["A verdict is open. Add repeats."]


def test_single_runs_have_the_assumed_scatter_and_say_so(tmp_path: Path) -> None:
    runs = planted_runs()
    made = planted_results(tmp_path, runs[runs["repeat"] == 1])
    first = find_doublings(made, REQUIRED)[0]
    assert first.verdict == "above"
    assert ", single runs)" in first.sentence("GPU")


def test_total_times_are_compared_where_the_centre_wants_them(tmp_path: Path) -> None:
    found = find_doublings(planted_results(tmp_path), Requirement(efficiency=0.75, by="total_time"))
    assert {each.by for each in found} == {"total time"}
    last = found[-1].ratio
    assert last is not None
    # the start-up of 20 s does not scale
    assert last.estimate == pytest.approx((20 + 600_000 / 1270) / (20 + 600_000 / 1800), rel=1e-3)


def test_throughput_takes_the_place_of_unknown_total_times_and_it_is_said(tmp_path: Path) -> None:
    runs = planted_runs(wall_seconds=float("nan"), device_hours=float("nan"))
    spec = spec_of("csc-roihu")
    folder = write(tmp_path, spec, planted_results(tmp_path, runs))
    text = (folder / "proposal.md").read_text(encoding="utf-8")
    assert "Total times and device-hours are unknown: no run is a whole one." in text
    assert (
        "Compared is the throughput, with 95 % intervals, because total times of equal work are unknown."
        in text
    )
    checklist = (folder / "checklist.md").read_text(encoding="utf-8")
    assert 'section "Parallel efficiency": verdict on each doubling. 1 to 2 nodes: 1.85x' in checklist
    assert (
        "- [ ] missing: Total times of equal work are unknown. Measure whole runs of one length." in checklist
    )


def test_times_of_runs_that_may_do_more_work_on_more_devices_are_not_compared(tmp_path: Path) -> None:
    required = Requirement(efficiency=0.75, by="total_time")
    found = find_doublings(planted_results(tmp_path), required, is_fixed_work=False)
    assert {each.by for each in found} == {"throughput"}


def test_doublings_of_devices_need_no_second_node(tmp_path: Path) -> None:
    runs = make_runs({(ALONE, devices): spread(rate) for devices, rate in {1: 100.0, 2: 190.0}.items()})
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


def total(folder: Path, centre: str, runs: pd.DataFrame | None = None, **keys: Any) -> Totals | str:
    """Return the totals of the planted study."""
    return find_totals(planted_results(folder, runs), spec_of(centre, **keys))


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
    assert isinstance(found, Totals)
    assert found.unit == name
    assert found.cost.estimate == pytest.approx(HOURS * units, rel=1e-3)
    assert found.total is not None
    assert found.total.estimate == pytest.approx(HOURS * units * 210, rel=1e-3)
    assert found.total.low < found.total.estimate < found.total.high


def test_whole_nodes_that_are_billed_are_in_the_total(tmp_path: Path) -> None:
    made = planted_results(tmp_path)
    billed = made.scaling.assign(billed_devices=made.scaling["devices"] * 2)
    doubled = find_totals(replace(made, scaling=billed), spec_of())
    alone = find_totals(made, spec_of())
    assert isinstance(doubled, Totals)
    assert isinstance(alone, Totals)
    assert doubled.cost.estimate == pytest.approx(2 * alone.cost.estimate)


def test_a_training_longer_than_the_runs_follows_from_its_samples(tmp_path: Path) -> None:
    runs = planted_runs(wall_seconds=float("nan"), device_hours=float("nan"))
    without = total(tmp_path, "generic", runs, trainings=2)
    assert isinstance(without, str)
    assert "samples_per_training" in without
    found = total(tmp_path, "generic", runs, trainings=2, samples_per_training=12_700_000)
    assert isinstance(found, Totals)
    assert found.cost.estimate == pytest.approx(16 * 10_000 / 3600, rel=1e-3)
    assert "start-up and evaluation are not in it" in found.text()


def test_a_factor_that_only_the_user_knows_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "centre.yaml"
    file.write_text(
        "name: Ours\nunit: {name: credits, factor: ask}\ndemands:\n"
        "  - {heading: Cost, demand: Credits., sections: [totals]}\n",
        encoding="utf-8",
    )
    found = total(tmp_path, str(file), trainings=2)
    assert isinstance(found, str)
    assert "`proposal: {unit_factor: ...}`" in found
    known = total(tmp_path, str(file), trainings=2, unit_factor=3)
    assert isinstance(known, Totals)
    assert known.cost.estimate == pytest.approx(HOURS * 16 * 3, rel=1e-3)


def test_months_divide_the_total(tmp_path: Path) -> None:
    found = total(tmp_path, "ncar", trainings=200, months=10)
    assert isinstance(found, Totals)
    assert "We request 438 (427 to 448) GPU-hours" in found.text()
    assert "Over 10 months, that is 43.8 (42.7 to 44.8) GPU-hours per month." in found.text()
