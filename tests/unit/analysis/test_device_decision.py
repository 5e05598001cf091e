"""The answer by the table of cases; its figures, its doubts, and what its card says to do next."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tests.truth.studies import STUDIES, Circumstances, judge, run_table
from tests.truth.studies import answer as planted_answer
from tests.unit.analysis.decision_cases import CASES, FOUR, UNKNOWN_WALLS, WHOLE_NODES, Case, rule
from tests.unit.analysis.planted_decisions import SAMPLES, START_UP, PlantedResults
from tests.unit.analysis.planted_tables import ONLY, decision_on, figure, make_runs, spread
from tests.unit.analysis.reference import next_bound, welch_bounds

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.decision.card import SINGLE_RUN, Card
from scalewise.analysis.decision.choice import KNOWN_WITHIN
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.decision.next_action import _further_runs, next_action
from scalewise.analysis.decision.wording import option_sentences
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.terminal.card_lines import card_lines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_package_gives_the_answer_of_the_table(case: Case) -> None:
    decision = case.study.decision(case.rule, case.queue_minutes)
    assert decision.devices == case.devices
    assert decision.devices is None or decision.series == case.series
    assert decision.clear == case.clear


def test_answers_to_planted_studies_are_right_or_say_that_they_may_not_be() -> None:
    """``python -m tests.truth`` draws 100 studies of each, with more and with less scatter."""
    draws = np.random.default_rng(20260110)
    verdicts = Counter(
        judge(planted, planted_answer(planted, run_table(planted, draws, 0.02, 3, Circumstances())))
        for planted in STUDIES.values()
    )
    assert verdicts["wrong"] == 0
    assert verdicts["right"] >= len(STUDIES) - 3


def test_of_sixteen_options_only_the_one_that_doubles_the_speed_is_called_faster() -> None:
    """By p values that are not adjusted for their number, others are called faster or slower, too."""
    logs = np.random.default_rng(1).normal(0, 0.03, (17, 3))
    logs[7] += math.log(2)
    runs = make_runs({(f"cap-{value}", 4): 100 * np.exp(each) for value, each in enumerate(logs)})
    runs = runs.assign(bucket_cap_mb=[float(value) for value in range(17) for _ in range(3)])
    p_values = [stats.ttest_ind(each, logs[0], equal_var=False).pvalue for each in np.delete(logs, [0, 7], 0)]
    assert min(p_values) < 0.05
    values = [float(value) for value in range(17)]
    called = [
        text
        for text in option_sentences(option_table(runs, {"bucket_cap_mb": values}))
        if "no difference is shown" not in text
    ]
    assert [text.partition(",")[0] for text in called] == ["bucket_cap_mb 7.0 instead of 0.0"]


def test_without_a_point_to_choose_the_part_of_the_page_states_that() -> None:
    failed = PlantedResults({(ONLY, 1): ["failed"], (ONLY, 2): ["failed"]})
    assert failed.facts() == {"left_out": "There is nothing to choose among: no device count has a speedup."}


# --- figures ------------------------------------------------------------------------------------------


def longest_minutes(devices: int) -> float:
    """Return what 95 % of further runs of a point of ``FOUR`` stay below."""
    return next_bound([(START_UP + SAMPLES / float(rate)) / 60 for rate in FOUR.points[ONLY, devices]])


def on(points: Mapping[int, Any], min_efficiency: float = 0.7) -> Decision:
    runs = make_runs({(ONLY, devices): results for devices, results in points.items()})
    return decision_on(runs, rule(min_efficiency=min_efficiency))


def test_the_answer_has_speed_interval_efficiency_and_cost() -> None:
    four = [*spread(300), 300.0]
    decision = on({1: spread(100), 2: spread(190), 4: four, 8: spread(400)})
    bounds = welch_bounds(four, spread(100))
    speed = figure(decision, "Speed")
    assert (speed.low, speed.high) == pytest.approx(bounds)
    assert figure(decision, "Efficiency").value == pytest.approx(0.75, rel=1e-4)
    assert "4.00x that on 1 device" in figure(decision, "Cost of a run").note
    assert decision.card.basis.startswith("3 to 4 runs ")
    assert decision.cautions == []
    numbers = decision.numbers
    found = [numbers[key] for key in ("speedup", "speedup_low", "parallel_efficiency", "n", "speedup_n")]
    assert found == pytest.approx([3.0, bounds[0], 0.75, 4, 3], rel=1e-4)
    assert numbers["throughput_samples_per_second"] == pytest.approx(300, rel=1e-3)
    assert numbers["wall_seconds"] is numbers["queue_minutes"] is None, "unknown here"


def test_the_time_of_a_run_is_bounded_by_what_further_runs_keep_and_holds_the_queue() -> None:
    """The mean of 2 devices is 54.6 minutes, the slowest of its three runs 55.2."""
    assert longest_minutes(2) == pytest.approx(56.4, abs=0.05)
    decision = FOUR.decision(rule(deadline_minutes=56))
    time = figure(decision, "Time of a run")
    assert (decision.devices, time.text, time.interval) == (4, "35.3 min", "34.5 to 36.2")
    assert time.note == f"up to {longest_minutes(4):.1f} min"
    assert "56.4 minutes" in decision.card.next
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
    nearest = FOUR.decision(rule(max_device_hours=1)).card.reason
    assert "1 device: 1.70 device-hours" in nearest
    for criterion in ("deadline_minutes", "max_device_hours"):
        unknown = UNKNOWN_WALLS.decision(rule(**{criterion: 60.0})).card.reason
        assert f"unknown, and {criterion} needs" in unknown


@pytest.mark.parametrize(("rate", "least", "shown"), [(139.6, 0.7, "0.698"), (120, 0.725, "0.600")])
def test_an_efficiency_is_shown_with_the_digits_that_differ_from_the_limit(
    rate: float, least: float, shown: str
) -> None:
    decision = on({1: [100.0] * 3, 2: [rate] * 3}, least)
    assert f"efficiency {shown}, below the {least:.3f} required" in decision.card.next


def test_series_on_one_device_count_have_their_rates() -> None:
    decision = decision_on(make_runs({("off", 1): spread(100), ("on", 1): [150.0]}), rule(min_efficiency=0.7))
    assert (decision.devices, decision.clear, decision.card.certainty) == (None, False, "Open")
    assert "100 samples/s (97.5 to 103, n = 3) on 1 device of off" in decision.card.reason
    assert "150 samples/s (n = 1) on 1 device of on" in decision.alternatives[0]


# --- doubts -------------------------------------------------------------------------------------------


def test_a_gain_that_may_be_none_has_its_bounds_and_the_repeats_that_would_show_it() -> None:
    hopeless = on({1: [60.0, 100.0, 190.0], 2: [100.0, 180.0, 230.0]})
    assert "more than 20 more repeats of each" in hopeless.cautions[0]
    assert hopeless.undecided[1] > 20, "what is planned by itself is not advised"
    one, two = [80.0, 100.0, 120.0], [130.0, 150.0, 170.0]
    low, high = welch_bounds(two, one)
    assert low < 1.05 < high
    decision = on({1: one, 2: two})
    (caution,) = decision.cautions
    assert f" {low:.2f} to {high:.2f} times as fast as 1 device. About " in caution
    assert 2 in decision.undecided


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


def test_a_further_doubt_changes_a_clear_answer_only() -> None:
    doubtful = Card("Use 1 GPU. More do not pay.", "Doubtful", "A reason.")
    assert doubtful.in_doubt("Another.") == doubtful
    likely = Card("Use 1 GPU. More do not pay.", "Clear").in_doubt("Another.")
    assert (likely.verdict, likely.certainty) == ("Use 1 GPU. More are not shown to pay.", "Likely")
    assert likely.reason == "Another."


def test_an_option_without_any_effect_is_not_slower_and_unknown_memory_is_not_stated() -> None:
    runs = make_runs({("off", 1): [100.0] * 3, ("on", 1): [100.0] * 3}).assign(peak_memory_bytes=math.nan)
    runs["compile"] = [False] * 3 + [True] * 3
    (equal,) = option_sentences(option_table(runs, {"compile": [False, True]}))
    assert equal.endswith("no difference is shown; it may be anything in the interval.")


# --- what the card says to do next ----------------------------------------------------------------------


def answer(runs: pd.DataFrame, repeats: Any = 3, most_devices: int = 64, **others: Any) -> Decision:
    """Return the decision with the next action, as a study on GPUs has it."""
    decision = decision_on(runs, rule(min_efficiency=0.7), noun="GPU", **others)
    devices = sorted(runs["devices"].unique().tolist())
    training = {"dataset": "digits", "model": "linear", "global_batch_size": 64, "epochs": 1}
    spec = Experiment.model_validate(training | {"devices": devices, "repeats": repeats})
    scaling = scaling_table(known_columns(runs), "strong")
    experiment = AnalysisSpec("study", spec, accelerator="cuda", most_devices=most_devices)
    action, paste = next_action(experiment, decision.card, scaling, decision.undecided, scaling)
    decision = replace(decision, card=replace(decision.card, action=action, paste=paste)).named("GPU")
    json.dumps(decision.as_dict(), allow_nan=False)  # NaN is not JSON
    assert max(map(len, card_lines(decision.as_dict()))) <= 80
    assert "device " not in " ".join(card_lines(decision.as_dict()))
    return decision


@pytest.mark.parametrize(
    ("repeats", "paste"), [(3, "repeats: {}"), ({"min": 3, "max": 6}, "repeats: {{max: {}}}")]
)
def test_a_likely_answer_names_the_repeats_to_paste(repeats: Any, paste: str) -> None:
    decision = answer(make_runs({(ONLY, 1): spread(100, 0.05), (ONLY, 2): spread(152, 0.05)}), repeats)
    assert decision.card.certainty == "Likely"
    more = max(decision.undecided.values())
    assert decision.card.paste == paste.format(3 + more)
    assert decision.card.action.endswith(f"{2 * more} more runs, about {0.03 * more:.3f} device-hours.")


def test_a_point_that_needs_no_more_runs_needs_no_known_cost() -> None:
    points = pd.DataFrame({"n": [3, 6], "device_hours": [0.1, math.nan]})
    assert _further_runs(points, 6) == "3 more runs, about 0.300 device-hours"
    assert _further_runs(points, 7) == "5 more runs"


SCALES_TO_FOUR = {(ONLY, n): spread(95 * n) for n in (1, 2, 4)}


@pytest.mark.parametrize(
    ("points", "most_devices", "verdict", "action", "paste"),
    [
        ({(ONLY, 1): ["not run yet"], (ONLY, 2): ["not run yet"]}, 8,
         "No answer yet.", "Run the same command again.", ""),
        ({(ONLY, 1): ["failed"], (ONLY, 2): ["failed"]}, 8,
         "No answer yet.", "once the reasons of the failures are fixed.", ""),
        ({(ONLY, 1): spread(100), (ONLY, 2): [190.0], (ONLY, 4): spread(340), (ONLY, 8): spread(480)}, 8,
         "Use 4 GPUs.", "Run the same command again: 2 more runs, about 0.0400 device-hours.", ""),
        (SCALES_TO_FOUR, 4, "Use 4 GPUs.", "Nothing more to measure.", ""),
        (SCALES_TO_FOUR, 8, "Use 4 GPUs.", "To look beyond 4 GPUs, measure 8, too.", "devices: [1, 2, 4, 8]"),
    ],
    ids=["not run yet", "all failed", "one single run", "all that the site has", "more than that"],
)  # fmt: skip
def test_the_card_says_what_to_do_next(
    points: Mapping[tuple[str, int], Any], most_devices: int, verdict: str, action: str, paste: str
) -> None:
    card = answer(make_runs(points), most_devices=most_devices).card
    assert (card.verdict, card.paste) == (verdict, paste)
    assert card.action.endswith(action)
    assert (card.reason == SINGLE_RUN) == ("2 more runs" in action)


def test_repeats_that_the_configuration_has_but_no_run_yet_need_the_same_command_only() -> None:
    noisy = make_runs({(ONLY, 1): spread(100, 0.05), (ONLY, 2): spread(152, 0.05)})
    more = max(answer(noisy).undecided.values())
    for repeats in (3 + more, {"min": 3, "max": 3 + more}):
        card = answer(noisy, repeats).card
        assert card.action.startswith("Run the same command again: ")
        assert (f"{2 * more} more runs, about" in card.action, card.paste) == (True, "")
    assert answer(noisy, 2 + more).card.paste == f"repeats: {3 + more}"
    single = answer(make_runs({(ONLY, 1): spread(100), (ONLY, 2): [190.0]}), repeats=1).card
    assert (single.reason, single.paste) == (SINGLE_RUN, "repeats: 3")


def test_the_card_says_how_many_runs_the_device_counts_have_if_these_differ() -> None:
    points = {(ONLY, 1): spread(100, repeats=6), (ONLY, 2): spread(190, repeats=2)}
    runs = make_runs(points | {(ONLY, 4): spread(350, repeats=6)})
    assert answer(runs).card.basis == "2 to 6 runs of each GPU count. Ranges are 95 % intervals."
    alike = answer(make_runs(SCALES_TO_FOUR)).card.basis
    assert alike == "3 runs of each GPU count. Ranges are 95 % intervals."


@pytest.mark.parametrize(
    ("change", "text"),
    [(0.87, "; true needs 13 % less memory)"), (1.2, "; true needs 20 % more memory)"), (0.99, "is shown)")],
)
def test_an_option_that_changes_the_memory_says_by_how_much(change: float, text: str) -> None:
    points = {(name, n): spread(base) for name in ("off", "on") for n, base in ((1, 100), (2, 190))}
    runs = make_runs(points).assign(static_graph=[False] * 6 + [True] * 6)
    runs["peak_memory_bytes"] = [1e9 * each for each in [0.999, 1.0, 1.001] * 4]
    runs.loc[runs["static_graph"], "peak_memory_bytes"] *= change
    (shown,) = answer(runs, swept={"static_graph": [False, True]}).card.options
    assert shown.endswith(text)


def test_larger_counts_under_other_conditions_leave_the_answer_likely() -> None:
    runs = make_runs(SCALES_TO_FOUR | {(ONLY, 8): spread(760)})
    runs["fingerprint"] = ["a100"] * 6 + ["h100"] * 6
    conditions = {name: {"device model": name} for name in ("a100", "h100")}
    decision = answer(runs, conditions=conditions)
    card = decision.card
    assert (card.verdict, card.certainty, decision.clear) == ("Use 2 GPUs.", "Likely", False)
    assert card.reason == card.next == "4 and 8 GPUs ran under other conditions."
    assert card.action == "Run all GPU counts under the same conditions: see the cautions."
