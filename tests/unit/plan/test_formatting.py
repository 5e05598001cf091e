"""Formats of numbers: plain digits, and never more of them than were measured."""

from __future__ import annotations

import math

import pytest

from scalewise.execution.failure_reason import in_minutes
from scalewise.plan.formatting import (
    chance_text,
    counts_text,
    duration_text,
    format_3sig,
    format_ratio,
    percent,
    percent_in_digits,
    significant,
)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        # a measured value has three digits and no exponent
        (format_3sig(1234.5678), "1,235"),
        (format_3sig(123456.0), "123,456"),
        (format_3sig(99.96), "100"),
        (format_3sig(12.3456), "12.3"),
        (format_3sig(4.2), "4.20"),
        (format_3sig(0.0000123), "0.0000123"),
        (format_3sig(-0.5), "-0.500"),
        (format_3sig(0.0), "0"),
        (format_3sig(math.nan), "unknown"),
        # digits before the point are all kept
        (significant(0.0316, 2), "0.032"),
        (significant(9.97, 2), "10"),
        (significant(1234.0, 2), "1,234"),
        (significant(999.96, 4), "1,000"),
        (significant(42.5, 4), "42.50"),
        # a share has no zeros at its end
        (percent_in_digits(0.061, 2), "6.1 %"),
        (percent_in_digits(0.03, 2), "3 %"),
        (percent_in_digits(0.104, 2), "10 %"),
        (percent_in_digits(0.1234, 3), "12.3 %"),
        (percent_in_digits(1.04, 2), "104 %"),
        (percent_in_digits(0.0000001, 2), "0.00001 %"),
        (percent_in_digits(0.0, 2), "0 %"),
        (percent(0.0605, 0), "6 %"),
        # a ratio has two places, and from 10 on three digits
        (format_ratio(3.6), "3.60"),
        (format_ratio(12.34), "12.3"),
        (format_ratio(123.4), "123"),
        # a chance is as precise as it is known
        (chance_text(0.0), "less than 0.1 %"),
        (chance_text(0.0009), "less than 0.1 %"),
        (chance_text(0.031), "3.1 %"),
        (chance_text(0.12), "12 %"),
        (chance_text(0.995), "more than 99 %"),
        # of many counts the first and the last are named
        (counts_text(range(4, 69, 4)), "4, 8, 12, 16, 20, 24, 28, 32, 36, ..., 64, 68"),
        (counts_text([1, 2, 4]), "1, 2, 4"),
        # a duration has two units at most
        (duration_text(0.2), "0 s"),
        (duration_text(89), "89 s"),
        (duration_text(600), "10 min"),
        (duration_text(9000), "2 h 30 min"),
        (duration_text(7200), "2 h"),
        (duration_text(200_000), "2 days 8 h"),
        (in_minutes(0.6), "0.01 minutes"),
        (in_minutes(25), "0.417 minutes"),
        (in_minutes(90), "1.5 minutes"),
        (in_minutes(10_080 * 60), "10080 minutes"),
    ],
)
def test_a_number_is_shown_in_plain_digits(shown: str, expected: str) -> None:
    assert shown == expected
