"""Planted studies of every kind: no answer is clear and wrong, and quiet ones stay clear.

``python -m tests.truth`` draws more of each.
"""

from __future__ import annotations

import pytest
from tests.truth.answers import rates
from tests.truth.kinds import KINDS

DRAWN = 6
LEAST_RIGHT = {
    "quiet": 6,
    "quiet, no gain": 5,
    "two equal options": 5,
    "an option twice as fast": 6,
    "the first repeat is cold": 6,
    "shuffled blocks, speed rises by 15 %": 2,
}
"""Studies that must get their answer, not only no wrong one."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_no_answer_is_clear_and_wrong_and_a_quiet_study_is_right_and_clear(kind: str) -> None:
    found = rates(kind, scatter=0.01, n=3, studies=DRAWN)
    assert found.total() == DRAWN
    assert found["wrong"] <= 1
    assert found["right"] >= LEAST_RIGHT.get(kind, 0)
