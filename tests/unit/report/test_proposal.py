"""A proposal has the study's numbers, by the clock and in the unit of its centre, and names the unknown."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd
import pytest
from tests.paths import ROOT
from tests.planted_study import Law, PlantedStudy, experiments

import cli
from scalewise.analysis.statistics import Sample, ratio_of
from scalewise.analysis.study import parts_of, read_and_conclude
from scalewise.config.experiment import known_centres, template_of
from scalewise.plan.planned_study import make_plan, write_plan
from scalewise.report.facts import CLOCKS, Doubling, facts_of
from scalewise.report.job import time_limit
from scalewise.report.proposal import header_of, values_of

CENTRES = known_centres()
LAW = Law(rate=100.0, serial=0.012, scatter=0.004)
"""Doublings from 4 to 32 devices by 1.91, 1.84 and 1.72 of steps; of whole runs by 1.75, 1.59 and 1.43."""
TRAININGS = 200
PAID = {"GPU-hours": 1.0, "GPU billing units": 200.0, "core-hours": 150.0, "CU": 1 / 4, "node-hours": 1 / 4}
"""Units of one GPU-hour on nodes of four GPUs."""


def keys(centre: str, **changed: Any) -> dict[str, Any]:
    usual = {"devices": [4, 8, 16, 32], "decision": {"deadline_minutes": 1.5}, "trainings": TRAININGS}
    return usual | {"proposal": {"centre": centre}} | changed


class Proposed:
    """A planted study with the proposals of its experiments."""

    def __init__(self, folder: Path, planned: Mapping[str, Mapping[str, Any]]) -> None:
        self.study = PlantedStudy(folder, experiments(**planned), LAW.speed)
        self.study.tabulate()
        self.plan = make_plan(self.study.study)
        self.folder, self.planned = folder, write_plan(self.plan, folder)
        self.codes = {name: self.write(name) for name in self.study.study.experiments}

    def write(self, name: str) -> int:
        return cli.main(["--plan", str(self.planned), "proposal", str(self.folder / "results" / name)])

    def path(self, name: str, file: str = "proposal.md") -> Path:
        return self.folder / "results" / name / "proposal" / file

    def text(self, name: str) -> str:
        return self.path(name).read_text(encoding="utf-8")

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.path(name, "table.csv")).set_index("devices")

    def means(self, name: str, column: str) -> dict[int, float]:
        """Return the geometric mean of each device count, from the runs."""
        runs = pd.read_csv(self.folder / "results" / name / "runs.csv")
        counts = sorted(set(runs["devices"].tolist()))
        return {n: geometric_mean(runs.loc[runs["devices"] == n, column]) for n in counts}


@pytest.fixture(scope="module")
def proposed(tmp_path_factory: pytest.TempPathFactory) -> Proposed:
    others = {
        "one-node": keys("archer2", devices=[1, 2, 4]),
        "of-steps": keys("csc-roihu", steps=200, samples_per_training=100_000, decision={}),
        "no-answer": keys("ncar", decision={"max_device_hours": 1e-6}),
    }
    return Proposed(tmp_path_factory.mktemp("study"), {centre: keys(centre) for centre in CENTRES} | others)


# --- each centre ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("centre", CENTRES)
def test_a_proposal_has_one_clock_from_its_table_to_its_total_in_the_unit_of_the_centre(
    proposed: Proposed, centre: str
) -> None:
    clock = header_of(template_of(centre))["clock"]
    column = CLOCKS[clock][0]
    means, text, table = proposed.means(centre, column), proposed.text(centre), proposed.table(centre)
    (chosen,) = table[table["recommended"]].index
    speedups = {
        n: value / means[4] if clock == "throughput" else means[4] / value for n, value in means.items()
    }

    assert proposed.codes[centre] == 0
    assert set(table["clock"]) == {clock}
    assert table["speedup"].to_dict() == pytest.approx(speedups, rel=1e-6)
    assert table["parallel_efficiency"].to_dict() == pytest.approx(
        {n: speedup * 4 / n for n, speedup in speedups.items()}, rel=1e-6
    )
    (said,) = re.findall(r"By ([\w ]+) they are ([\d.]+) \(", text)
    assert said[0] == clock
    assert float(said[1]) == pytest.approx(speedups[chosen], rel=0.005)
    assert f"| **{chosen}** |" in text
    other = {"total time": "samples/s", "throughput": "total time"}[clock]
    # what decided is named, too
    assert other not in text.replace(f"number by {other}, as report.html states", "")
    assert "nan" not in text
    # 10 epochs of 40 steps of 256 samples, the warm-up of 12 steps included
    seconds = proposed.means(centre, {"total time": "wall_seconds", "throughput": "train_seconds"}[clock])
    hours = seconds[chosen] * chosen / 3600
    assert table["device_hours"][chosen] == pytest.approx(hours, rel=1e-3)
    for pattern, trainings in (("We request \\*\\*", TRAININGS), ("takes ", 1)):
        ((cost, unit),) = re.findall(pattern + r"([\d.,]+) \(.*?\) (.*?)(?:\*\*|, by)", text)
        assert float(cost.replace(",", "")) == pytest.approx(trainings * hours * PAID[unit], rel=0.006)


def test_each_centre_has_what_it_demands_and_gaps_for_what_only_the_user_knows(proposed: Proposed) -> None:
    places = {
        "csc-roihu": ["## Wall times", "- 1 to 2 nodes: 1.75 (", "utilization, lowest GPU", "`job.sh`"],
        "archer2": ["| nodes | GPUs | runs | samples/s |", "../figures/efficiency.pdf", "6-month periods"],
        "ncar": ["| experiment | GPU-hours per training | trainings | total GPU-hours |"],
        "incite": ["../figures/throughput.pdf", "node-hours**"],
        "marlowe": ["Settings of the experiment", "| MFU |", "memory of a GPU (GB)"],
        "nhr": ["../figures/speedup.pdf", "core-hours**", "wait for data"],
        "seawulf": ["## Length of a run", "total time (s)"],
    }
    assert places.keys() == set(CENTRES)
    missing = {
        centre: [place for place in wanted if place not in proposed.text(centre)]
        for centre, wanted in places.items()
    }
    assert not any(missing.values()), missing
    assert all("**TO WRITE:**" in proposed.text(centre) for centre in CENTRES)


# --- what is not known ----------------------------------------------------------------------------------


def test_a_total_time_that_steps_hide_is_unknown_with_the_fix(proposed: Proposed) -> None:
    text = proposed.text("of-steps")
    unknown = re.findall(r"The (.*) is unknown: `steps` .* Measure whole runs\.", text)
    assert set(unknown) >= {"total time (s)", "speedup", "GPU-hours", "computing time to request"}
    assert "- 1 to 2 nodes: unknown: **open**." in text
    assert not re.search(r"\bnan\b|samples/s", text)


def test_a_study_without_an_answer_says_so_and_has_no_job(proposed: Proposed) -> None:
    assert "The study recommends no number of GPUs" in proposed.text("no-answer")
    assert "exit 1" in proposed.path("no-answer", "job.sh").read_text(encoding="utf-8")
    assert not proposed.table("no-answer")["recommended"].any()


# --- the requirement and the total ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faster", "slower", "verdict"),
    [
        ([180.0, 181.0, 182.0], [100.0, 100.5, 101.0], "met"),
        ([140.0, 141.0, 142.0], [100.0, 100.5, 101.0], "missed"),
        ([140.0, 150.0, 163.0], [98.0, 100.0, 102.0], "open"),
        ([180.0, 181.0], [100.0, 100.5], "open"),
        ([180.0], [100.0], "open"),
        ([], [100.0], "open"),
    ],
    ids=["above", "below", "inside", "two runs", "single runs", "no run"],
)
def test_a_requirement_is_decided_by_the_whole_interval_of_three_runs(
    faster: list[float], slower: list[float], verdict: str
) -> None:
    ratio = ratio_of(Sample.of(faster), Sample.of(slower))
    assert Doubling(1, ratio, 1.5, is_requested=True).verdict == verdict


def test_what_the_site_bills_and_a_factor_of_the_users_are_in_the_cost(proposed: Proposed) -> None:
    plan, header = proposed.plan, header_of(template_of("ncar"))
    asked = plan["experiments"]["ncar"]["proposal"]
    parts = parts_of(plan, "ncar", proposed.folder / "results")
    facts = facts_of(read_and_conclude("ncar", parts, total_times=True), plan, "ncar")
    usual = values_of(facts, header, asked)["totals"]
    billed = replace(facts, points=facts.points.assign(billed_devices=64))
    assert values_of(billed, header, asked)["totals"].cost.estimate == pytest.approx(2 * usual.cost.estimate)
    priced = values_of(facts, header, asked | {"unit_factor": 0.5})["totals"]
    assert (priced.unit, usual.unit) == ("units", "GPU-hours")
    assert priced.cost.estimate == pytest.approx(usual.cost.estimate / 2)


# --- a centre of the user's, and the job script ---------------------------------------------------------


def test_a_new_centre_is_one_file_and_a_value_that_there_is_not_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "ours.md.j2"
    file.write_text('{% set clock = "total time" %}\n# {{ title }}\n{{ table("devices", "wall_seconds") }}\n')
    proposed = Proposed(
        tmp_path / "study", {"ours": keys(str(file), title="Ours"), "other": {"devices": [4]}}
    )
    assert proposed.codes == {"ours": 0, "other": 1}
    assert proposed.text("ours").startswith("# Ours\n| GPUs | total time (s) |\n")
    assert not proposed.path("other").parent.exists()
    file.write_text("{{ titel }}\n")
    assert proposed.write("ours") == 1
    assert "ours.md.j2: 'titel' is undefined" in capsys.readouterr().err
    file.write_text('{% set clock = "wall" %}\n')
    assert proposed.write("ours") == 1
    assert "clock is 'wall'" in capsys.readouterr().err


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
    row = {"wall_seconds_low": 550.0, "wall_seconds_high": 650.0} | walls
    assert time_limit(row, planned_minutes=60)[0] == minutes


def test_the_docs_name_every_centre() -> None:
    page = (ROOT / "docs" / "proposal.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)) == {"centre", *CENTRES}
