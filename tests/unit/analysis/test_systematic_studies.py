"""Planted studies of every kind: no answer is clear and wrong, and quiet ones stay clear.

``python -m tests.truth`` draws more of each.
"""

from __future__ import annotations

import pytest
from tests.truth.answers import rates
from tests.truth.kinds import KINDS

DRAWN = 8

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_answer_is_clear_and_wrong(kind: str) -> None:
    found = rates(kind, scatter=0.01, n=3, studies=DRAWN)
    assert found.total() == DRAWN
    assert found["wrong"] <= 1


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("quiet", 8),
        ("quiet, no gain", 7),
        ("two equal options", 7),
        ("an option twice as fast", 8),
        ("the first repeat is cold", 8),
        ("shuffled blocks, speed rises by 15 %", 3),
    ],
)
def test_a_quiet_or_shuffled_study_is_right_and_clear(kind: str, least: int) -> None:
    assert rates(kind, scatter=0.01, n=3, studies=DRAWN)["right"] >= least
