"""Runs that are requested in rounds: chosen device counts, and repeats until the decision is clear.

Real Snakemake runs a program whose speeds are planted.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.machine import needs_two_cores
from tests.workflow.workplace import Outcome, Workplace

from scalewise.plan.rounds import Round, iter_rounds
from scalewise.records import RECORD, read_run

PROGRAM = Path(__file__).parents[1] / "planted_speeds.py"
SITE = """\
accelerator: cpu
devices_per_node: 4
cpus_per_node: 4
"""
EFFICIENCIES = '"1=1", "2=0.97", "4=0.64"'
STUDY = f"""\
experiments:
  planted:
    program: {PROGRAM}
    arguments: ["{{folder}}", "{{batch_size_per_device}}", {EFFICIENCIES}]
    scaling: weak
    batch_size_per_device: 4
    devices: {{up_to: 4}}
    steps: 15
    warmup_steps: 5
    repeats: 2
    decision: {{min_efficiency: 0.85}}
"""
ANSWER = 2
NOTHING = "Nothing to be done"


@dataclass(frozen=True)
class RoundsStudy:
    """A study that requests its runs in rounds, and has ended.

    Args:
        text: Its configuration.
        tables: Files that its commands make: without figures and reports, which no test here looks at.
    """

    workplace: Workplace
    text: str
    site: str
    tables: tuple[str, ...]

    @property
    def results(self) -> Path:
        return self.workplace.folder / "results"

    @property
    def answer(self) -> dict[str, Any]:
        return dict(json.loads((self.results / "planted" / "answer.json").read_text()))

    def rounds(self, experiment: str) -> list[Round]:
        """The rounds up to the one that ends the study; those of an earlier rule may lie behind it."""
        return list(iter_rounds(self.results / experiment))

    def run(self, *arguments: str, old: str = "", new: str = "") -> Outcome:
        """Make the tables after an edit of the configuration."""
        assert old in self.text
        text = self.text.replace(old, new) if old else self.text
        return self.workplace.snakemake(
            "--scheduler", "greedy", *self.tables, *arguments, config=text, site=self.site
        )

    def copied(self, folder: Path) -> RoundsStudy:
        """Copy the study for a test that changes it."""
        shutil.copytree(self.workplace.folder, folder / "study", symlinks=True)
        return replace(self, workplace=replace(self.workplace, folder=folder / "study"))


def ends(folder: Path) -> dict[str, str]:
    """The times at which the runs of a folder ended, by their names."""
    found = {}
    for path in folder.glob(f"*/{RECORD}"):
        provenance = read_run(path.parent).provenance
        assert provenance is not None
        found[path.parent.name] = provenance.ended_at
    return found


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> RoundsStudy:
    workplace = Workplace(tmp_path_factory.mktemp("chosen"), preloaded_python)
    study = RoundsStudy(workplace, STUDY, SITE, ("results/planted/scaling.csv",))
    outcome = study.run()
    assert outcome.code == 0, outcome.text
    return study


@needs_two_cores
def test_the_planted_answer_is_found_with_fewer_runs_than_all(chosen: RoundsStudy) -> None:
    answer, runs = chosen.answer, ends(chosen.results / "planted" / "runs")
    assert answer["devices"] == ANSWER, answer
    assert len(runs) < 8
    assert answer["has_ended"]
    assert {f"d{ANSWER}.r1", f"d{ANSWER}.r2", "d1.r1", "d1.r2"} <= set(runs)
    assert NOTHING in chosen.run().text
    rounds = chosen.rounds("planted")
    assert len(rounds) == len(list(chosen.results.glob("planted/repeats/round*.json")))
    assert [bool(each.further) for each in rounds] == [True] * (len(rounds) - 1) + [False]


@needs_two_cores
def test_a_budget_ends_the_study_and_the_answer_says_what_is_open(
    chosen: RoundsStudy, tmp_path: Path
) -> None:
    study = chosen.copied(tmp_path)
    spent = study.rounds("planted")[-1].spent_device_hours
    assert spent is not None
    # with all of its minute no run fits into the rest, or the two of the baseline are all that may be paid
    budget = max(spent + 0.5 / 60, 2.01 / 60)
    limited = f"repeats: 6\n    runtime_minutes: 1\n    budget: {{device_hours: {budget:.4f}}}"
    outcome = study.run(old="repeats: 2", new=limited)
    assert outcome.code == 0, outcome.text
    last = study.rounds("planted")[-1]
    assert last.over_budget
    assert last.spent_device_hours is not None
    assert last.spent_device_hours <= budget
    assert study.answer["certainty"] != "clear"
    assert "the study: more runs of " in study.answer["spent"]


REPEATS = f"""\
defaults:
  program: {PROGRAM}
  arguments: ["{{folder}}", "{{batch_size_per_device}}", "1=1", "2=0.8"]
  scaling: weak
  batch_size_per_device: 4
  steps: 15
  warmup_steps: 5
  devices: [1, 2]
experiments:
  clear:
    repeats: {{min: 3, max: 5}}
    decision: {{min_efficiency: 0.5}}
  open:
    repeats: {{min: 3, max: 4}}
    decision: {{min_efficiency: 0.7999}}
"""
COUNTS = (1, 2)


def named(experiment: str, *repeats: int) -> set[str]:
    """Return the names of these repeats on each device count."""
    return {f"{experiment}/d{devices}.r{repeat}" for devices in COUNTS for repeat in repeats}


FIRST = named("clear", 1, 2, 3) | named("open", 1, 2, 3)


def trained(outcome: Outcome) -> set[str]:
    """Return the runs that a command has trained."""
    assert outcome.code == 0, outcome.text
    return Outcome(0, outcome.text.replace("localrule", "rule")).trained


def tabled(study: RoundsStudy, experiment: str) -> set[str]:
    """Return the runs of an experiment's table."""
    lines = (study.results / experiment / "runs.csv").read_text().splitlines()
    return {f"{experiment}/{line.split(',')[1]}" for line in lines[1:]}


@dataclass(frozen=True)
class Adaptive:
    """A study whose points get repeats until the decision is clear."""

    study: RoundsStudy
    plan: Outcome
    first: Outcome


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Adaptive:
    workplace = Workplace(tmp_path_factory.mktemp("adaptive"), preloaded_python)
    tables = ("results/clear/scaling.csv", "results/open/scaling.csv")
    study = RoundsStudy(workplace, REPEATS, SITE, tables)
    return Adaptive(study, workplace.snakemake("-n", config=REPEATS, site=SITE), study.run())


def test_a_dry_run_before_anything_shows_the_first_runs_and_what_may_follow(adaptive: Adaptive) -> None:
    assert adaptive.plan.code == 0, adaptive.plan.text
    assert adaptive.plan.trained == FIRST
    assert re.search(r"^clear\n  d1 +3 +1x1 ", adaptive.plan.text, re.MULTILINE)


@needs_two_cores
def test_what_leaves_the_decision_open_gets_more_runs_up_to_the_most(adaptive: Adaptive) -> None:
    assert trained(adaptive.first) == FIRST | named("open", 4)
    assert [each.further for each in adaptive.study.rounds("clear")] == [{}]
    assert [each.further for each in adaptive.study.rounds("open")] == [{"d1": 1, "d2": 1}, {}]
    assert tabled(adaptive.study, "clear") == named("clear", 1, 2, 3)
    assert tabled(adaptive.study, "open") == named("open", 1, 2, 3, 4)
    # the terminal shows what is requested
    assert adaptive.first.text.count("next: 1 run of d1 and 1 run of d2") == 1
    assert adaptive.first.text.count("nothing more is measured") == 2


@needs_two_cores
def test_a_deleted_extra_run_is_made_again(adaptive: Adaptive, tmp_path: Path) -> None:
    study = replace(adaptive.study.copied(tmp_path), tables=())
    (study.results / "open" / "runs" / "d1.r4" / "record.json").unlink()

    # a table that is there needs no run: only what a study ends with requires it
    assert trained(study.run("--until", "analyze")) == {"open/d1.r4"}
    assert NOTHING in study.run("--until", "analyze").text


@needs_two_cores
def test_another_criterion_or_maximum_uses_the_runs_that_are_there(
    adaptive: Adaptive, tmp_path: Path
) -> None:
    study = adaptive.study.copied(tmp_path)
    lower = {"old": "min_efficiency: 0.7999", "new": "min_efficiency: 0.5"}
    assert trained(study.run(**lower)) == set()
    assert tabled(study, "open") == named("open", 1, 2, 3)
    # and back: what was trained before is used again
    assert trained(study.run()) == set()
    assert tabled(study, "open") == named("open", 1, 2, 3, 4)

    raised = {"old": "max: 4}", "new": "max: 6}"}
    assert trained(study.run(**raised)) == named("open", 5, 6)
    assert NOTHING in study.run(**raised).text
