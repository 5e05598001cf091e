"""Formats of numbers: plain digits, and never more of them than were measured."""

from __future__ import annotations

import math

import pytest

from scalewise.plan.formatting import format_3sig, format_ratio, percent, percent_in_digits, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5678, "1,235"),
        (123456.0, "123,456"),
        (99.96, "100"),
        (12.3456, "12.3"),
        (4.2, "4.20"),
        (0.0000123, "0.0000123"),
        (-0.5, "-0.500"),
        (0.0, "0"),
        (math.nan, "unknown"),
    ],
)
def test_a_measured_value_has_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert format_3sig(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0.0316, 2, "0.032"), (9.97, 2, "10"), (1234.0, 2, "1,234"), (999.96, 4, "1,000"), (42.5, 4, "42.50")],
)
def test_digits_before_the_point_are_all_kept(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.061, 2, "6.1 %"),
        (0.03, 2, "3 %"),
        (0.104, 2, "10 %"),
        (0.1234, 3, "12.3 %"),
        (1.04, 2, "104 %"),
        (0.0000001, 2, "0.00001 %"),
        (0.0, 2, "0 %"),
    ],
)
def test_a_share_has_no_zeros_at_its_end_and_no_exponent(share: float, digits: int, text: str) -> None:
    assert percent_in_digits(share, digits) == text


def test_a_ratio_has_two_places_and_from_10_on_three_digits() -> None:
    assert [format_ratio(value) for value in (3.6, 12.34, 123.4)] == ["3.60", "12.3", "123"]
    assert percent(0.0605, 0) == "6 %"
