"""The criteria a user may give: which devices each of them chooses, and what is said where none will do."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import pandas as pd
import pytest
from tests.unit.analysis.decisions import decision_on, figure
from tests.unit.analysis.planted_tables import ALONE, Point, make_runs, spread
from tests.unit.analysis.reference import next_bound, welch_bounds

from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.card import NONE_LARGER
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule

START_UP = 120.0
SAMPLES = 600_000.0


POINTS = {
    (ALONE, 1): spread(100),
    (ALONE, 2): spread(190),
    (ALONE, 4): spread(300),
    (ALONE, 8): spread(400),
    (ALONE, 16): spread(390),
}
"""Whole runs of 102, 54.6, 35.3, 27.0 and 27.6 minutes."""


def longest_minutes(devices: int) -> float:
    """What 95 % of further runs of a point stay below."""
    return next_bound([(START_UP + SAMPLES / rate) / 60 for rate in POINTS[ALONE, devices]])


def by(
    points: Mapping[Point, Any] = POINTS,
    queue_minutes: Mapping[int, float] | None = None,
    billed: Mapping[int, float] | None = None,
    **rule: Any,
) -> Decision:
    """The decision on these points by a rule; the time of a run is its samples' and its start-up's."""
    runs = make_runs(points)
    runs["wall_seconds"] = START_UP + SAMPLES / runs["throughput_samples_per_second"]
    runs["device_hours"] = runs["wall_seconds"] * runs["devices"] / 3600
    return decision_on(runs, DecisionRule(**rule), billed=billed, queue_minutes=queue_minutes)


def test_without_a_criterion_the_knee_is_taken_and_the_next_point_says_why_not() -> None:
    decision = by()
    assert decision.devices == 4
    assert decision.card.next.startswith("8 devices would be 4.00x")
    assert decision.card.next.endswith("at efficiency 0.50: a worse balance of speed and efficiency.")
    assert decision.card.rule.endswith("Each larger count must be at least 5 % faster than the one before.")


def test_a_knee_at_the_end_of_what_was_measured_may_lie_beyond() -> None:
    decision = by({key: rates for key, rates in POINTS.items() if key[1] <= 4})
    assert decision.devices == 4
    assert decision.card.next == NONE_LARGER


def test_one_device_where_more_are_past_the_knee() -> None:
    decision = by({(ALONE, 1): spread(100), (ALONE, 2): spread(120)})
    assert decision.devices == 1
    assert decision.card.next.startswith("2 devices would be 1.20x as fast as 1 device (")
    assert decision.card.next.endswith("efficiency 0.60: a worse balance of speed and efficiency.")


def test_a_knee_that_noise_may_have_made_is_cautioned_about() -> None:
    noisy = {(ALONE, 1): spread(100), (ALONE, 2): [150.0, 185.0, 200.0], (ALONE, 4): [230.0, 270.0, 310.0]}
    decision = by(noisy)
    (caution,) = (caution for caution in decision.cautions if caution.startswith("2 devices may balance"))
    assert caution.endswith(", or give `decision` a criterion.")
    assert not any("may balance" in caution for caution in by().cautions)
    assert not any("may balance" in caution for caution in by(noisy, min_efficiency=0.6).cautions)


def test_a_deadline_takes_the_fewest_devices_that_keep_it() -> None:
    decision = by(deadline_minutes=40)
    assert decision.devices == 4
    time = figure(decision, "Time of a run")
    assert (time.text, time.interval) == ("35.3 min", "34.5 to 36.2")
    assert time.note == f"up to {longest_minutes(4):.1f} min"
    assert decision.card.next == "2 devices would take 54.6 minutes."
    assert by(deadline_minutes=60).devices == 2
    assert by(deadline_minutes=200).devices == 1


def test_a_deadline_is_held_against_a_bound_that_further_runs_keep() -> None:
    """The mean of 2 devices is 54.6 minutes, the slowest of its three runs 55.2."""
    assert longest_minutes(2) == pytest.approx(56.4, abs=0.05)
    decision = by(deadline_minutes=56)
    assert decision.devices == 4
    assert decision.card.next == "2 devices may take up to 56.4 minutes."
    assert (decision.card.certainty, decision.card.reason) == ("Likely", "2 devices may be in time, too.")
    (caution,) = decision.cautions
    assert caution.startswith("2 devices may be in time: their runs take 54.6 minutes on average")
    assert by(deadline_minutes=56.5).devices == 2


def test_the_sites_queue_counts_for_a_deadline_and_is_named_as_the_sites() -> None:
    decision = by(deadline_minutes=60, queue_minutes={1: 5, 2: 5, 4: 7.5, 8: 60, 16: 60})
    assert decision.devices == 4
    longest = f"up to {longest_minutes(4) + 7.5:.1f} min, 7.5 of them in the queue"
    assert figure(decision, "Time of a run").note == longest
    assert decision.card.next == "2 devices may take up to 61.4 minutes, 5 of them in the queue."
    assert decision.numbers["queue_minutes"] == 7.5
    assert by(deadline_minutes=60).devices == 2, "without a queue"


def test_more_devices_that_wait_longer_may_keep_a_deadline_that_fewer_miss() -> None:
    decision = by(deadline_minutes=90, queue_minutes={1: 0, 2: 80, 4: 0, 8: 0, 16: 0})
    assert decision.devices == 4
    assert decision.card.next == "2 devices would take 135 minutes, 80 of them in the queue."


def test_a_deadline_that_nothing_keeps_names_the_fastest_and_by_how_much_it_misses() -> None:
    decision = by(deadline_minutes=20)
    assert (decision.devices, decision.series, decision.numbers) == (None, ALONE, {})
    longest = f"up to {longest_minutes(8):.1f} minutes"
    assert decision.card.reason == f"Closest is 8 devices: {longest}, more than the 20 allowed."
    assert len(decision.alternatives) == len(POINTS)
    assert "a run takes 3.60 device-hours and 27.0 minutes" in decision.alternatives[3]


def test_a_budget_takes_the_shortest_run_that_keeps_to_it() -> None:
    decision = by(max_device_hours=3)
    assert decision.devices == 4
    assert figure(decision, "Cost of a run").value == pytest.approx(2.356, abs=1e-3)
    assert figure(decision, "Time of a run").text == "35.3 min"
    assert decision.card.next.endswith("3.60 device-hours, more than the 3 allowed.")
    assert by(max_device_hours=10).devices == 8, "16 are slower"


def test_a_budget_that_an_unlucky_run_may_exceed_is_cautioned_about() -> None:
    decision = by(max_device_hours=2.37)
    assert decision.devices == 4
    most = f"{4 * longest_minutes(4) / 60:.2f}"
    assert decision.card.reason == f"A run may take up to {most} device-hours."
    assert decision.cautions == [f"A run may take up to {most} device-hours, more than the 2.37 allowed."]
    assert by(max_device_hours=3).cautions == []


def test_a_budget_that_nothing_keeps_to_names_the_cheapest_and_by_how_much() -> None:
    decision = by(max_device_hours=1)
    assert decision.devices is None
    assert decision.card.reason == "Closest is 1 device: 1.70 device-hours, more than the 1 allowed."


def test_several_criteria_must_all_hold() -> None:
    assert by(min_efficiency=0.7, deadline_minutes=60).devices == 2
    assert by(min_efficiency=0.7, max_device_hours=3).devices == 4
    assert by(min_efficiency=0.9, max_device_hours=3).devices == 2
    assert by(deadline_minutes=40, max_device_hours=3).devices == 4


def test_criteria_that_nothing_meets_together_are_each_held_against_the_nearest() -> None:
    decision = by(min_efficiency=0.9, max_device_hours=1, deadline_minutes=26)
    assert decision.devices is None
    assert decision.card.verdict == "No device count meets your criteria."
    assert decision.card.reason == (
        "Closest is 8 devices: efficiency 0.50, below the 0.90 required, and up to "
        f"{longest_minutes(8):.1f} minutes, more than the 26 allowed, and 3.60 device-hours, more than the 1 "
        "allowed."
    )


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"min_efficiency": 0.7}, "The most devices with an efficiency of at least 0.7."),
        ({"deadline_minutes": 60}, "The fewest devices with a run within 60 minutes."),
        ({"max_device_hours": 4}, "The most devices with a run of at most 4 device-hours."),
        (
            {"min_efficiency": 0.725, "max_device_hours": 4},
            "The most devices with an efficiency of at least 0.725 and a run of at most 4 device-hours.",
        ),
    ],
)
def test_the_rule_is_shown_in_words(rule: dict[str, Any], words: str) -> None:
    assert by(**rule).card.rule.startswith(words)


def test_devices_that_are_not_faster_than_fewer_are_never_recommended() -> None:
    """16 devices have shorter runs here than 8 by their start-up alone."""
    rules: list[dict[str, Any]] = [{"min_efficiency": 0.1}, {"max_device_hours": 1000.0}, {}]
    for rule in (*rules, {"deadline_minutes": 28.0}):
        assert by(**rule).devices in (4, 8)
    decision = by({(ALONE, 1): spread(100), (ALONE, 2): spread(90)}, min_efficiency=0.1)
    assert decision.card.next.endswith("at efficiency 0.45: no gain over 1 device.")


def test_a_limit_met_exactly_is_met() -> None:
    """240 / 100 / 3 is less than 0.8 by a last digit."""
    assert by({(ALONE, 1): [100.0] * 3, (ALONE, 3): [240.0] * 3}, min_efficiency=0.8).devices == 3


def test_an_efficiency_just_below_the_limit_is_shown_with_the_digits_that_tell_them_apart() -> None:
    decision = by({(ALONE, 1): [100.0] * 3, (ALONE, 2): [139.6] * 3}, min_efficiency=0.7)
    assert "efficiency 0.698, below the 0.700 required" in decision.card.next
    decision = by({(ALONE, 1): [100.0] * 3, (ALONE, 2): [120.0] * 3}, min_efficiency=0.725)
    assert "efficiency 0.600, below the 0.725 required" in decision.card.next, "the limit as it was given"


def test_a_site_that_bills_whole_nodes_makes_few_devices_dear() -> None:
    whole = {1: 4.0, 2: 4.0}
    decision = by(max_device_hours=3, billed=whole)
    assert decision.devices == 4
    assert decision.numbers["device_hours"] == pytest.approx(2.356, abs=1e-3)
    assert "a run takes 6.80 device-hours" in decision.alternatives[0]
    assert by(max_device_hours=2, billed=whole).devices is None
    assert by(max_device_hours=2).devices == 2, "each its own"
    cost = figure(by(min_efficiency=0.7, billed=whole), "Cost of a run")
    assert (
        cost.note
        == f"4 devices for 35 min, start-up and evaluation included; {2.356 / 6.8:.2f}x that on 1 device"
    )


@pytest.mark.parametrize("rule", [{"deadline_minutes": 60.0}, {"max_device_hours": 3.0}])
def test_criteria_on_whole_runs_say_so_where_their_times_are_not_known(rule: dict[str, Any]) -> None:
    runs = make_runs(POINTS).assign(device_hours=nan)
    scaling = scaling_table(runs, "strong").drop(columns=["wall_seconds", "wall_seconds_high"])
    compared = gains(known_columns(runs))
    options = option_table(runs, {})
    decision = decide("study", scaling, options, DecisionRule(**rule), compared=compared)
    assert decision.devices is None
    assert f"unknown, and {next(iter(rule))} needs" in decision.card.reason


def test_at_a_deadline_a_series_that_needs_fewer_devices_is_taken() -> None:
    slow = {("off", devices): spread(100.0 * devices**0.8) for devices in (1, 2, 4)}
    fast = {("on", devices): spread(180.0 * devices**0.8) for devices in (1, 2, 4)}
    decision = by(slow | fast, deadline_minutes=60)
    assert (decision.series, decision.devices) == ("on", 1)
    assert decision.card.verdict == "Use 1 device with on."
    assert figure(decision, "Time of a run").text == "57.6 min"
    assert by(slow, deadline_minutes=60).devices == 4


def test_a_series_that_trains_otherwise_does_not_stand_in_for_one_that_misses() -> None:
    runs = pd.concat(
        [
            make_runs(
                {("sgd", 1): spread(100), ("sgd", 2): spread(180)}, optimizer="sgd", wall_seconds=900.0
            ),
            make_runs(
                {("adam", 1): spread(100), ("adam", 2): spread(180)}, optimizer="adam", wall_seconds=60.0
            ),
        ],
        ignore_index=True,
    )
    decision = decision_on(runs, DecisionRule(deadline_minutes=5), swept={"optimizer": ["sgd", "adam"]})
    assert (decision.devices, decision.series) == (None, "sgd")


def test_time_that_is_never_long_enough_is_not_confused_with_an_unlimited_one() -> None:
    """A queue without end keeps no deadline."""
    decision = by(deadline_minutes=60, queue_minutes={devices: inf for _, devices in POINTS})
    assert decision.devices is None


def test_more_devices_that_may_be_efficient_enough_are_named_as_a_doubt() -> None:
    rates = [135.0, 139.0, 150.0]
    points = {(ALONE, 1): spread(100), (ALONE, 2): rates}
    low, high = welch_bounds(rates, spread(100))
    decision = by(points, min_efficiency=0.7)
    (doubt,) = (caution for caution in decision.cautions if "you require" in caution)
    interval = f"{low / 2:.2f} to {high / 2:.2f}"
    assert doubt.startswith(f"The efficiency may be below the 0.70 that you require: {interval}. ")
    assert not decision.clear
    clearly = by({(ALONE, 1): spread(100), (ALONE, 2): spread(120)}, min_efficiency=0.7)
    assert clearly.clear
    assert clearly.cautions == []


def test_an_efficiency_is_judged_by_its_own_runs_though_a_law_lies_on_the_other_side() -> None:
    """The runs on 4 devices are 3.5 % slower than Amdahl's law, by less than they scatter."""
    rates = {n: 100 / (0.05 + 0.95 / n) for n in (1, 2, 4, 8, 16)}
    points = {
        (ALONE, n): [(0.965 if n == 4 else 1) * factor * rate for factor in (0.97, 1.0, 1.03)]
        for n, rate in rates.items()
    }

    decision = by(points, min_efficiency=0.85)

    assert (decision.devices, decision.clear) == (2, False)
    assert any("4 devices may be above the 0.85 that you require" in each for each in decision.cautions)


def test_unlike_trainings_do_not_compete_where_the_first_of_them_has_no_run() -> None:
    runs = make_runs(
        {
            ("large", 1): ["out-of-memory"] * 3,
            ("middle", 1): spread(100),
            ("middle", 2): spread(190),
            ("small", 1): spread(300),
            ("small", 2): spread(590),
        }
    )
    runs["global_batch_size"] = runs["series"].map({"large": 512, "middle": 256, "small": 128})
    swept = {"global_batch_size": [512, 256, 128]}
    decision = decision_on(runs, DecisionRule(min_efficiency=0.7), swept=swept)
    assert decision.series == "middle"


def test_one_slow_run_of_ten_keeps_a_point_from_a_deadline_that_its_mean_keeps() -> None:
    runs = make_runs({(ALONE, 1): [100.0] * 10, (ALONE, 2): [190.0] * 10})
    runs["wall_seconds"] = [60.0] * 9 + [300.0] + [40.0] * 10
    decision = decision_on(runs, DecisionRule(deadline_minutes=2))
    assert decision.devices == 2
