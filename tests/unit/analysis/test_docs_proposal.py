"""The table, the verdicts and the total that the docs show are what Scalewise writes of those runs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.analysis.planted_proposal import spec_of, write
from tests.unit.analysis.planted_tables import decision_on, make_runs

from scalewise.plan.catalog.centres import known_centres
from scalewise.plan.config.centre import Requirement
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.terminal.card_lines import card_lines

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "proposal.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^(\| GPUs \||\| \*{0,2}\d+|Each row is|Required is|\d+ to \d+ nodes|We request)")
"""Beginnings of the lines that are examples of a text."""

RATES = {1: 100.0, 2: 190.0, 4: 340.0, 8: 480.0}


def test_the_examples_in_the_docs_are_what_such_runs_give(tmp_path: Path) -> None:
    required = {"efficiency": 0.75, "per": "doubling_of_nodes", "by": "total_time"}
    folder = write(tmp_path, spec_of("generic", required, trainings=200, margin=0.05))
    written = (folder / "proposal.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in PAGE.splitlines() if SHOWN.match(line)]
    assert len(shown) == 11
    assert [line for line in shown if line not in written] == []
    assert Requirement.model_validate(required) == spec_of("csc-roihu").requirement


def test_the_docs_name_every_centre() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, re.MULTILINE)) >= set(known_centres())


def test_the_answer_in_the_guide_to_the_report_is_what_such_runs_give() -> None:
    runs = make_runs({("all runs", n): [0.99 * r, r, 1.01 * r] for n, r in RATES.items()})
    runs["nodes"] = [1.0 if devices < 8 else 2.0 for devices in runs["devices"]]
    runs["wall_seconds"] = 300 + 2_880_000 / runs["throughput_samples_per_second"]
    runs["device_hours"] = runs["wall_seconds"] * runs["devices"] / 3600
    decision = decision_on(runs, DecisionRule(min_efficiency=0.7), name="my-training", noun="GPU").named(
        "GPU"
    )
    answer = "\n".join(card_lines(decision.as_dict()))
    assert answer in (DOCS / "report.md").read_text(encoding="utf-8")
