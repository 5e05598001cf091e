"""``repeats: {min, max, until_interval}`` in real Snakemake: more runs of the points that need them alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.conftest import Outcome, Workplace

PROGRAM = Path(__file__).parents[1] / "planted_speeds.py"
STUDY = f"""\
defaults:
  program: {PROGRAM}
  arguments: ["{{folder}}", "{{batch_size_per_device}}", "1=1"]
  scaling: weak
  batch_size_per_device: 4
  steps: 15
  warmup_steps: 5
  devices: [1]
  predict: false
experiments:
  narrow:
    repeats: {{min: 2, max: 4, until_interval: 1}}
  wide:
    repeats: {{min: 2, max: 3, until_interval: 1.0e-6}}
"""
NOTHING = "Nothing to be done"
TABLES = ("results/narrow/scaling.csv", "results/wide/scaling.csv")
"""Without figures and reports, which nobody looks at here."""
FIRST = {"narrow/d1.r1", "narrow/d1.r2", "wide/d1.r1", "wide/d1.r2"}


def trained(outcome: Outcome) -> set[str]:
    """Runs that a command has trained."""
    return Outcome(0, outcome.text.replace("localrule", "rule")).trained


@dataclass(frozen=True)
class Adaptive:
    """The study, run once to its tables."""

    workplace: Workplace
    plan: Outcome
    first: Outcome

    @property
    def results(self) -> Path:
        return self.workplace.folder / "results"

    def run(self, *arguments: str, old: str = "", new: str = "") -> Outcome:
        """The command after an edit of the configuration."""
        assert old in STUDY
        return self.workplace.snakemake(
            "--scheduler", "greedy", *arguments, config=STUDY.replace(old, new) if old else STUDY
        )

    def round(self, experiment: str, number: int) -> dict[str, Any]:
        """A round's only point."""
        path = self.results / experiment / "repeats" / f"round{number}.json"
        (point,) = json.loads(path.read_text())["points"]
        return dict(point)

    def listed(self, experiment: str) -> list[str]:
        """The runs of its table."""
        lines = (self.results / experiment / "runs.csv").read_text().splitlines()
        return [line.split(",")[1] for line in lines[1:]]


@pytest.fixture(scope="module")
def adaptive(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> Adaptive:
    workplace = Workplace(tmp_path_factory.mktemp("adaptive"), preloaded_python)
    plan = workplace.snakemake("-n", config=STUDY)
    first = workplace.snakemake("--scheduler", "greedy", *TABLES, config=STUDY)
    assert first.code == 0, first.text
    return Adaptive(workplace, plan, first)


@pytest.fixture
def copied(adaptive: Adaptive, tmp_path: Path) -> Adaptive:
    """A copy of the study, for a test that changes it: whatever test comes next finds it as it was."""
    shutil.copytree(adaptive.workplace.folder, tmp_path / "study", symlinks=True)
    return replace(adaptive, workplace=replace(adaptive.workplace, folder=tmp_path / "study"))


def test_a_dry_run_before_anything_shows_the_first_runs_and_what_may_follow(adaptive: Adaptive) -> None:
    assert adaptive.plan.code == 0, adaptive.plan.text
    assert adaptive.plan.trained == FIRST
    assert "narrow/d1.r1-2 (up to 4)  1x1" in adaptive.plan.text
    assert "device-hours (7 runs) if all points need their most repeats." in adaptive.plan.text


def test_a_wide_point_gets_more_runs_up_to_its_most_and_a_narrow_one_none(adaptive: Adaptive) -> None:
    assert trained(adaptive.first) == {*FIRST, "wide/d1.r3"}
    assert adaptive.round("narrow", 1)["verdict"] == "narrow enough"
    assert adaptive.round("wide", 1)["verdict"] == "too wide"
    assert adaptive.round("wide", 2)["verdict"] == "most repeats"
    assert adaptive.round("wide", 2)["completed"] == 3


def test_the_terminal_says_of_each_point_what_is_asked_for_and_why(adaptive: Adaptive) -> None:
    said = [line for line in adaptive.first.text.splitlines() if "half-width" in line]

    assert sum("narrow: d1: half-width" in line and line.endswith(": enough") for line in said) == 1
    asked = [line for line in said if line.endswith("more than 0.0001 %: repeat 3 follows")]
    assert len(asked) == 1
    assert sum(line.endswith("3 are the most, no more follow") for line in said) == 1


def test_the_tables_hold_the_runs_that_were_asked_for(adaptive: Adaptive) -> None:
    assert adaptive.listed("narrow") == ["d1.r1", "d1.r2"]
    assert adaptive.listed("wide") == ["d1.r1", "d1.r2", "d1.r3"]


def test_snakemakes_own_report_can_be_made(adaptive: Adaptive) -> None:
    own = adaptive.run("--report", "own.html", *TABLES)
    assert own.code == 0, own.text
    assert (adaptive.workplace.folder / "own.html").exists()


def test_a_deleted_extra_run_is_made_again(copied: Adaptive) -> None:
    (copied.results / "wide" / "runs" / "d1.r3" / "summary.json").unlink()

    # a table that is there needs no run: only what a study ends with asks for it
    study = ("--until", "compute_scaling")
    outcome = copied.run(*study)
    assert outcome.code == 0, outcome.text
    assert trained(outcome) == {"wide/d1.r3"}
    assert NOTHING in copied.run(*study).text


def test_another_interval_judges_again_and_trains_nothing_when_it_is_wider(copied: Adaptive) -> None:
    # planted rates of runs differ by a few tenths of a per cent
    wider = {"old": "until_interval: 1.0e-6", "new": "until_interval: 1"}

    outcome = copied.run(*TABLES, **wider)

    assert outcome.code == 0, outcome.text
    assert trained(outcome) == set()
    assert copied.round("wide", 1)["verdict"] == "narrow enough"
    assert copied.listed("wide") == ["d1.r1", "d1.r2"]
    assert NOTHING in copied.run(*TABLES, **wider).text
    # and back: what was trained before is used again
    back = copied.run(*TABLES)
    assert trained(back) == set()
    assert copied.listed("wide") == ["d1.r1", "d1.r2", "d1.r3"]


def test_a_raised_maximum_adds_runs_and_repeats_none(copied: Adaptive) -> None:
    raised = {"old": "max: 3,", "new": "max: 5,"}

    outcome = copied.run(*TABLES, **raised)

    assert outcome.code == 0, outcome.text
    assert trained(outcome) == {"wide/d1.r4", "wide/d1.r5"}
    assert copied.listed("wide") == ["d1.r1", "d1.r2", "d1.r3", "d1.r4", "d1.r5"]
    assert NOTHING in copied.run(*TABLES, **raised).text


def test_going_over_to_a_plain_number_trains_nothing(adaptive: Adaptive) -> None:
    fixed = {"old": "{min: 2, max: 4, until_interval: 1}", "new": "2"}

    outcome = adaptive.run("-n", **fixed)

    assert outcome.code == 0, outcome.text
    assert outcome.trained == set()
