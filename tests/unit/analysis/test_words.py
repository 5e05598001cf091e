"""How numbers are formed: units that give 1 to 999, intervals in one form, devices by what they are."""

from __future__ import annotations

import math

import pytest

from scalewise.analysis.statistics import Interval
from scalewise.analysis.words import (
    cost_text,
    counts_text,
    energy_text,
    format_ratio,
    interval_text,
    place_text,
    seconds_text,
    time_text,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.968, "0.968 s"), (42.3, "42.3 s"), (600.0, "10.0 min"), (9000.0, "2.50 h"), (360_000.0, "100 h")],
)
def test_a_time_has_a_unit_that_is_easy_to_read(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_small_costs_are_in_minutes_or_seconds_and_never_in_thousandths_of_an_hour() -> None:
    nothing = (math.nan, math.nan, 1)
    assert cost_text(Interval(0.00285, *nothing), noun="process") == "10.3 process-seconds"
    assert cost_text(Interval(0.3, 0.29, 0.31, 3), noun="GPU") == "18.0 GPU-minutes (17.4 to 18.6)"
    assert cost_text(Interval(12.0, *nothing), noun="GPU") == "12.0 GPU-hours"
    assert cost_text(Interval(12.0, *nothing), "price") == "12.0 price units"
    assert energy_text(Interval(0.25, *nothing)) == "250 Wh"


def test_an_interval_has_one_form_and_two_runs_have_their_values() -> None:
    assert interval_text(Interval(1.64, 1.03, 2.16, 3), format_ratio, "x") == "1.64x (1.03 to 2.16)"
    assert interval_text(Interval(1.0, 1.0, 1.0, 3), format_ratio, "x") == "1.00x"
    two = Interval(2.0, math.nan, math.nan, 2)
    assert interval_text(two, format_ratio, "x", [1.5, 2.5]) == "2.00x (2 runs: 1.50 and 2.50)"
    assert time_text(Interval(600.0, math.nan, math.nan, 1)) == "10.0 min"


def test_devices_are_named_by_what_they_are() -> None:
    assert place_text(4, "bucket-view-on", "", "GPU", only=False) == "4 GPUs with bucket-view-on"
    assert place_text(1, "all runs", "a100", "GPU", only=True) == "1 GPU on a100"
    assert counts_text([2, 4, 8], "CPU process") == "2, 4 and 8 CPU processes"


def test_free_devices_cost_nothing() -> None:
    assert cost_text(Interval(2e-13, math.nan, math.nan, 3), "price") == "0 price units"
