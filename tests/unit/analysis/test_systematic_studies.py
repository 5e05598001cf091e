"""Studies in which something else than noise decides: a wrong answer is not clear, and quiet ones stay clear.

``python -m tests.truth`` draws more of each.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.truth.systematic import ON, RIGHT, WRONG, answer, run_table, verdicts

DRAWN = 12

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_answer_is_not_clear(kind: str) -> None:
    found = verdicts(WRONG[kind], scatter=0.01, n=3, studies=DRAWN)
    assert sum(found.values()) == DRAWN
    assert found["wrong, clear"] == 0


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("quiet", 12),
        ("quiet, a budget", 12),
        ("quiet, two equal options", 12),
        ("quiet, an option twice as fast", 12),
        ("quiet, equal accuracies", 12),
        ("shuffled blocks, speed rises by 15 %", 4),
        ("shuffled blocks, speed falls by 15 %", 8),
    ],
)
def test_a_quiet_or_shuffled_study_stays_right_and_as_clear_as_it_was(kind: str, least: int) -> None:
    found = verdicts(RIGHT[kind], scatter=0.01, n=3, studies=DRAWN)
    assert found["right"] + found["right, clear"] == DRAWN
    assert found["right, clear"] >= least


def test_two_runs_of_an_option_that_doubles_the_speed_leave_the_answer_in_doubt() -> None:
    study = WRONG["an option twice as fast"]
    decision = answer(study, run_table(study, np.random.default_rng(1), 0.005, 2))
    assert decision.card.certainty == "Doubtful"
    (caution,) = (each for each in decision.cautions if "may be better" in each)
    # 8 devices with it are 2 x 430 / 310 times as fast as 4 without it
    assert caution.startswith(f"8 devices of {ON} may be better: 2.7")
