"""Blocks of runs by their starts, and studies in which time or nodes stand behind a speedup."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

from scalewise.analysis.blocks import separable, verified_blocks

Job = tuple[int, int]
"""Devices and repeat."""
COUNTS = (1, 2, 4, 8)


def started(jobs: Sequence[Job], hosts: Callable[[Job], str] = lambda job: "here") -> pd.DataFrame:
    """Return runs that started one after the other, ten minutes apart."""
    rows = [
        {"devices": job[0], "repeat": job[1], "started": 600.0 * place, "ended": 600.0 * place + 500}
        | {"hosts": hosts(job)}
        for place, job in enumerate(jobs)
    ]
    return pd.DataFrame(rows)


def shuffled(repeats: int = 3) -> list[Job]:
    generator = np.random.default_rng(0)
    return [(int(n), repeat) for repeat in range(1, repeats + 1) for n in generator.permutation(COUNTS)]


def test_shuffled_repeats_are_blocks_and_a_queue_has_none() -> None:
    runs = started(shuffled())
    assert verified_blocks(runs).tolist() == runs["repeat"].tolist()
    # small jobs first
    assert set(verified_blocks(started(sorted(shuffled())))) == {0}


def test_a_repeat_that_interleaves_with_another_is_no_block() -> None:
    jobs = shuffled(repeats=4)
    jobs[7], jobs[8] = jobs[8], jobs[7]
    found = verified_blocks(started(jobs)).groupby([repeat for _, repeat in jobs]).max()
    assert found.tolist() == [1, 0, 0, 2]


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
