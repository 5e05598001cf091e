"""Planted studies in which nodes or time stand behind a speedup, and clean ones, with rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from scalewise.analysis.comparison.confounding import (
    confounding_sentences,
    has_trend,
    host_variance_ratio,
    sessions,
    trend,
    trend_sentences,
)

MONDAY = datetime(2026, 1, 5, 9, tzinfo=UTC)
NODES = {1: 1, 2: 1, 4: 1, 8: 2}
"""Nodes of each device count, at 4 devices a node."""
STUDIES = 100

Draw = Callable[[np.random.Generator, int], Sequence[str]]
"""Gives the nodes of a run on so many devices."""


def on_one_machine(_generator: np.random.Generator, _devices: int) -> list[str]:
    return ["here"]


def drawn_from(count: int) -> Draw:
    """Nodes as a scheduler with free choice gives them."""

    def draw(generator: np.random.Generator, devices: int) -> list[str]:
        return [f"node-{index}" for index in generator.choice(count, NODES[devices], replace=False)]

    return draw


def sticky(_generator: np.random.Generator, devices: int) -> list[str]:
    """Each device count has nodes of its own."""
    return [f"node-{devices}-{index}" for index in range(NODES[devices])]


def study(
    seed: int = 0,
    *,
    repeats: int = 6,
    nodes: Draw = on_one_machine,
    scatter: Mapping[int, float] | float = 0.01,
    change: Callable[[float], float] = lambda _share: 0.0,
    minutes: float = 5.0,
    series: str = "all runs",
) -> pd.DataFrame:
    """Runs on 1 to 8 devices in blocks of shuffled order; throughput follows the devices and what is planted.

    Args:
        scatter: Standard deviation of the logarithm, of all device counts or of each.
        change: Added to the logarithm of the throughput, by the share of the study that is over.
        minutes: Length of a run.
    """
    generator = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for repeat in range(1, repeats + 1):
        for devices in generator.permutation(list(NODES)):
            deviation = scatter[int(devices)] if isinstance(scatter, Mapping) else scatter
            share = len(rows) / (repeats * len(NODES) - 1)
            rows.append(
                {
                    "series": series,
                    "devices": int(devices),
                    "repeat": repeat,
                    "outcome": "completed",
                    "hosts": ", ".join(nodes(generator, int(devices))),
                    "started_at": (MONDAY + timedelta(minutes=minutes * len(rows))).isoformat(),
                    "throughput_samples_per_second": 100.0
                    * devices**0.9
                    * np.exp(generator.normal(0, deviation) + change(share)),
                }
            )
    return pd.DataFrame(rows)


def later(runs: pd.DataFrame, days: float) -> pd.DataFrame:
    moved = pd.to_datetime(runs["started_at"]) + pd.Timedelta(days=days)
    return runs.assign(started_at=moved.map(lambda time: time.isoformat()))


def rate(of: Callable[[int], bool]) -> float:
    return sum(map(of, range(STUDIES))) / STUDIES


# --- nodes --------------------------------------------------------------------------------------------


def of_nodes(runs: pd.DataFrame) -> list[str]:
    return [line for line in confounding_sentences(runs) if line.startswith("Device count and nodes")]


def test_device_counts_that_each_have_their_own_nodes_are_told_with_the_nodes_and_the_cure() -> None:
    runs = study(nodes=sticky)
    (sentence,) = of_nodes(runs)
    assert "(1 device: node-1-0 in 6 runs; 2 devices: node-2-0 in 6 runs; 4 devices: node-4-0" in sentence
    assert "8 devices: node-8-0, node-8-1 in 6 runs)" in sentence
    assert "slurm.constraint" in sentence
    # a single run elsewhere does not change that
    runs.loc[runs[runs["devices"] == 2].index[3], "hosts"] = "node-1-0"
    (sentence,) = of_nodes(runs)
    assert "2 devices: node-2-0, node-1-0 in 6 runs" in sentence


@pytest.mark.parametrize(
    ("count", "repeats", "most"),
    [(4, 6, 0.05), (64, 3, 0.05), (4, 3, 0.10)],
)
@pytest.mark.slow
def test_nodes_that_are_drawn_for_every_run_are_in_the_intervals_and_no_caution(
    count: int, repeats: int, most: float
) -> None:
    """With 3 repeats on 4 nodes chance alone puts some counts on nodes of their own, which is then true."""
    assert rate(lambda seed: bool(of_nodes(study(seed, repeats=repeats, nodes=drawn_from(count))))) <= most


def test_one_machine_and_a_fixed_set_of_nodes_confound_nothing() -> None:
    assert confounding_sentences(study()) == []
    assert of_nodes(study(nodes=lambda _generator, devices: ["a", "b"][: NODES[devices]])) == []


def test_only_runs_that_a_speedup_joins_are_looked_at() -> None:
    runs = study()
    runs.loc[runs["devices"] == 2, ["hosts", "outcome"]] = ["elsewhere", "failed"]
    assert of_nodes(runs) == []
    runs = study().assign(fingerprint="alike")
    runs.loc[runs["devices"] == 2, ["hosts", "fingerprint"]] = ["elsewhere", "other"]
    assert of_nodes(runs) == []


def test_series_that_share_a_fault_share_a_sentence() -> None:
    runs = pd.concat([study(nodes=sticky, series=name) for name in ("off", "on")])
    (sentence,) = of_nodes(runs)
    assert "1 device of off: node-1-0 in 6 runs" in sentence
    assert "likewise in 1 other series" in sentence


def test_the_ratio_of_variances_by_hand() -> None:
    assert host_variance_ratio([["a"], ["b"]], [["c"], ["d"]]) == pytest.approx(1.0)  # all drawn anew
    # the point's share moves from a to b as a whole: 2; the baseline's two nodes show (1/2) / 1
    assert host_variance_ratio([["a"], ["b"]], [["c"], ["c"]]) == pytest.approx(1.5 / 0.5)
    assert host_variance_ratio([["a"], ["a"]], [["b"], ["b"]]) == np.inf
    assert host_variance_ratio([["a"], ["b"]], [["a", "b"]]) == 0.0


# --- time ---------------------------------------------------------------------------------------------


def of_time(runs: pd.DataFrame) -> list[str]:
    return [line for line in confounding_sentences(runs) if line.startswith("Device count and time")]


def test_a_count_that_was_added_on_another_day_is_told_with_both_days_and_the_repeats_to_ask_for() -> None:
    runs = study(repeats=3)
    added = runs["devices"] == 8
    (sentence,) = of_time(pd.concat([runs[~added], later(runs[added], 3)], ignore_index=True))
    assert "(1 device: from 2026-01-05 09:" in sentence
    assert "; 8 devices: from 2026-01-08 09:" in sentence
    assert "2 devices" not in sentence
    assert "Raise repeats to 6:" in sentence


def test_a_baseline_that_was_measured_again_beside_what_was_added_confounds_nothing() -> None:
    first, second = study(1, repeats=3), later(study(2, repeats=3), 3)
    second["repeat"] += 3
    runs = pd.concat([first[first["devices"] != 8], second], ignore_index=True)
    assert of_time(runs) == []
    assert sorted(set(sessions(runs))) == [1, 2]


def test_sessions_are_parted_by_pauses_and_not_by_long_runs() -> None:
    hours = [0.0, 20.0, 5.0, 11.0]
    runs = pd.DataFrame({"started_at": [(MONDAY + timedelta(hours=each)).isoformat() for each in hours]})
    assert list(sessions(runs)) == [1, 2, 1, 1]
    assert list(sessions(runs.assign(wall_seconds=4 * 3600.0))) == [1, 1, 1, 1]
    runs.loc[1, "started_at"] = None
    assert sessions(runs).isna().tolist() == [False, True, False, False]


def test_what_older_records_do_not_tell_is_no_reason_for_a_caution() -> None:
    runs = study().drop(columns=["hosts", "started_at"])
    assert confounding_sentences(runs) == []
    assert sessions(runs).isna().all()
    assert not has_trend(runs)


# --- trend --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeats", [3, 6])
def test_a_drift_through_the_study_is_found_with_its_size(repeats: int) -> None:
    def slower(share: float) -> float:
        return -0.06 * share

    assert rate(lambda seed: has_trend(study(seed, repeats=repeats, change=slower))) >= 0.95
    changes = [found.change for seed in range(20) if (found := trend(study(seed, change=slower)))]
    assert np.mean(changes) == pytest.approx(np.expm1(-0.06), abs=0.005)
    (sentence,) = trend_sentences(study(change=slower))
    assert sentence.startswith("Throughput fell by ")


def test_a_step_between_two_days_is_a_trend_too() -> None:
    def stepped(seed: int) -> bool:
        return has_trend(study(seed, change=lambda share: 0.05 if share > 0.5 else 0.0))

    assert rate(stepped) >= 0.95


@pytest.mark.parametrize("repeats", [2, 6])
@pytest.mark.parametrize("scatter", [0.02, {1: 0.01, 2: 0.01, 4: 0.03, 8: 0.1}], ids=["even", "uneven"])
def test_a_study_without_drift_has_a_trend_in_one_of_twenty(
    repeats: int, scatter: Mapping[int, float] | float
) -> None:
    # the 99 % quantile of 100 studies with p = 0.05 is 11
    assert rate(lambda seed: has_trend(study(seed, repeats=repeats, scatter=scatter))) <= 0.11


def test_a_drift_of_less_than_a_percent_is_not_worth_a_word() -> None:
    runs = study(repeats=10, scatter=0.0005, change=lambda share: 0.004 * share)
    found = trend(runs)
    assert found is not None
    assert found.p_value < 0.01
    assert not has_trend(runs)


def test_single_runs_and_equal_figures_show_no_trend() -> None:
    assert trend(study(repeats=1)) is None
    assert not has_trend(study(scatter=0.0))
