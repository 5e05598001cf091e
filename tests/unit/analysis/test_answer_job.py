"""The time limit of the answer's job script."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from scalewise.analysis.proposal.answer_job import time_limit


@pytest.mark.parametrize(
    ("walls", "minutes"),
    [
        pytest.param({"wall_n": 3, "wall_seconds": 600.0, "wall_seconds_next": 700.0}, 16, id="measured"),
        pytest.param({"wall_n": 1, "wall_seconds": 30.0, "wall_seconds_next": 40.0}, 3, id="a short run"),
        pytest.param({"wall_n": math.nan, "wall_seconds_next": math.nan}, 60, id="steps only"),
    ],
)
def test_the_time_limit_is_the_bound_of_one_more_run_with_a_fifth_and_two_minutes(
    walls: dict[str, float], minutes: int
) -> None:
    row = pd.Series({"wall_seconds_low": 550.0, "wall_seconds_high": 650.0} | walls)

    assert time_limit(row, planned_minutes=60).minutes == minutes
