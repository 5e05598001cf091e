"""Blocks of runs by their starts, and studies in which time or nodes stand behind a speedup."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

from scalewise.analysis.blocks import (
    Separation,
    host_variance_ratio,
    separable,
    sessions,
    siblings,
    verified_blocks,
)

Job = tuple[int, int]
"""Devices and repeat."""
COUNTS = (1, 2, 4, 8)
HOUR = 3600.0


def started(jobs: Sequence[Job], hosts: Callable[[Job], str] = lambda job: "here") -> pd.DataFrame:
    """Return runs that started one after the other, ten minutes apart."""
    rows = [
        {"devices": job[0], "repeat": job[1], "started": 600.0 * place, "ended": 600.0 * place + 500}
        | {"hosts": hosts(job)}
        for place, job in enumerate(jobs)
    ]
    return pd.DataFrame(rows)


def shuffled(seed: int = 0, repeats: int = 3) -> list[Job]:
    generator = np.random.default_rng(seed)
    return [(int(n), repeat) for repeat in range(1, repeats + 1) for n in generator.permutation(COUNTS)]


def queued(repeats: int = 3) -> list[Job]:
    """Return the order of a queue that starts small jobs first."""
    return sorted(shuffled(repeats=repeats))


def test_shuffled_repeats_are_blocks_and_a_queue_has_none() -> None:
    runs = started(shuffled())
    assert verified_blocks(runs).tolist() == runs["repeat"].tolist()
    assert set(verified_blocks(started(queued()))) == {0}


def test_a_repeat_that_interleaves_with_another_is_no_block() -> None:
    jobs = shuffled(repeats=4)
    jobs[7], jobs[8] = jobs[8], jobs[7]
    found = verified_blocks(started(jobs)).groupby([repeat for _, repeat in jobs]).max()
    assert found.tolist() == [1, 0, 0, 2]


def test_runs_without_a_start_or_a_repeat_are_in_no_block() -> None:
    runs = started(shuffled())
    runs.loc[3, "started"] = np.nan
    assert verified_blocks(runs).tolist() == [1, 1, 1, 0, *[2] * 4, *[3] * 4]
    assert set(verified_blocks(runs.assign(repeat=np.nan))) == {0}


def test_the_same_repeat_on_another_day_is_another_block() -> None:
    runs = pd.concat([started(shuffled()), started(shuffled(1)).assign(started=lambda t: t["started"] + 1e6)])
    runs["ended"] = runs["started"] + 500
    assert verified_blocks(runs).nunique() == 6


def test_sessions_are_parted_by_pauses_and_not_by_long_runs() -> None:
    runs = pd.DataFrame({"started": [0.0, 20 * HOUR, 5 * HOUR, 11 * HOUR], "ended": np.nan})
    assert list(sessions(runs)) == [1, 2, 1, 1]
    assert list(sessions(runs.assign(ended=runs["started"] + 4 * HOUR))) == [1, 1, 1, 1]
    runs.loc[1, "started"] = np.nan
    assert list(sessions(runs)) == [1, 0, 1, 1]


@pytest.mark.parametrize("repeats", [2, 3, 6])
def test_shuffled_blocks_are_separable(repeats: int) -> None:
    found = [separable(started(shuffled(seed, repeats)), 1) for seed in range(50)]
    assert all(each.in_time and not each.other_nodes for each in found)


@pytest.mark.parametrize(
    ("key", "apart"),
    [
        (lambda job: job, (1, 8)),
        (lambda job: (-job[0], job[1]), (1, 8)),
        (lambda job: (job[0] == 8, job[1], job[0]), (8,)),
        (lambda job: (job[0] > 1, job[1], job[0]), (1,)),
    ],
    ids=["small first", "large first", "the most devices last", "the baseline first"],
)
@pytest.mark.parametrize("repeats", [3, 6])
def test_counts_that_a_queue_started_apart_are_not_separable(
    key: Callable[[Job], tuple[int, ...]], apart: tuple[int, ...], repeats: int
) -> None:
    found = separable(started(sorted(shuffled(repeats=repeats), key=key)), 1)
    assert (found.apart, found.in_time) == (apart, False)


@pytest.mark.parametrize("repeats", [1, 3])
def test_counts_in_the_order_of_their_size_are_not_separable(repeats: int) -> None:
    runs = started(queued(repeats))
    assert separable(runs, 1).ordered == (repeats > 1), "single runs decide nothing"
    assert not separable(runs.assign(started=-runs["started"]), 1).order > 0


def test_a_count_of_another_day_is_not_separable_until_the_baseline_is_of_that_day() -> None:
    runs = started(shuffled())
    late = runs["devices"] == 8
    moved = runs.assign(started=runs["started"] + late * 3e5, ended=runs["ended"] + late * 3e5)
    assert separable(moved, 1).other_days == (8,)
    again = moved[moved["devices"] == 1].tail(1).assign(started=3e5, ended=3e5 + 500)
    assert separable(pd.concat([moved, again]), 1).other_days == ()


def test_counts_with_nodes_of_their_own_are_not_separable_and_further_nodes_are() -> None:
    own = started(shuffled(), lambda job: f"node{job[0]}")
    assert separable(own, 1).other_nodes == (2, 4, 8)
    further = started(shuffled(), lambda job: "a, b" if job[0] == 8 else "a")
    assert separable(further, 1).other_nodes == ()


def test_runs_that_were_on_a_node_at_the_same_time_are_siblings() -> None:
    runs = pd.DataFrame(
        {
            "started": [0.0, 100.0, 500.0, 550.0, 900.0, np.nan],
            "ended": [500.0, 300.0, 700.0, 800.0, 950.0, np.nan],
            "hosts": ["a", "b", "a, c", "c", "a", "a"],
        }
    )
    assert siblings(runs).tolist() == [False, False, True, True, False, False]


def test_all_that_is_unknown_is_separable() -> None:
    runs = started(queued()).assign(started=np.nan, hosts=None)
    assert separable(runs, 1) == Separation()


def test_the_ratio_of_variances_by_hand() -> None:
    assert host_variance_ratio([["a"], ["b"]], [["c"], ["d"]]) == pytest.approx(1.0)  # each drawn once
    # the point's share moves from a to b as a whole: 2; the baseline's two nodes show (1/2) / 1
    assert host_variance_ratio([["a"], ["b"]], [["c"], ["c"]]) == pytest.approx(1.5 / 0.5)
    assert host_variance_ratio([["a"], ["a"]], [["b"], ["b"]]) == np.inf
    assert host_variance_ratio([["a"], ["b"]], [["a", "b"]]) == 0.0
