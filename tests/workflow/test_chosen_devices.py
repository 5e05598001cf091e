"""``devices: {among: [...]}`` in real Snakemake, over a program whose speeds are planted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cores import needs_two_cores
from tests.waiting import wait_until
from tests.workflow.conftest import Outcome, Workplace
from tests.workflow.test_interrupted_studies import Running, running

from scalewise.plan.runs.rounds import Round, read_round, round_file
from scalewise.records import SUMMARY, read_summary

pytestmark = needs_two_cores

PROGRAM = Path(__file__).parents[1] / "planted_speeds.py"
SITE = """\
accelerator: cpu
devices_per_node: 6
cpus_per_node: 6
"""
EFFICIENCIES = '"1=1", "2=0.97", "3=0.72", "4=0.64", "6=0.6"'
STUDY = f"""\
experiments:
  planted:
    program: {PROGRAM}
    arguments: ["{{folder}}", "{{batch_size_per_device}}", {EFFICIENCIES}]
    scaling: weak
    batch_size_per_device: 4
    devices: {{among: [1, 2, 3, 4, 6]}}
    steps: 15
    warmup_steps: 5
    repeats: 2
    predict: false
    decision: {{min_efficiency: 0.85}}
"""
TABLES = ("results/planted/scaling.csv",)
ANSWER = 2
NOTHING = "Nothing to be done"


@dataclass(frozen=True)
class Chosen:
    """The study, interrupted once after each of its rounds.

    Args:
        interruptions: How often it was.
        ended: When each run ended, as the interrupted sessions left it.
        last: A further command, after the study had ended.
    """

    workplace: Workplace
    interruptions: int
    ended: dict[str, str]
    last: Outcome

    @property
    def folder(self) -> Path:
        return self.workplace.folder / "results" / "planted"

    @property
    def decision(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "decision.json").read_text()))

    def rounds(self) -> list[Round]:
        paths = sorted((self.folder / "repeats").glob("round*.json"))
        return [read_round(path) for path in paths]

    def run(self, *arguments: str, old: str = "", new: str = "") -> Outcome:
        """The command after an edit of the configuration."""
        assert old in STUDY
        return self.workplace.snakemake(*TABLES, *arguments, config=STUDY.replace(old, new), site=SITE)


def ends(folder: Path) -> dict[str, str]:
    """The times at which the runs of a folder ended, by their names."""
    found = {}
    for path in folder.glob(f"*/{SUMMARY}"):
        provenance = read_summary(path.parent).provenance
        assert provenance is not None
        found[path.parent.name] = provenance.ended_at
    return found


def under_way(folder: Path) -> bool:
    """Whether a run has begun and not ended."""
    return any(not (path.parents[1] / SUMMARY).exists() for path in folder.glob("*/attempt/rank_setup.json"))


def interrupt(snakemake: Running, judged: Path, runs: Path) -> None:
    """Send SIGINT while a run that the round has requested is under way, unless the study ends before."""
    process = snakemake.process

    def over() -> bool:
        return process.poll() is not None

    # a round takes some runs
    wait_until(lambda: judged.exists() or over(), "no further round", 900, longest_pause_seconds=0.02)
    wait_until(lambda: under_way(runs) or over(), "no run is under way", longest_pause_seconds=0.02)
    if not over():
        os.killpg(process.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Chosen:
    workplace = Workplace(tmp_path_factory.mktemp("chosen"), preloaded_python)
    folder = workplace.folder / "results" / "planted"
    seen: dict[str, str] = {}
    interruptions, code = 0, 1
    while code != 0:
        assert interruptions < 20, "it does not come to an end"
        judged = round_file(folder, interruptions + 1)
        with running(workplace.folder, preloaded_python, STUDY, *TABLES, site=SITE) as snakemake:
            interrupt(snakemake, judged, folder / "runs")
            code = snakemake.end()
            assert snakemake.left_over() == []
        interruptions += code != 0
        for name, ended in ends(folder / "runs").items():
            assert seen.setdefault(name, ended) == ended, f"{name} was measured again"
    last = workplace.snakemake(*TABLES, config=STUDY, site=SITE)
    return Chosen(workplace, interruptions, seen, last)


@pytest.fixture
def copied(chosen: Chosen, tmp_path: Path) -> Chosen:
    """A copy of the study, for a test that changes it: whatever test comes next finds it as it was."""
    shutil.copytree(chosen.workplace.folder, tmp_path / "study", symlinks=True)
    return replace(chosen, workplace=replace(chosen.workplace, folder=tmp_path / "study"))


def test_the_planted_answer_is_found_with_fewer_runs_than_all(chosen: Chosen) -> None:
    assert chosen.decision["devices"] == ANSWER, chosen.decision
    choice = chosen.decision["choice"]
    assert choice["full_grid_runs"] == 10
    assert choice["runs"] == len(chosen.ended) < 10
    assert 0 < choice["spent_device_hours"] < choice["full_grid_device_hours"]
    assert not choice["is_open"]
    assert {f"d{ANSWER}.r1", f"d{ANSWER}.r2", "d1.r1", "d1.r2"} <= set(chosen.ended)


def test_a_study_interrupted_in_each_round_goes_on_and_measures_nothing_twice(chosen: Chosen) -> None:
    # that no run was measured again is asserted after each interruption
    assert chosen.interruptions >= 3
    assert chosen.last.code == 0
    assert NOTHING in chosen.last.text
    rounds = chosen.rounds()
    assert [each.requests_more for each in rounds] == [True] * (len(rounds) - 1) + [False]


def test_a_lower_criterion_uses_the_runs_that_are_there(copied: Chosen) -> None:
    outcome = copied.run(old="min_efficiency: 0.85", new="min_efficiency: 0.7")
    assert outcome.code == 0, outcome.text
    assert copied.decision["devices"] == 3, copied.decision
    assert ends(copied.folder / "runs").items() >= copied.ended.items()


def test_a_budget_ends_the_study_and_the_answer_says_what_is_open(copied: Chosen) -> None:
    spent = copied.decision["choice"]["spent_device_hours"]
    # with all of its minute no run fits into the rest, or the two of the baseline are all that may be paid
    budget = max(spent + 0.5 / 60, 2.01 / 60)
    limited = f"repeats: 6\n    runtime_minutes: 1\n    budget: {{device_hours: {budget:.4f}}}"
    outcome = copied.run(old="repeats: 2", new=limited)
    assert outcome.code == 0, outcome.text
    assert copied.decision["choice"]["is_open"], copied.decision
    assert copied.decision["choice"]["spent_device_hours"] <= budget
    assert any("budget" in caution for caution in copied.decision["cautions"])


PARTITIONS = """\
accelerator: cpu
cpus_per_node: 6
partitions:
  new: {devices_per_node: 6, price_per_device_hour: 2}
  old: {devices_per_node: 6, price_per_device_hour: 1.5, prelude: ["export PLANTED_SPEED=0.25"]}
default_partition: new
"""


def test_a_partition_that_cannot_win_is_measured_no_further_and_all_share_a_budget(
    tmp_path: Path, preloaded_python: Path
) -> None:
    workplace = Workplace(tmp_path, preloaded_python)
    study = STUDY + "    partitions: all\n    budget: {device_hours: 20}\n    runtime_minutes: 2\n"
    tables = [f"results/planted@{name}/scaling.csv" for name in ("new", "old")]
    assert workplace.snakemake(*tables, config=study, site=PARTITIONS).code == 0

    results = tmp_path / "results"
    rounds = {
        name: [read_round(path) for path in sorted((results / name / "repeats").glob("round*.json"))]
        for name in ("planted@new", "planted@old")
    }
    answer = json.loads((results / "planted@new" / "decision.json").read_text())
    assert answer["devices"] == ANSWER
    assert rounds["planted@new"][-1].wins == 1.0
    assert rounds["planted@old"][-1].is_outdone
    assert len(rounds["planted@old"]) < len(rounds["planted@new"])
    runs = {name: len(list((results / name / "runs").iterdir())) for name in rounds}
    assert runs["planted@old"] < runs["planted@new"]
    assert all(0 < each[-1].spent_by_sisters < 20 for each in rounds.values())

    again = workplace.snakemake(*tables, "-n", config=study, site=PARTITIONS)
    assert NOTHING in again.text
    assert "20 device-hours by its budget for all partitions" in again.text
