"""The table and the answer that the docs show are what Scalewise writes of those runs."""

from __future__ import annotations

from pathlib import Path

from tests.unit.analysis.decisions import decision_on
from tests.unit.analysis.hand_made_study import results
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.report.proposal import write_proposal
from scalewise.analysis.scaling import scaling_table
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.terminal.card_lines import card_lines

DOCS = Path(__file__).parents[3] / "docs"
RATES = {1: 100.0, 2: 190.0, 4: 340.0, 8: 480.0}
RULE = DecisionRule(min_efficiency=0.7)


def test_the_example_in_the_docs_is_what_such_runs_give(tmp_path: Path) -> None:
    runs = make_runs({("all runs", n): [0.99 * r, r, 1.01 * r] for n, r in RATES.items()})
    runs["nodes"] = [1.0 if devices < 8 else 2.0 for devices in runs["devices"]]
    runs["wall_seconds"] = 300 + 2_880_000 / runs["throughput_samples_per_second"]
    runs["device_hours"] = runs["wall_seconds"] * runs["devices"] / 3600
    decision = decision_on(runs, RULE, name="my-training", noun="GPU").named("GPU")
    made = results(
        scaling_table(runs, "strong"), runs, folder=tmp_path, name="my-training", decision=decision.as_dict()
    )
    write_proposal(made)
    page, report = ((DOCS / name).read_text(encoding="utf-8") for name in ("proposal.md", "report.md"))
    written = (tmp_path / "proposal.md").read_text(encoding="utf-8")
    assert [line for line in written.splitlines() if line not in page.splitlines()] == []
    answer = "\n".join(card_lines(decision.as_dict()))
    assert answer in page
    assert answer in report
