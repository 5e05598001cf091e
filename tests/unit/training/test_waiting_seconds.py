"""Waiting for the last rank of each step is told apart from the exchange, whoever is last."""

from __future__ import annotations

import numpy as np
import pytest

from scalewise.ranks.results.figures import waiting_seconds

EXCHANGE = 0.02


def communication(compute: np.ndarray) -> list[list[float]]:
    """What each rank spends in the exchange when it comes after so much computing, shape (ranks, steps)."""
    last = compute.max(axis=0)
    return [[float(seconds) for seconds in last - rank + EXCHANGE] for rank in compute]


def test_ranks_that_are_late_by_turns_wait_for_each_other_although_none_is_the_slow_one() -> None:
    compute = np.array([[0.1, 0.2, 0.1, 0.2], [0.2, 0.1, 0.2, 0.1]])
    assert waiting_seconds(communication(compute)) == pytest.approx([0.05, 0.05])


def test_a_slow_rank_waits_for_nobody() -> None:
    compute = np.array([[0.1, 0.1], [0.3, 0.3], [0.1, 0.2]])
    assert waiting_seconds(communication(compute)) == pytest.approx([0.2, 0.0, 0.15])


def test_the_exchange_is_found_however_much_every_rank_varies() -> None:
    generator = np.random.default_rng(1)
    compute = 0.1 * np.exp(0.25 * generator.standard_normal((8, 400)))
    took = communication(compute)
    waited = waiting_seconds(took)
    exchange = [
        np.mean(steps) - waiting for steps, waiting in zip(took, waited, strict=True) if waiting is not None
    ]
    assert exchange == pytest.approx([EXCHANGE] * 8)
    assert min(np.mean(steps) for steps in took) > 2 * EXCHANGE


def test_one_rank_waits_for_nobody_and_what_was_not_kept_is_not_known() -> None:
    assert waiting_seconds([[0.1, 0.2]]) == [0.0]
    assert waiting_seconds([[], []]) == [None, None]
    assert waiting_seconds([[0.1], []]) == [None, None]
