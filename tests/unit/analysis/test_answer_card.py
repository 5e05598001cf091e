"""The card of an answer: verdict, certainty, figures, and what to do next, of planted runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.decisions import decision_on, figure
from tests.unit.analysis.planted_tables import ALONE, make_runs, spread

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


def test_a_clear_answer_has_four_figures_and_nothing_to_do() -> None:
    decision = answer(make_runs(CLEAR), {"min_efficiency": 0.7})
    card = decision.card
    assert (card.verdict, card.certainty, card.reason) == ("Use 4 GPUs.", "Clear", "")
    labels = [each.label for each in card.figures]
    assert labels == ["Speed", "Efficiency", "Cost of a run", "Final accuracy"]
    assert (figure(decision, "Speed").note, card.basis[:7]) == ("as fast as 1 GPU", "3 runs ")
    assert card.next.startswith("8 GPUs would be 4.80x")
    assert (card.action, card.paste) == ("Nothing more to measure.", "")


def test_the_most_devices_may_not_be_the_end() -> None:
    card = answer(make_runs(CLEAR), {"min_efficiency": 0.5}).card
    assert (card.verdict, card.certainty) == ("Use 8 GPUs.", "Clear")
    assert card.paste == "devices: [1, 2, 4, 8, 16]"


@pytest.mark.parametrize(
    ("repeats", "paste"), [(3, "repeats: {}"), ({"min": 3, "max": 6}, "repeats: {{max: {}}}")]
)
def test_a_likely_answer_names_the_repeats_to_paste(repeats: Any, paste: str) -> None:
    runs = make_runs({(ALONE, 1): spread(100, 0.05), (ALONE, 2): spread(152, 0.05)})
    decision = answer(runs, {"min_efficiency": 0.7}, repeats)
    assert decision.card.certainty == "Likely"
    assert decision.card.reason.startswith("The efficiency may be below the 0.70 that you require: ")
    more = max(decision.undecided.values())
    assert decision.card.paste == paste.format(3 + more)
    assert decision.card.action.endswith(f"{2 * more} more runs, about {0.03 * more:.3f} device-hours.")


def test_a_point_that_needs_no_more_runs_needs_no_known_cost() -> None:
    points = pd.DataFrame({"conditions": "", "n": [3, 6], "device_hours": [0.1, math.nan]})
    assert _further_runs(points, 6) == "3 more runs, about 0.300 device-hours"
    assert _further_runs(points, 7) == "5 more runs"


def test_single_runs_are_to_be_repeated() -> None:
    points = {point: rates[:1] for point, rates in CLEAR.items()}
    card = answer(make_runs(points), {"min_efficiency": 0.7}).card
    assert card.certainty == "Likely"
    assert figure(answer(make_runs(points), {"min_efficiency": 0.7}), "Speed").interval == ""
    assert card.paste.startswith("repeats: ")
    one_of_many = dict(CLEAR) | {(ALONE, 2): [190.0]}
    card = answer(make_runs(one_of_many), {"min_efficiency": 0.7}).card
    assert (card.reason, card.paste) == (SINGLE_RUN, "repeats: 3")


def test_an_answer_on_disturbed_runs_is_doubtful() -> None:
    runs = make_runs(CLEAR)
    runs["disturbance"] = ["other processes" if devices == 4 else "" for devices in runs["devices"]]
    card = answer(runs, {"min_efficiency": 0.7}).card
    assert (card.certainty, card.reason) == ("Doubtful", "It rests on disturbed runs.")
    assert "quiet machine" in card.action


def test_without_a_run_there_is_no_answer_yet() -> None:
    card = answer(make_runs({(ALONE, 1): ["not run yet"], (ALONE, 2): ["not run yet"]}), {}).card
    assert (card.verdict, card.certainty, card.figures) == ("No answer yet.", "Open", [])
    assert card.action == "Run the same command again."
    card = answer(make_runs({(ALONE, 1): ["failed"], (ALONE, 2): ["failed"]}), {}).card
    assert card.action.endswith("once the reasons of the failures are fixed.")


def test_one_device_count_asks_for_a_second_one() -> None:
    card = answer(make_runs({(ALONE, 2): spread(100)}), {}).card
    assert card.verdict == "No answer yet: only 2 GPUs measured."
    assert (card.action, card.paste) == ("Measure a second GPU count.", "devices: [2, 4]")


def test_a_deadline_shows_the_time_of_a_run_with_the_queue() -> None:
    runs = make_runs(CLEAR)
    runs["wall_seconds"] = 360_000 / runs["throughput_samples_per_second"]
    decision = answer(runs, {"deadline_minutes": 40}, queue_minutes={1: 0, 2: 5, 4: 5, 8: 5})
    time = figure(decision, "Time of a run")
    assert decision.card.verdict == "Use 2 GPUs."
    assert time.value == pytest.approx(6000 / 190, rel=0.01)
    assert time.note.endswith(" min, 5 of them in the queue")
    assert decision.card.next == "1 GPU would take 60.0 minutes."


def test_with_a_target_every_figure_is_of_the_way_to_it() -> None:
    runs = make_runs(CLEAR)
    runs["time_to_accuracy_seconds"] = 1000 / runs["throughput_samples_per_second"]
    decision = answer(runs, {"min_efficiency": 0.7}, target=0.97)
    labels = [each.label for each in decision.card.figures]
    assert labels == ["Speed to target", "Efficiency to target", "Cost of a run", "Time to target"]
    assert figure(decision, "Time to target").note == "97.0 % accuracy"
    unknown = dict.fromkeys(("time_to_accuracy_seconds", "epochs_to_accuracy"), float("nan"))
    unreached = answer(runs.assign(**unknown), {"min_efficiency": 0.7}, target=0.97)
    assert unreached.card.reason == "No run reached 97.0 % accuracy: throughput decides."
    assert unreached.card.action == "Train for longer, or lower the target."


@pytest.mark.parametrize(
    ("rate", "line"),
    [
        (1.0, "static_graph: false (kept: no difference in speed is shown)"),
        (1.5, "static_graph: true (1.50x the speed of false, 1.4"),
        (0.7, "static_graph: false (the fastest)"),
    ],
)
def test_an_option_has_the_reason_for_its_value(rate: float, line: str) -> None:
    points = {("off", n): spread(base) for n, base in ((1, 100), (2, 190))}
    points |= {("on", n): spread(base * rate) for n, base in ((1, 100), (2, 190))}
    runs = make_runs(points).assign(static_graph=[False] * 6 + [True] * 6)
    decision = answer(runs, {"min_efficiency": 0.7}, swept={"static_graph": [False, True]})
    (shown,) = decision.card.options
    assert shown.startswith(line)


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
