"""The parts of a step, by what ranks measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pytest

from scalewise.analysis.steps import COLUMNS, STEP_COLUMNS, split
from scalewise.records import Window

PARTS = list(COLUMNS.values())


def windows(step_seconds: float) -> list[Window]:
    """Ten measured steps, after a slow warm-up that must not count."""
    warm_up = Window(first_step=0, steps=5, samples=5, seconds=100.0, warmup=True)
    return [warm_up, Window(first_step=5, steps=10, samples=10, seconds=10 * step_seconds, warmup=False)]


def ranks(
    communication: Sequence[float],
    loader: Sequence[float] | None = None,
    waiting: Sequence[float] | None = None,
) -> pd.DataFrame:
    """As ranks.csv gives them; seconds of a step, over ten steps. Where nothing else is said, ranks wait for
    the one whose exchange takes least."""
    count = len(communication)
    return pd.DataFrame(
        {
            "rank": range(count),
            "host": [f"node{rank // 2}" for rank in range(count)],
            "loader_wait_seconds": [10 * seconds for seconds in loader or [0.0] * count],
            "communication_seconds_per_step": communication,
            "waiting_seconds_per_step": waiting or [each - min(communication) for each in communication],
        }
    )


def assert_sums(found: Mapping[Any, Any]) -> None:
    assert sum(found[part] for part in PARTS) == pytest.approx(found["step_seconds"])
    assert all(found[part] >= 0 for part in PARTS)


@pytest.mark.parametrize(
    ("measured", "parts", "slowest"),
    [
        ({"communication": [0.2] * 4, "loader": [0.1] * 4}, [0.7, 0.2, 0.1, 0.0, 0.0], None),
        ({"communication": [0.5, 0.5, 0.5, 0.1]}, [0.5, 0.1, 0.0, 0.4, 0.0], (3, "node1")),
        ({"communication": [0.1, 0.5]}, [0.5, 0.1, 0.0, 0.4, 0.0], (0, "node0")),
        ({"communication": [0.3, 0.4] * 2, "waiting": [0.25, 0.35] * 2}, [0.6, 0.05, 0.0, 0.1, 0.25], None),
        ({"communication": [0.1, 0.5], "loader": [0.4, 0.0]}, [0.5, 0.1, 0.4, 0.0, 0.0], None),
        ({"communication": [0.01], "loader": [0.2]}, [0.8, 0.0, 0.2, 0.0, 0.0], None),
        ({"communication": [math.nan]}, [1.0, 0.0, 0.0, 0.0, 0.0], None),
        ({"communication": [1.4, 1.6], "loader": [0.1, 1.2]}, None, None),
    ],
    ids=["balanced", "the rank that waits for no other is slow", "of two ranks", "jitter that all wait for",
         "late by its loader", "one device", "one device, nothing counted", "more counted than the step"],
)  # fmt: skip
def test_the_parts_of_a_step_sum_to_it(
    measured: dict[str, list[float]], parts: list[float] | None, slowest: tuple[int, str] | None
) -> None:
    found = split(windows(1.0), ranks(**measured))
    assert found["step_seconds"] == pytest.approx(1.0)
    assert_sums(found)
    assert parts is None or [found[part] for part in PARTS] == pytest.approx(parts)
    if slowest:
        assert (found["slowest_rank"], found["slowest_host"]) == slowest
    if len(measured["communication"]) == 1:
        assert math.isnan(found["slowest_rank"])


def test_what_was_not_measured_is_unknown() -> None:
    found = split(windows(1.0), ranks([math.nan, math.nan], loader=[0.1, 0.3]))
    assert found["step_seconds"] == pytest.approx(1.0)
    assert found["loader_seconds"] == pytest.approx(0.3)
    unknown = set(STEP_COLUMNS) - {"step_seconds", "loader_seconds", "slowest_host", "slow_host"}
    assert all(math.isnan(found[column]) for column in unknown)
    assert math.isnan(split(windows(1.0)[:1], ranks([0.1, 0.1]))["step_seconds"])
    # jitter that is unknown is in the communication
    found = split(windows(1.0), ranks([0.1, 0.5], waiting=[math.nan] * 2))
    assert_sums(found | {"jitter_seconds": 0.0})
    assert math.isnan(found["jitter_seconds"])
