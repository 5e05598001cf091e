"""Which the answer is, by the table of cases; its figures, its doubts, and what its card says to do next."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.decision_cases import CASES, FOUR, UNKNOWN_WALLS, WHOLE_NODES, Case, both, of, rule
from tests.unit.analysis.planted_decisions import SAMPLES, START_UP, PlantedResults
from tests.unit.analysis.planted_tables import ALONE, decision_on, figure, make_runs, spread
from tests.unit.analysis.reference import next_bound, welch_bounds

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.card import SINGLE_RUN, Card
from scalewise.analysis.decision.choice import KNOWN_WITHIN
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.decision.next_action import _further_runs, next_action
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule, Experiment
from scalewise.plan.terminal.card_lines import card_lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_package_gives_the_answer_of_the_table(case: Case) -> None:
    decision = case.study.decision(case.rule, case.queue_minutes)
    assert decision.devices == case.devices
    assert decision.devices is None or decision.series == case.series
    assert decision.clear == case.clear


def test_twelve_series_on_eight_counts_come_to_few_bytes() -> None:
    """They are part of a page that is to stay small."""
    rates = {count: 100 * count / (1 + 0.01 * count) for count in (1, 2, 4, 8, 16, 32, 64, 128)}
    study = of(rates, series="s0")
    for index in range(1, 12):
        study = both(
            study, of({at: (1 + index / 100) * rate for at, rate in rates.items()}, series=f"s{index}")
        )
    facts = study.facts()
    assert len(facts["points"]) == 12 * 8
    assert len(json.dumps(facts, separators=(",", ":"))) < 70_000


def test_without_a_point_to_choose_the_part_of_the_page_says_so() -> None:
    failed = PlantedResults({(ALONE, 1): ["failed"], (ALONE, 2): ["failed"]})
    assert failed.facts() == {"left_out": "There is nothing to choose among: no device count has a speedup."}


# --- figures ------------------------------------------------------------------------------------------


def longest_minutes(devices: int) -> float:
    """What 95 % of further runs of a point of ``FOUR`` stay below."""
    return next_bound([(START_UP + SAMPLES / float(rate)) / 60 for rate in FOUR.points[ALONE, devices]])


def on(points: Mapping[int, Any], min_efficiency: float = 0.7, **columns: Any) -> Decision:
    """The decision on runs of one series."""
    runs = make_runs({(ALONE, devices): results for devices, results in points.items()}, **columns)
    return decision_on(runs, rule(min_efficiency=min_efficiency))


def test_the_answer_has_speed_interval_efficiency_and_price() -> None:
    decision = on({1: spread(100), 2: spread(190), 4: spread(300), 8: spread(400)})
    bounds = welch_bounds(spread(300), spread(100))
    speed = figure(decision, "Speed")
    assert (speed.low, speed.high) == pytest.approx(bounds)
    assert figure(decision, "Efficiency").value == pytest.approx(0.75)
    assert "4.00x that on 1 device" in figure(decision, "Cost of a run").note
    assert decision.cautions == []
    assert decision.numbers["speedup"] == pytest.approx(3.0)
    assert decision.numbers["speedup_low"] == pytest.approx(bounds[0])
    assert decision.numbers["parallel_efficiency"] == pytest.approx(0.75)
    assert (decision.numbers["n"], decision.numbers["speedup_n"]) == (3, 3)
    assert decision.numbers["throughput_samples_per_second"] == pytest.approx(300, rel=1e-3)
    assert decision.numbers["wall_seconds"] is decision.numbers["queue_minutes"] is None, "unknown here"
    assert json.loads(json.dumps(decision.as_dict())) == decision.as_dict()


def test_a_single_run_has_no_interval_and_a_speedup_the_repeats_of_its_smaller_side() -> None:
    decision = on({1: [100.0], 2: [190.0]})
    speed = figure(decision, "Speed")
    assert (speed.text, speed.low, speed.high, speed.interval) == ("1.90x", None, None, "")
    more = on({1: spread(100), 2: [*spread(190), 190.0, 190.5]})
    assert [each.card.basis[:6] for each in (decision, more)] == ["1 run ", "3 runs"]


def test_the_time_of_a_run_is_bounded_by_what_further_runs_keep_and_holds_the_queue() -> None:
    """The mean of 2 devices is 54.6 minutes, the slowest of its three runs 55.2."""
    assert longest_minutes(2) == pytest.approx(56.4, abs=0.05)
    decision = FOUR.decision(rule(deadline_minutes=56))
    time = figure(decision, "Time of a run")
    assert (decision.devices, time.text, time.interval) == (4, "35.3 min", "34.5 to 36.2")
    assert time.note == f"up to {longest_minutes(4):.1f} min"
    assert "56.4 minutes" in decision.card.next
    assert (decision.card.certainty, len(decision.cautions)) == ("Likely", 1)
    assert FOUR.decision(rule(deadline_minutes=56.5)).devices == 2
    waiting = PlantedResults(FOUR.points, queue_minutes={1: 5, 2: 5, 4: 7.5, 8: 60})
    decision = waiting.decision(rule(deadline_minutes=60))
    assert figure(decision, "Time of a run").note.startswith(
        f"up to {longest_minutes(4) + 7.5:.1f} min, 7.5 "
    )
    assert "61.4 minutes, 5 of them in the queue" in decision.card.next
    assert decision.numbers["queue_minutes"] == 7.5
    assert FOUR.decision(rule(deadline_minutes=200), queue_minutes=inf).devices is None, "it never ends"


def test_device_hours_are_those_that_are_billed_and_may_be_exceeded_by_an_unlucky_run() -> None:
    decision = WHOLE_NODES.decision(rule(max_device_hours=3))
    assert decision.numbers["device_hours"] == pytest.approx(2.356, abs=1e-3)
    assert figure(decision, "Cost of a run").note.endswith(f"{2.356 / 6.8:.2f}x that on 1 device")
    assert "6.80 device-hours" in decision.alternatives[0]
    assert decision.cautions == []
    (caution,) = FOUR.decision(rule(max_device_hours=2.37)).cautions
    assert f"{4 * longest_minutes(4) / 60:.2f} device-hours" in caution


def test_criteria_that_nothing_meets_are_each_compared_with_the_nearest_point() -> None:
    decision = FOUR.decision(rule(min_efficiency=0.9, max_device_hours=1, deadline_minutes=26))
    assert (decision.devices, decision.series, decision.numbers) == (None, ALONE, {})
    found = "8 devices: efficiency 0.50", f"{longest_minutes(8):.1f} minutes", "3.60 device-hours"
    assert all(each in decision.card.reason for each in found)
    assert len(decision.alternatives) == 4
    assert "3.60 device-hours and 27.0 minutes" in decision.alternatives[3]
    cheapest = FOUR.decision(rule(max_device_hours=1)).card.reason
    assert "1 device: 1.70 device-hours" in cheapest


@pytest.mark.parametrize("criterion", ["deadline_minutes", "max_device_hours"])
def test_criteria_on_whole_runs_say_so_where_their_times_are_unknown(criterion: str) -> None:
    asked = rule(**{criterion: 60.0})
    assert f"unknown, and {criterion} needs" in UNKNOWN_WALLS.decision(asked).card.reason
    runs = make_runs(FOUR.points).assign(device_hours=nan)
    scaling = scaling_table(runs, "strong").drop(columns=["wall_seconds", "wall_seconds_high"])
    older = decide("study", scaling, option_table(runs, {}), asked, compared=gains(known_columns(runs)))
    assert (older.devices, older.card.reason) == (None, UNKNOWN_WALLS.decision(asked).card.reason)


@pytest.mark.parametrize(("rate", "least", "shown"), [(139.6, 0.7, "0.698"), (120, 0.725, "0.600")])
def test_an_efficiency_is_shown_with_the_digits_that_tell_it_from_the_limit(
    rate: float, least: float, shown: str
) -> None:
    decision = on({1: [100.0] * 3, 2: [rate] * 3}, least)
    assert f"efficiency {shown}, below the {least:.3f} required" in decision.card.next


# --- without an answer --------------------------------------------------------------------------------


def test_without_a_completed_run_the_outcomes_are_named() -> None:
    decision = on({1: ["failed"] * 3, 2: ["not run yet"] * 3})
    assert (decision.devices, decision.series) == (None, None)
    assert all(outcome in decision.card.reason for outcome in ("(failed)", "(not run yet)"))


def test_series_on_one_device_count_have_their_rates() -> None:
    runs = make_runs({("off", 1): spread(100), ("on", 1): [150.0]})
    decision = decision_on(runs, rule(min_efficiency=0.7))
    assert (decision.devices, decision.clear, decision.card.certainty) == (None, False, "Open")
    assert "100 samples/s (97.5 to 103, n = 3) on 1 device of off" in decision.card.reason
    assert "150 samples/s (n = 1) on 1 device of on" in decision.alternatives[0]


# --- doubts -------------------------------------------------------------------------------------------


def test_a_knee_that_noise_may_have_made_is_a_caution_unless_there_is_a_criterion() -> None:
    noisy = PlantedResults(
        {(ALONE, 1): spread(100), (ALONE, 2): [150, 185, 200], (ALONE, 4): [230, 270, 310]}
    )
    in_doubt = [
        any("may balance" in caution for caution in study.decision(asked).cautions)
        for study, asked in ((noisy, rule()), (FOUR, rule()), (noisy, rule(min_efficiency=0.6)))
    ]
    assert in_doubt == [True, False, False]


def test_an_efficiency_above_one_is_an_error_until_explained() -> None:
    decision = on({1: spread(100), 2: spread(230)})
    (caution,) = decision.cautions
    assert "1.15 on 2 devices. That is an error until it is" in caution
    assert not decision.clear
    assert on({1: [97.0, 100.0, 103.0], 2: [198.0, 202.0, 206.0]}).cautions == []


def test_an_efficiency_in_doubt_has_its_interval() -> None:
    rates = [135.0, 139.0, 150.0]
    low, high = welch_bounds(rates, spread(100))
    decision = on({1: spread(100), 2: rates})
    (doubt,) = (caution for caution in decision.cautions if "you require" in caution)
    assert f" {low / 2:.2f} to {high / 2:.2f}. " in doubt
    assert not decision.clear


@pytest.mark.parametrize(
    ("points", "count"),
    [
        ({2: [*spread(180), "failed"]}, "1 of 4 runs on 2 devices"),
        ({2: spread(180), 4: ["out-of-memory"] * 3}, "3 of 3 runs on 4 devices"),
    ],
)
def test_runs_that_did_not_complete_are_counted(points: dict[int, Any], count: str) -> None:
    decision = on({1: spread(100)} | points)
    assert decision.devices == 2
    assert any(caution.startswith(count) for caution in decision.cautions)


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_repeats_are_a_caution(repeats: int) -> None:
    text = " ".join(on({1: spread(100)[:repeats], 2: [180.0, 180.5][:repeats]}).cautions)
    assert f"only {repeats} completed run" in text
    assert ("a spread of 5 % is assumed" in text) == (repeats == 1)


def test_a_gain_that_may_be_none_has_its_bounds_and_the_repeats_that_would_show_it() -> None:
    one, two = [60.0, 100.0, 190.0], [100.0, 180.0, 230.0]
    hopeless = on({1: one, 2: two})
    assert "more than 20 more repeats of each" in hopeless.cautions[0]
    assert hopeless.undecided[1] > 20, "what is planned by itself is not advised"
    one, two = [80.0, 100.0, 120.0], [130.0, 150.0, 170.0]
    low, high = welch_bounds(two, one)
    assert low < 1.05 < high
    decision = on({1: one, 2: two})
    assert (decision.devices, decision.clear, decision.card.certainty) == (1, False, "Likely")
    assert decision.card.verdict == "Use 1 device. More are not shown to pay."
    assert decision.card.next.endswith("not shown to be 5 % faster than 1 device.")
    (caution,) = decision.cautions
    assert f" {low:.2f} to {high:.2f} times as fast as 1 device. About " in caution


def test_a_gain_that_may_be_anything_is_not_clear_though_it_is_shown() -> None:
    """Runs on one device that other processes slowed by factors, next to three equal ones on two."""
    one, two = [1000.0, 716.0, 1372.0], [4100.0, 4200.0, 4300.0]
    low, high = welch_bounds(two, one)
    assert low > 1.05
    assert high > KNOWN_WITHIN * low
    decision = on({1: one, 2: two})
    assert (decision.devices, decision.clear) == (2, False)
    assert decision.card.certainty == "Doubtful", "an efficiency above 1 is the worse doubt"
    (caution,) = (each for each in decision.cautions if each.startswith("The gain of 2 devices"))
    assert f" {low:.2f}x to {high:.2f}x. " in caution
    assert decision.undecided[1] == decision.undecided[2] > 3
    narrow = on({1: spread(1000), 2: spread(1900)})
    assert (narrow.devices, narrow.clear, narrow.undecided) == (2, True, {})


# --- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faster", "verdict"), [(1.0, "no difference is shown"), (1.5, "faster."), (0.5, "slower.")]
)
def test_what_an_option_gains_is_said_apart_from_scaling(faster: float, verdict: str) -> None:
    tables = [
        make_runs(
            {(name, 1): spread(100 * rate), (name, 2): spread(180 * rate)},
            gradient_as_bucket_view=name == "on",
            peak_memory_bytes=memory,
        )
        for name, rate, memory in (("off", 1.0, 700e6), ("on", faster, 350e6))
    ]
    swept = {"gradient_as_bucket_view": [False, True]}
    runs = pd.concat(tables, ignore_index=True)
    first, second = decision_on(runs, rule(min_efficiency=0.7), swept=swept).options
    low, high = welch_bounds(spread(180 * faster), spread(180))
    assert f" on 2 devices: {faster:.2f}x the throughput ({low:.2f} to {high:.2f}, n = 3): " in second
    assert verdict in first
    assert verdict in second
    assert second.endswith(" 0.500x the peak memory.")


def test_what_differs_beside_an_option_stands_with_its_gain() -> None:
    study = of({1: 100, 2: 190})
    both = pd.concat([study.runs.assign(precision=each) for each in ("fp32", "bf16")], ignore_index=True)
    differing = "CPU model is New, not Old"
    options = option_table(both, {"precision": ["fp32", "bf16"]}).assign(also_differs=differing)
    decision = decide("study", study.scaling, options, rule(), compared=study.compared)
    assert differing in decision.options[0]


# --- what the card says to do next ----------------------------------------------------------------------


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
