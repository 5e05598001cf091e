"""The number that a program prints, read whole or refused."""

import re
from typing import Any

import pytest

from scalewise.config.program import Metric
from scalewise.ranks.program.failure import ProgramError
from scalewise.ranks.program.metric import MetricReader

NARROW = "loss=([0-9.]+)"
"""A pattern without signs and exponents."""
WHOLE = "loss=([-+0-9.eE]+)"
"""The pattern that the documents recommend."""
OF_LAST = r"([\d.]+)$"


def read(line: str, pattern: str, **goal: Any) -> list[float]:
    return MetricReader(Metric(pattern=pattern, **(goal or {"at_most": 0.1}))).read(line)


@pytest.mark.parametrize(
    ("line", "pattern", "value"),
    [
        ("loss=2.80e+01", NARROW, 28.0),
        ("loss=2.80e+01", WHOLE, 28.0),
        ("loss=1e3 done", NARROW, 1000.0),
        ("loss=6.0e+01 acc=1", "loss=([0-9.]+).*acc", 60.0),
        ("loss=0.97", "loss=([0-9])", 0.97),
        ("loss=-0.5", WHOLE, -0.5),
        ("loss=\N{MINUS SIGN}0.5", WHOLE, -0.5),
        ("loss=.5", WHOLE, 0.5),
        ("loss=0.52, acc=0.9", r"loss=(\S+)", 0.52),
        ("loss=0.52. Saved.", WHOLE, 0.52),
        ("loss=1_000.5", "loss=([0-9_.]+)", 1000.5),
        ("3,0.52,0.91", r"^\d+,([0-9.]+)", 0.52),
        ("loss=3,5", "loss=([0-9]+),", 3.0),
        ("loss=12%", WHOLE, 12.0),
    ],
)
def test_a_number_is_read_whole(line: str, pattern: str, value: float) -> None:
    assert read(line, pattern) == [value]


@pytest.mark.parametrize("line", ["loss=nan", "loss=inf", "loss=-", "loss=n/a", "accuracy 0.5"])
def test_a_line_without_a_finite_number_gives_none(line: str) -> None:
    assert read(line, r"loss=(\S*)") == []


@pytest.mark.parametrize(
    ("line", "pattern", "goal", "part", "fix"),
    [
        ("loss=1,234.5", WHOLE, {"at_most": 2.0}, "1,234.5", "without a comma"),
        ("loss=1,234,567", WHOLE, {"at_most": 2.0}, "1,234,567", "without a comma"),
        ("loss=0,52", NARROW, {"at_most": 2.0}, "0,52", "decimal point"),
        ("loss 0,52", OF_LAST, {"at_most": 2.0}, "0,52", "decimal point"),
        ("loss=0.5-0.6", WHOLE, {"at_most": 2.0}, "0.5-0.6", "end earlier"),
        ("acc=95%", "acc=([0-9.]+)", {"at_least": 0.95}, "95", "at_least: 95"),
        ("acc=95 %", "acc=([0-9.]+)", {"at_least": 0.95}, "95", "at_least: 95"),
    ],
)
def test_a_number_that_may_be_another_one_is_refused_with_its_line_and_a_fix(
    line: str, pattern: str, goal: dict[str, Any], part: str, fix: str
) -> None:
    with pytest.raises(ProgramError) as refused:
        read(line, pattern, **goal)
    assert refused.value.permanent
    for fact in (repr(line), repr(pattern), part, fix):
        assert fact in str(refused.value)


def test_numbers_with_and_without_percent_are_refused() -> None:
    reader = MetricReader(Metric(pattern="acc=([0-9.]+)", at_least=90))
    assert reader.read("acc=91%") == [91.0]
    with pytest.raises(ProgramError, match=re.escape("'acc=0.92'")):
        reader.read("acc=0.92")
