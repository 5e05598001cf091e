"""What could be wrong with an answer in a system: each question with its action and its certainty."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
from tests.unit.analysis.planted import ONLY, Planted, make_runs, spread

from scalewise.analysis.blocks import separable, verified_blocks
from scalewise.analysis.cautions import REDO

RATES = {1: 100.0, 2: 190.0, 4: 350.0, 8: 400.0}
"""Efficiencies 1, 0.95, 0.875 and 0.5: the answer is 4."""
QUIET = Planted({(ONLY, devices): spread(rate) for devices, rate in RATES.items()})


def where(runs: pd.DataFrame, devices: int, repeat: int | None = None) -> pd.Series:
    found = runs["devices"] == devices
    return found if repeat is None else found & (runs["repeat"] == repeat)


@pytest.mark.parametrize(("apart", "certainty"), [(1, "clear"), (8, "likely")])
def test_many_disturbed_runs_leave_the_rest_uncertain(apart: int, certainty: str) -> None:
    study = Planted({(ONLY, devices): spread(rate, repeats=5) for devices, rate in RATES.items()})
    runs = study.runs
    taken = [(devices, repeat) for repeat in (1, 2) for devices in RATES][:apart]
    if apart == 8:
        taken += [(1, 5), (8, 5)]
    for devices, repeat in taken:
        runs.loc[where(runs, devices, repeat), ["outcome", "disturbance"]] = ["disturbed", "1 other job"]
    answer = study.analysis(runs=runs).answer
    assert answer.certainty == certainty
    were = {1: "1 of 20 runs was", 10: "10 of 20 runs were"}[len(taken)]
    assert answer.to_do == f"{were} disturbed: make them again."
    assert answer.command == REDO


@pytest.mark.parametrize(("at_eight", "certainty"), [(0.10, "doubtful"), (0.955, "likely"), (0.98, "clear")])
def test_a_collapse_of_the_accuracy_is_never_clear(at_eight: float, certainty: str) -> None:
    study = Planted({(ONLY, devices): spread(100.0 * devices) for devices in RATES})
    runs = study.runs
    noise = runs["repeat"] * 0.001
    runs["final_accuracy"] = 0.98 + noise
    runs.loc[where(runs, 8), "final_accuracy"] = at_eight + noise
    answer = study.analysis(runs=runs).answer
    assert (answer.devices, answer.certainty) == (8, certainty)


def test_counts_on_nodes_of_their_own_are_named() -> None:
    runs = make_runs({(ONLY, devices): spread(rate) for devices, rate in RATES.items()})
    answer = QUIET.analysis(runs=runs.assign(hosts="node" + runs["devices"].astype(str))).answer
    assert answer.certainty == "doubtful"
    assert "other nodes" in answer.reason


# --- blocks of runs by their starts --------------------------------------------------------------------


Job = tuple[int, int]
"""Devices and repeat."""
COUNTS = (1, 2, 4, 8)


def started(jobs: Sequence[Job]) -> pd.DataFrame:
    """Return runs that started one after the other, ten minutes apart."""
    rows = [
        {
            "devices": devices,
            "repeat": repeat,
            "hosts": "here",
            "started": 600.0 * n,
            "ended": 600.0 * n + 500,
        }
        for n, (devices, repeat) in enumerate(jobs)
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
