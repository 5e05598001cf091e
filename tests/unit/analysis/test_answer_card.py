"""What the card of an answer says to do next; its words are in golden_answers.txt."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.planted_tables import ALONE, decision_on, make_runs, spread

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.decision.card import SINGLE_RUN, Card
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.decision.next_action import _further_runs, next_action
from scalewise.analysis.scaling import known_columns, scaling_table
from scalewise.plan.config.experiment import DecisionRule, Experiment
from scalewise.plan.terminal.card_lines import card_lines

Points = Mapping[tuple[str, int], Sequence[float | str]]


CLEAR: Points = {(ALONE, devices): spread(rate) for devices, rate in {1: 100, 2: 190, 4: 340, 8: 480}.items()}


def answer(
    runs: pd.DataFrame, rule: Mapping[str, Any], repeats: Any = 3, most_devices: int = 64, **others: Any
) -> Decision:
    """The decision with the next action, as a study on GPUs has it."""
    decision = decision_on(runs, DecisionRule(**rule), noun="GPU", **others)
    devices = sorted(runs["devices"].unique().tolist())
    training = {"dataset": "digits", "model": "linear", "global_batch_size": 64, "epochs": 1}
    spec = Experiment.model_validate(training | {"devices": devices, "repeats": repeats})
    scaling = scaling_table(known_columns(runs), "strong")
    action, paste = next_action(
        AnalysisSpec("study", spec, accelerator="cuda", most_devices=most_devices),
        decision.card,
        scaling,
        decision.undecided,
        scaling,
    )
    decision = replace(decision, card=replace(decision.card, action=action, paste=paste)).named("GPU")
    # NaN is not JSON
    json.dumps(decision.as_dict(), allow_nan=False)
    assert len(decision.card.verdict.split()) <= 10
    assert max(map(len, card_lines(decision.as_dict()))) <= 80
    assert "device " not in " ".join(card_lines(decision.as_dict()))
    return decision


@pytest.mark.parametrize(
    ("repeats", "paste"), [(3, "repeats: {}"), ({"min": 3, "max": 6}, "repeats: {{max: {}}}")]
)
def test_a_likely_answer_names_the_repeats_to_paste(repeats: Any, paste: str) -> None:
    runs = make_runs({(ALONE, 1): spread(100, 0.05), (ALONE, 2): spread(152, 0.05)})
    decision = answer(runs, {"min_efficiency": 0.7}, repeats)
    assert decision.card.certainty == "Likely"
    more = max(decision.undecided.values())
    assert decision.card.paste == paste.format(3 + more)
    assert decision.card.action.endswith(f"{2 * more} more runs, about {0.03 * more:.3f} device-hours.")


def test_one_run_among_repeats_is_to_be_repeated() -> None:
    card = answer(make_runs(dict(CLEAR) | {(ALONE, 2): [190.0]}), {"min_efficiency": 0.7}).card
    assert (card.certainty, card.reason, card.paste) == ("Likely", SINGLE_RUN, "repeats: 3")


@pytest.mark.parametrize(
    ("outcome", "action"),
    [
        ("not run yet", "Run the same command again."),
        ("failed", "once the reasons of the failures are fixed."),
    ],
)
def test_without_a_result_the_command_is_to_be_run_again(outcome: str, action: str) -> None:
    card = answer(make_runs({(ALONE, 1): [outcome], (ALONE, 2): [outcome]}), {}).card
    assert (card.verdict, card.certainty, card.figures) == ("No answer yet.", "Open", [])
    assert card.action.endswith(action)


def test_a_point_that_needs_no_more_runs_needs_no_known_cost() -> None:
    points = pd.DataFrame({"conditions": "", "n": [3, 6], "device_hours": [0.1, math.nan]})
    assert _further_runs(points, 6) == "3 more runs, about 0.300 device-hours"
    assert _further_runs(points, 7) == "5 more runs"


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.87, "; true needs 13 % less memory)"), (1.2, "; true needs 20 % more memory)"), (0.99, "is shown)")],
)
def test_an_option_that_changes_the_memory_says_by_how_much(change: float, text: str) -> None:
    points = {(name, n): spread(base) for name in ("off", "on") for n, base in ((1, 100), (2, 190))}
    scatter = [0.999, 1.0, 1.001] * 4
    runs = make_runs(points).assign(static_graph=[False] * 6 + [True] * 6)
    runs["peak_memory_bytes"] = [1e9 * each for each in scatter]
    runs.loc[runs["static_graph"], "peak_memory_bytes"] *= change
    decision = answer(runs, {"min_efficiency": 0.7}, swept={"static_graph": [False, True]})
    (shown,) = decision.card.options
    assert shown.endswith(text)


@pytest.mark.parametrize(
    ("most_devices", "action"),
    [
        (4, ("Nothing more to measure.", "")),
        (8, ("To look beyond 4 GPUs, measure 8, too.", "devices: [1, 2, 4, 8]")),
    ],
)
def test_more_devices_are_advised_only_if_the_site_has_them(
    most_devices: int, action: tuple[str, str]
) -> None:
    runs = make_runs({(ALONE, n): spread(95 * n) for n in (1, 2, 4)})
    card = answer(runs, {"min_efficiency": 0.7}, most_devices=most_devices).card
    assert (card.verdict, card.action, card.paste) == ("Use 4 GPUs.", *action)


def test_larger_counts_under_other_conditions_leave_the_answer_likely() -> None:
    runs = make_runs({(ALONE, n): spread(95 * n) for n in (1, 2, 4, 8)})
    runs["fingerprint"] = ["a100"] * 6 + ["h100"] * 6
    conditions = {name: {"device model": name} for name in ("a100", "h100")}
    decision = answer(runs, {"min_efficiency": 0.7}, conditions=conditions)
    card = decision.card
    assert (card.verdict, card.certainty, decision.clear) == ("Use 2 GPUs.", "Likely", False)
    assert card.reason == card.next == "4 and 8 GPUs ran under other conditions."
    assert card.action == "Run all GPU counts under the same conditions: see the cautions."


def test_a_further_doubt_changes_a_clear_answer_only() -> None:
    doubtful = Card("Use 1 GPU. More do not pay.", "Doubtful", "A reason.")
    assert doubtful.in_doubt("Another.") == doubtful
    likely = Card("Use 1 GPU. More do not pay.", "Clear").in_doubt("Another.")
    assert (likely.verdict, likely.certainty, likely.reason) == (
        "Use 1 GPU. More are not shown to pay.",
        "Likely",
        "Another.",
    )
