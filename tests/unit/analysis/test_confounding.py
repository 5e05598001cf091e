"""Planted studies in which nodes or time stand behind a speedup, and clean ones, with rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.truth.studies import Circumstances, Planted, run_table
from tests.unit.analysis.planted_tables import ONLY

from scalewise.analysis.analysis_spec import THROUGHPUT as RATE
from scalewise.analysis.comparison.confounding import (
    confounding_sentences,
    sessions,
)
from scalewise.analysis.comparison.gains import gains, speeds
from scalewise.analysis.scaling import known_columns
from scalewise.analysis.statistics import Sample, ratio_of
from scalewise.plan.config.experiment import DecisionRule

PLANTED = Planted({devices: 100.0 * devices**0.9 for devices in (1, 2, 4, 8)}, DecisionRule())
"""On nodes of 4 devices."""
MONDAY = datetime(2026, 1, 5, 9, tzinfo=UTC)
STUDIES = 40


def study(seed: int = 0, repeats: int = 6, scatter: float = 0.01, **circumstances: Any) -> pd.DataFrame:
    """Return runs in blocks of shuffled order, on nodes that are drawn for each run."""
    generator = np.random.default_rng(seed)
    return run_table(PLANTED, generator, scatter, repeats, Circumstances(**circumstances))


def on_one_machine(
    seed: int = 0, repeats: int = 6, scatter: float = 0.01, **circumstances: Any
) -> pd.DataFrame:
    return study(seed, repeats, scatter, **circumstances).assign(hosts="here")


STICKY: dict[str, Any] = {"sticky_nodes": 1e-9}
"""Each count has other nodes, of about the same speed."""


def later(runs: pd.DataFrame, days: float) -> pd.DataFrame:
    moved = pd.to_datetime(runs["started_at"]) + pd.Timedelta(days=days)
    return runs.assign(started_at=moved.map(lambda time: time.isoformat()))


def rate(of: Callable[[int], bool], studies: int = STUDIES) -> float:
    return sum(map(of, range(studies))) / studies


def of_nodes(runs: pd.DataFrame) -> list[str]:
    return [line for line in confounding_sentences(runs) if line.startswith("Device count and nodes")]


def of_time(runs: pd.DataFrame) -> list[str]:
    return [line for line in confounding_sentences(runs) if line.startswith("Device count and time")]


# --- nodes --------------------------------------------------------------------------------------------


def test_device_counts_that_each_have_other_nodes_are_named_with_the_nodes_and_the_fix() -> None:
    runs = study(**STICKY)
    (sentence,) = of_nodes(runs)
    assert "(1 device: node0 in 6 runs; 2 devices: node16 in 6 runs; 4 devices: node32 in 6 runs" in sentence
    assert "8 devices: node48, node49 in 6 runs)" in sentence
    assert "slurm.constraint" in sentence
    # a single run elsewhere does not change that
    runs.loc[runs[runs["devices"] == 2].index[3], "hosts"] = "node0"
    (sentence,) = of_nodes(runs)
    assert "2 devices: node16, node0 in 6 runs" in sentence


def test_series_that_share_a_fault_share_a_sentence() -> None:
    runs = pd.concat([study(**STICKY).assign(series=name) for name in ("off", "on")])
    (sentence,) = of_nodes(runs)
    assert "1 device of off: node0 in 6 runs" in sentence
    assert "likewise in 1 other series" in sentence


def elsewhere(column: str, value: str) -> pd.DataFrame:
    """Return a study of which the runs on 2 devices ran elsewhere, and no speedup joins them."""
    runs = on_one_machine().assign(fingerprint="alike")
    runs.loc[runs["devices"] == 2, ["hosts", column]] = ["elsewhere", value]
    return runs


@pytest.mark.parametrize(
    "runs",
    [
        on_one_machine(),
        study().assign(hosts=lambda runs: runs["devices"].map({1: "a", 2: "a", 4: "a", 8: "a, b"})),
        elsewhere("outcome", "failed"),
        elsewhere("fingerprint", "other"),
        study().drop(columns=["hosts", "started_at"]),
    ],
    ids=["one machine", "fixed nodes", "a count without a result", "not comparable", "older records"],
)
def test_studies_in_which_nothing_is_confounded_have_no_caution(runs: pd.DataFrame) -> None:
    assert confounding_sentences(runs) == []


@pytest.mark.slow
def test_nodes_that_are_drawn_for_every_run_are_in_the_intervals_and_no_caution() -> None:
    assert rate(lambda seed: bool(of_nodes(study(seed, nodes_to_a_count=4)))) <= 0.05


# --- time ---------------------------------------------------------------------------------------------


def test_a_count_that_was_added_on_another_day_is_named_with_both_days_and_the_repeats_to_add() -> None:
    runs = on_one_machine(repeats=3)
    added = runs["devices"] == 8
    (sentence,) = of_time(pd.concat([runs[~added], later(runs[added], 3)], ignore_index=True))
    assert "(1 device: from 2026-01-05 09:" in sentence
    assert "; 8 devices: from 2026-01-08 09:" in sentence
    assert "2 devices" not in sentence
    assert "Raise repeats to 6:" in sentence


def test_a_count_that_was_added_on_a_slower_day_is_compared_with_that_days_baseline() -> None:
    """The second day is 20 % slower: by all runs of the baseline, 8 devices would look 11 % slower."""
    first, second = (on_one_machine(seed, repeats=3, scatter=0.002) for seed in (1, 2))
    second = later(second[second["devices"].isin([1, 8])], 3).assign(repeat=second["repeat"] + 3)
    second[RATE] *= 0.8
    runs = pd.concat([first[first["devices"] < 8], second], ignore_index=True)
    assert of_time(runs) == []
    assert sorted(set(sessions(runs))) == [1, 2]
    known = known_columns(runs)
    ratio = gains(known).of("throughput", (ONLY, 8), (ONLY, 1))
    assert ratio is not None
    assert ratio.estimate == pytest.approx(8**0.9, rel=0.005)
    assert ratio.n == 3


# --- order ---------------------------------------------------------------------------------------------


def queued(runs: pd.DataFrame, key: Callable[[Any], Any]) -> pd.DataFrame:
    """The runs as a queue starts them that orders jobs by a key, one after the other."""
    order = sorted(runs.index, key=lambda run: key(runs.loc[run]))
    starts = {run: (MONDAY + timedelta(minutes=6 * place)).isoformat() for place, run in enumerate(order)}
    return runs.assign(started_at=pd.Series(starts))


def drifting(runs: pd.DataFrame, change: float = 0.15) -> pd.DataFrame:
    """The runs, faster from the first one to the last by the order of their starts."""
    place = pd.to_datetime(runs["started_at"]).rank() - 1
    return runs.assign(**{RATE: runs[RATE] * (1 + change * place / (len(runs) - 1))})


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (lambda run: run["devices"], "small device counts ran first"),
        (lambda run: -run["devices"], "large device counts ran first"),
        (lambda run: (run["devices"] == 8, run["repeat"]), "all runs on 8 devices started before or after"),
    ],
    ids=["small first", "large first", "the most devices last"],
)
def test_device_counts_that_a_queue_started_apart_are_named(key: Callable[[Any], Any], said: str) -> None:
    (sentence,) = of_time(drifting(queued(on_one_machine(repeats=3), key)))
    assert said in sentence


def test_runs_in_shuffled_blocks_have_no_order() -> None:
    for repeats in (2, 3, 6):
        assert not any(of_time(on_one_machine(seed, repeats, trend=0.15)) for seed in range(20))


def test_if_repeats_did_not_take_turns_the_interval_reaches_to_the_ratio_without_the_drift() -> None:
    """The runs on 8 devices are two turns late, and so 5 % faster."""
    found = []
    for scatter in (0.002, 0.01):
        runs = on_one_machine(scatter=scatter)
        late = drifting(queued(runs, lambda run: (run["repeat"] + 2 * (run["devices"] == 8), run["devices"])))
        ratio = gains(known_columns(late)).of("throughput", (ONLY, 8), (ONLY, 1))
        assert ratio is not None
        found.append(ratio.at_least <= 8**0.9 <= ratio.at_most)
        assert ratio.estimate > 1.03 * 8**0.9
    assert all(found)


def test_if_speed_drifts_runs_are_compared_within_their_blocks() -> None:
    """12 % slower at the end: within blocks the interval still covers the truth, and is far narrower."""
    covered, widths, studies = 0, [], 25
    for seed in range(studies):
        known = known_columns(on_one_machine(seed, scatter=0.003, trend=-0.12))
        within = gains(known).of("throughput", (ONLY, 4), (ONLY, 1))
        four, one = (Sample.of(speeds(known[known["devices"] == n])) for n in (4, 1))
        apart = ratio_of(four, one)
        assert within is not None
        assert apart is not None
        covered += within.at_least <= 4**0.9 <= within.at_most
        widths.append(math.log(within.at_most / within.at_least) / math.log(apart.at_most / apart.at_least))
    assert covered >= 0.9 * studies
    assert np.median(widths) <= 0.5
