"""The answer: how many devices, why, and what weakens it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.decisions import decision_on, figure
from tests.unit.analysis.planted_tables import ALONE, Point, make_runs, spread
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.decision.choice import KNOWN_WITHIN
from scalewise.analysis.decision.decision import Decision
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.config.shape import count_devices


def answer(
    points: Mapping[Point, Any],
    min_efficiency: float = 0.7,
    change: Callable[[pd.DataFrame], None] = lambda _runs: None,
) -> Decision:
    runs = make_runs(points)
    change(runs)
    return decision_on(runs, DecisionRule(min_efficiency=min_efficiency))


FOUR = {
    (ALONE, 1): spread(100),
    (ALONE, 2): spread(190),
    (ALONE, 4): spread(300),
    (ALONE, 8): spread(400),
}


@pytest.mark.parametrize(("least", "devices"), [(0.96, 1), (0.9, 2), (0.75, 4), (0.7, 4), (0.5, 8)])
def test_the_most_devices_that_are_worth_it(least: float, devices: int) -> None:
    decision = answer(FOUR, least)
    assert decision.devices == devices
    assert decision.series == ALONE
    assert decision.card.verdict.startswith(f"Use {count_devices(devices)}.")


def test_the_card_has_speed_interval_efficiency_and_price() -> None:
    decision = answer(FOUR, 0.7)
    speed = figure(decision, "Speed")
    assert (speed.low, speed.high) == pytest.approx(welch_bounds(spread(300), spread(100)))
    assert (speed.text, speed.note) == ("3.00x", "as fast as 1 device")
    assert figure(decision, "Efficiency").value == pytest.approx(0.75)
    cost = figure(decision, "Cost of a run")
    assert cost.note == "start-up and evaluation included; 4.00x that on 1 device"
    assert decision.card.next.startswith("8 devices would be 4.00x")


def test_one_device_where_more_are_not_worth_it_and_the_card_says_why() -> None:
    decision = answer({(ALONE, 1): spread(100), (ALONE, 2): spread(120)}, 0.7)
    assert decision.devices == 1
    assert decision.card.next.startswith("2 devices would be 1.20x")
    assert decision.card.next.endswith("efficiency 0.60, below the 0.70 required.")


def test_every_other_point_of_the_series_is_an_alternative() -> None:
    first, second, last = answer(FOUR, 0.7).alternatives
    assert first == "1 device: the baseline, 100 samples/s."
    assert second.startswith("2 devices: 1.90x")
    assert last.startswith("8 devices: 4.00x")
    assert "2.00x the device-hours" in last


def test_a_single_run_is_not_given_an_interval() -> None:
    decision = answer({(ALONE, 1): [100.0], (ALONE, 2): [190.0]})
    speed = figure(decision, "Speed")
    assert (speed.text, speed.low, speed.high, speed.interval) == ("1.90x", None, None, "")
    assert decision.card.basis.startswith("1 run ")


def test_the_repeats_of_a_speedup_are_those_of_its_smaller_side() -> None:
    decision = answer({(ALONE, 1): spread(100), (ALONE, 2): [*spread(190), 190.0, 190.5]})
    assert decision.card.basis.startswith("3 runs ")


def test_without_a_completed_run_there_is_no_decision_and_the_outcomes_are_named() -> None:
    decision = answer({(ALONE, 1): ["failed"] * 3, (ALONE, 2): ["not run yet"] * 3})
    assert decision.devices is None
    assert decision.series is None
    assert decision.card.reason == "No completed run (failed); no completed run (not run yet)."


def test_one_device_count_decides_nothing_and_its_rate_is_the_answer() -> None:
    decision = answer({(ALONE, 2): spread(100)})
    assert (decision.devices, decision.clear) == (None, False)
    assert decision.card.certainty == "Open"
    assert decision.card.reason == "Measured: 100 samples/s (97.5 to 103, n = 3) on 2 devices."


def test_of_several_series_on_one_device_count_each_has_its_rate() -> None:
    decision = answer({("off", 1): spread(100), ("on", 1): [150.0]})
    assert decision.card.reason == "Measured: 100 samples/s (97.5 to 103, n = 3) on 1 device of off."
    assert decision.alternatives == ["Measured: 150 samples/s (n = 1) on 1 device of on."]


def test_the_first_series_is_kept_unless_another_is_faster_beyond_its_interval() -> None:
    plain: dict[tuple[str, int], Sequence[float]] = {("off", 1): spread(100), ("off", 2): spread(180)}
    close = plain | {("on", 1): spread(100.5), ("on", 2): spread(181)}
    assert answer(close).series == "off"
    beyond = plain | {("on", 1): spread(120), ("on", 2): spread(200)}
    decision = answer(beyond)
    assert decision.series == "on"
    assert decision.card.verdict == "Use 2 devices with on."
    assert figure(decision, "Speed").value == pytest.approx(200 / 120)


def test_a_series_that_is_faster_on_fewer_devices_is_taken_with_its_own_count() -> None:
    decision = answer(
        {
            ("slow", 1): spread(100),
            ("slow", 2): spread(180),
            ("fast", 1): spread(1000),
            ("fast", 2): spread(1100),
        }
    )
    assert (decision.series, decision.devices) == ("fast", 1)


def test_a_first_series_without_a_baseline_leaves_the_choice_to_the_others() -> None:
    decision = answer(
        {
            ("off", 1): ["failed"] * 3,
            ("off", 2): spread(500),
            ("on", 1): spread(100),
            ("on", 2): spread(180),
        }
    )
    assert (decision.series, decision.devices) == ("on", 2)


def test_a_sound_answer_has_no_cautions() -> None:
    assert answer(FOUR).cautions == []


def test_an_efficiency_above_one_is_an_error_until_explained() -> None:
    decision = answer({(ALONE, 1): spread(100), (ALONE, 2): spread(230)})
    (caution,) = decision.cautions
    assert caution.startswith("Efficiency is above 1: 1.15 on 2 devices. That is an error until it is")
    assert not decision.clear
    within = {(ALONE, 1): [97.0, 100.0, 103.0], (ALONE, 2): [198.0, 202.0, 206.0]}
    assert answer(within).cautions == []


def test_accuracy_that_falls_with_devices_is_said() -> None:
    def lower(runs: pd.DataFrame) -> None:
        runs.loc[runs["devices"] == 2, "final_accuracy"] = [0.90, 0.91, 0.92]

    points = {(ALONE, 1): spread(100), (ALONE, 2): spread(180)}
    (caution,) = answer(points, change=lower).cautions
    assert caution == (
        "Accuracy is 7.0 points lower on 2 devices: 91.0 % instead of 98.0 %. Check the learning rate, or "
        "train for longer."
    )

    def overlapping(runs: pd.DataFrame) -> None:
        runs.loc[runs["devices"] == 2, "final_accuracy"] = [0.96, 0.97, 0.98]

    assert answer(points, change=overlapping).cautions == []


def test_runs_that_did_not_complete_are_said() -> None:
    points = {(ALONE, 1): spread(100), (ALONE, 2): [*spread(180), "failed"]}
    assert answer(points).cautions == ["1 of 4 runs on 2 devices have no result (1 failed)."]


def test_a_device_count_none_of_whose_runs_completed_is_said_too() -> None:
    """Else the answer would read as if that count had never been tried."""
    decision = answer({(ALONE, 1): spread(100), (ALONE, 2): spread(180), (ALONE, 4): ["out-of-memory"] * 3})
    assert decision.devices == 2
    assert any("4 devices" in caution for caution in decision.cautions)


@pytest.mark.parametrize(
    ("repeats", "words"),
    [(1, "1 completed run; a spread of 5 % is assumed."), (2, "2 completed runs.")],
)
def test_fewer_than_three_repeats_are_said(repeats: int, words: str) -> None:
    points = {(ALONE, 1): spread(100)[:repeats], (ALONE, 2): [180.0, 180.5][:repeats]}
    text = " ".join(answer(points).cautions)
    assert words in text
    assert "Use at least 3 repeats" in text


def test_a_target_that_was_missed_is_said_beside_the_decision() -> None:
    runs = make_runs({(ALONE, 1): spread(100), (ALONE, 2): spread(190)})
    runs.loc[runs["devices"] == 1, "time_to_accuracy_seconds"] = 9.0
    runs.loc[runs["devices"] == 2, "time_to_accuracy_seconds"] = [5.0, 5.0, float("nan")]
    runs.loc[runs["devices"] == 2, "epochs_to_accuracy"] = [3.0, 3.0, float("nan")]
    decision = decision_on(runs, DecisionRule(min_efficiency=0.7), target=0.97)
    assert "2 of 3 runs on 2 devices reached 97.0 % accuracy." in decision.cautions
    assert (
        "Training time to 97.0 % accuracy: 9.00 s on 1 device, 5.00 s on 2 devices (in 2 of 3 runs)."
        in decision.alternatives
    )


def test_more_devices_that_are_slower_are_not_recommended() -> None:
    decision = answer({(ALONE, 1): spread(100), (ALONE, 2): spread(190), (ALONE, 3): spread(180)}, 0.5)
    assert decision.devices == 2


def test_a_baseline_of_several_devices_is_said() -> None:
    decision = answer({(ALONE, 2): spread(100), (ALONE, 4): spread(190)})
    assert decision.devices == 4
    assert figure(decision, "Speed").note == "as fast as 2 devices"
    assert decision.cautions == ["Speedups are relative to 2 devices, not to 1."]


def test_a_speedup_that_may_be_none_is_no_reason_for_more_devices() -> None:
    one, two = [60.0, 100.0, 190.0], [100.0, 180.0, 230.0]
    hopeless = answer({(ALONE, 1): one, (ALONE, 2): two})
    advice = "Too close to tell apart at this scatter: that would take more than 20 more repeats of each."
    assert hopeless.cautions[0].endswith(advice)
    assert hopeless.cautions[0].endswith(advice)
    assert hopeless.undecided[1] > 20, "what is planned by itself is not advised"
    one, two = [80.0, 100.0, 120.0], [130.0, 150.0, 170.0]
    low, high = welch_bounds(two, one)
    assert low < 1.05 < high
    decision = answer({(ALONE, 1): one, (ALONE, 2): two})
    assert (decision.devices, decision.clear) == (1, False)
    assert decision.card.certainty == "Likely"
    assert decision.card.verdict == "Use 1 device. More are not shown to pay."
    assert decision.card.next.endswith("not shown to be 5 % faster than 1 device.")
    (caution,) = decision.cautions
    assert caution.startswith(
        f"2 devices may be worth having: {low:.2f} to {high:.2f} times as fast as 1 device. About "
    )
    assert caution.endswith(" more repeats of each should settle it.")


def test_a_gain_that_may_be_anything_is_not_clear_though_it_is_shown() -> None:
    """Runs on one device that other processes slowed by factors, next to three equal ones on two."""
    one, two = [1000.0, 716.0, 1372.0], [4100.0, 4200.0, 4300.0]
    low, high = welch_bounds(two, one)
    assert low > 1.05
    assert high > KNOWN_WITHIN * low
    decision = answer({(ALONE, 1): one, (ALONE, 2): two})
    assert (decision.devices, decision.clear) == (2, False)
    assert decision.card.certainty == "Doubtful", "an efficiency above 1 is the worse doubt"
    (caution,) = (each for each in decision.cautions if each.startswith("The gain"))
    assert caution.startswith(f"The gain of 2 devices is not known well enough: {low:.2f}x to {high:.2f}x. ")
    assert decision.undecided[1] == decision.undecided[2] > 3
    narrow = answer({(ALONE, 1): spread(1000), (ALONE, 2): spread(1900)})
    assert (narrow.devices, narrow.clear, narrow.undecided) == (2, True, {})


def _gains(faster: float) -> list[str]:
    runs = pd.concat(
        [
            make_runs({("off", 1): spread(100), ("off", 2): spread(180)}, gradient_as_bucket_view=False),
            make_runs(
                {("on", 1): spread(100 * faster), ("on", 2): spread(180 * faster)},
                gradient_as_bucket_view=True,
                peak_memory_bytes=350e6,
            ),
        ],
        ignore_index=True,
    )
    swept = {"gradient_as_bucket_view": [False, True]}
    return decision_on(runs, DecisionRule(min_efficiency=0.7), swept=swept).options


@pytest.mark.parametrize(
    ("faster", "verdict"),
    [(1.0, "no difference is shown; it may be anything in the interval"), (1.5, "faster"), (0.5, "slower")],
)
def test_what_an_option_gains_is_said_apart_from_scaling(faster: float, verdict: str) -> None:
    first, second = _gains(faster)
    assert first.startswith("gradient_as_bucket_view true instead of false, on 1 device: ")
    assert second.startswith("gradient_as_bucket_view true instead of false, on 2 devices: ")
    low, high = welch_bounds(spread(180 * faster), spread(180))
    ratio = f"{faster:.2f}x the throughput ({low:.2f} to {high:.2f}, n = 3): {verdict}."
    assert second.endswith(f"{ratio} 0.500x the peak memory.")
    assert verdict in first


def test_a_program_reads_the_decisions_numbers_under_the_names_of_the_table() -> None:
    numbers = answer(FOUR).numbers
    assert numbers["speedup"] == pytest.approx(3.0)
    assert numbers["speedup_low"] == pytest.approx(welch_bounds(spread(300), spread(100))[0])
    assert numbers["n"] == 3
    assert numbers["parallel_efficiency"] == pytest.approx(0.75)
    assert numbers["speedup_n"] == 3
    assert numbers["throughput_samples_per_second"] == pytest.approx(300, rel=1e-3)
    assert numbers["wall_seconds"] is None, "not known here"
    assert numbers["queue_minutes"] is None


def test_a_decision_is_plain_data() -> None:
    decision = answer(FOUR)
    assert json.loads(json.dumps(decision.as_dict())) == decision.as_dict()
    assert decision.as_dict()["experiment"] == "study"


def test_series_are_compared_at_equal_devices() -> None:
    # the second series is no faster than the first on 2 devices, only than the first on 1
    decision = answer(
        {("off", 1): spread(100), ("off", 2): spread(120), ("on", 1): spread(70), ("on", 2): spread(121)}
    )
    assert (decision.series, decision.devices) == ("off", 1)
