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
    has_trend,
    host_variance_ratio,
    sessions,
    trend,
    trend_sentences,
)
from scalewise.analysis.comparison.gains import contrast, gains, speeds
from scalewise.analysis.scaling import known_columns
from scalewise.analysis.statistics.ratios import ratio_of
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
        study().drop(columns=["hosts", "started_at"]),
    ],
    ids=["one machine", "fixed nodes", "a count without a result", "older records"],
)
def test_studies_in_which_nothing_is_confounded_have_no_caution(runs: pd.DataFrame) -> None:
    assert confounding_sentences(runs) == []


@pytest.mark.slow
def test_nodes_that_are_drawn_for_every_run_are_in_the_intervals_and_no_caution() -> None:
    assert rate(lambda seed: bool(of_nodes(study(seed, nodes_to_a_count=4)))) <= 0.05


def test_the_ratio_of_variances_by_hand() -> None:
    assert host_variance_ratio([["a"], ["b"]], [["c"], ["d"]]) == pytest.approx(1.0)  # each drawn once
    # the point's share moves from a to b as a whole: 2; the baseline's two nodes show (1/2) / 1
    assert host_variance_ratio([["a"], ["b"]], [["c"], ["c"]]) == pytest.approx(1.5 / 0.5)
    assert host_variance_ratio([["a"], ["a"]], [["b"], ["b"]]) == np.inf
    assert host_variance_ratio([["a"], ["b"]], [["a", "b"]]) == 0.0


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
    ratio = contrast(known[known["devices"] == 8], known[known["devices"] == 1], speeds)
    assert ratio is not None
    assert ratio.estimate == pytest.approx(8**0.9, rel=0.005)
    assert ratio.n == 3


def test_sessions_are_parted_by_pauses_and_not_by_long_runs() -> None:
    hours = [0.0, 20.0, 5.0, 11.0]
    runs = pd.DataFrame({"started_at": [(MONDAY + timedelta(hours=each)).isoformat() for each in hours]})
    assert list(sessions(runs)) == [1, 2, 1, 1]
    assert list(sessions(runs.assign(wall_seconds=4 * 3600.0))) == [1, 1, 1, 1]
    runs.loc[1, "started_at"] = None
    assert sessions(runs).isna().tolist() == [False, True, False, False]


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
        (lambda run: (run["devices"] == 8, run["repeat"]), "all runs on 8 devices started after"),
        (lambda run: (run["devices"] > 1, run["repeat"]), "all runs on 1 device started before"),
    ],
    ids=["small first", "large first", "the most devices last", "the baseline first"],
)
@pytest.mark.parametrize("repeats", [3, 6])
def test_device_counts_that_a_queue_started_apart_are_named(
    key: Callable[[Any], Any], said: str, repeats: int
) -> None:
    runs = drifting(queued(on_one_machine(repeats=repeats), key))
    (sentence,) = of_time(runs)
    assert said in sentence
    # nothing may state the opposite
    assert not [*trend_sentences(runs)]


def test_runs_in_shuffled_blocks_have_no_order() -> None:
    for repeats in (2, 3, 6):
        assert not any(of_time(on_one_machine(seed, repeats, trend=0.15)) for seed in range(20))


def test_runs_of_one_repeat_are_a_pair_only_if_they_took_turns() -> None:
    runs = known_columns(drifting(on_one_machine(scatter=0.002, trend=0.0)))
    # the runs of 8 devices in the order of their repeats, but two turns late
    late = queued(runs, lambda run: (run["repeat"] + 2 * (run["devices"] == 8), run["devices"]))
    for table, paired in ((runs, True), (late, False)):
        point, than = (table[table["devices"] == devices] for devices in (8, 1))
        found = contrast(point, than, speeds, blocked=True)
        assert found is not None
        assert (found.freedom == 5) == paired


def test_a_drift_is_in_the_speedups_if_repeats_did_not_take_turns() -> None:
    runs = on_one_machine(scatter=0.002)
    late = drifting(queued(runs, lambda run: (run["repeat"] + 2 * (run["devices"] == 8), run["devices"])))
    (sentence,) = (each for each in confounding_sentences(late) if "did not take turns" in each)
    assert "Throughput rose by" in sentence
    assert not [*trend_sentences(late)]
    (usual,) = trend_sentences(drifting(runs))
    assert "Speedups compare runs of the same time" in usual


# --- trend --------------------------------------------------------------------------------------------


def stepped(seed: int) -> pd.DataFrame:
    """Return a study whose second half is 5 % faster."""
    runs = on_one_machine(seed)
    return runs.assign(
        throughput_samples_per_second=runs[RATE] * np.where(runs.index < len(runs) // 2, 1, 1.05)
    )


def test_a_drift_or_a_step_through_the_study_is_found_with_its_size() -> None:
    assert rate(lambda seed: has_trend(on_one_machine(seed, repeats=3, trend=-0.06))) >= 0.95
    assert rate(lambda seed: has_trend(stepped(seed))) >= 0.95
    changes = [found.change for seed in range(20) if (found := trend(on_one_machine(seed, trend=-0.06)))]
    assert np.mean(changes) == pytest.approx(-0.06, abs=0.005)
    (sentence,) = trend_sentences(on_one_machine(trend=-0.06))
    assert sentence.startswith("Throughput fell by ")


@pytest.mark.parametrize("scatter_of_most", [1, 10], ids=["even", "uneven"])
def test_a_study_without_drift_has_a_trend_in_one_of_twenty(scatter_of_most: float) -> None:
    def has_one(seed: int) -> bool:
        return has_trend(on_one_machine(seed, scatter_of_most=scatter_of_most))

    # the 99 % quantile of 100 studies with p = 0.05 is 11
    assert rate(has_one, 100) <= 0.11


def test_a_small_drift_single_runs_equal_speeds_and_unknown_times_are_no_trend() -> None:
    small = on_one_machine(repeats=10, scatter=0.0005, trend=0.004)
    found = trend(small)
    assert found is not None
    assert found.p_value < 0.01
    assert not has_trend(small)
    assert trend(on_one_machine(repeats=1)) is None
    assert not has_trend(on_one_machine(scatter=0.0))
    assert not has_trend(study().drop(columns=["started_at"]))


def test_if_speed_drifts_runs_are_compared_within_their_blocks() -> None:
    """12 % slower at the end: within blocks the interval still covers the truth, and is far narrower."""
    covered, widths, studies = 0, [], 25
    for seed in range(studies):
        known = known_columns(on_one_machine(seed, scatter=0.003, trend=-0.12))
        within = gains(known).of("throughput", (ONLY, 4), (ONLY, 1))
        four, one = (speeds(known[known["devices"] == n]).tolist() for n in (4, 1))
        apart = ratio_of(four, one)
        assert within is not None
        assert apart is not None
        covered += within.at_least <= 4**0.9 <= within.at_most
        widths.append(math.log(within.at_most / within.at_least) / math.log(apart.at_most / apart.at_least))
    assert covered >= 0.9 * studies
    assert np.median(widths) <= 0.5
