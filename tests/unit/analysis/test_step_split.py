"""Where a step's time goes, and the sentence that says what to do about the largest loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.slowdowns import sentences, slowdown_of
from tests.unit.analysis.planted_tables import ALONE, PARTS, make_runs

from scalewise.analysis.bottlenecks.bottlenecks import find_bottlenecks, startup_sentences
from scalewise.analysis.bottlenecks.time_parts import STEP_COLUMNS, split
from scalewise.analysis.bottlenecks.utilization import CAUSES, LAUNCH, cause_at
from scalewise.analysis.scaling import scaling_table
from scalewise.analysis.tables import collect
from scalewise.records import RankRecord, Window


def windows(step_seconds: float, steps: int = 10) -> list[Window]:
    """Ten measured steps, after a slow warm-up that must not count."""
    warm_up = Window(first_step=0, steps=5, samples=5, seconds=100.0, warmup=True)
    seconds = step_seconds * steps
    return [warm_up, Window(first_step=5, steps=steps, samples=steps, seconds=seconds, warmup=False)]


def ranks(
    communication: Sequence[float],
    loader: Sequence[float] | None = None,
    local: Sequence[float] | None = None,
    exchanged: Sequence[float] | None = None,
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
            "local_pass_seconds": local or [math.nan] * count,
            "exchanged_pass_seconds": exchanged or [math.nan] * count,
            "waiting_seconds_per_step": waiting or [each - min(communication) for each in communication],
        }
    )


def assert_sums(found: Mapping[Any, Any]) -> None:
    assert sum(found[part] for part in PARTS) == pytest.approx(found["step_seconds"])
    assert all(found[part] >= 0 for part in PARTS)


def test_a_balanced_step_is_compute_and_what_its_exchange_takes_nobody_waits_for() -> None:
    found = split(windows(1.0), ranks([0.2, 0.2, 0.2, 0.2], loader=[0.1] * 4))
    assert_sums(found)
    assert found["step_seconds"] == pytest.approx(1.0)
    assert [found[part] for part in PARTS] == pytest.approx([0.7, 0.2, 0.1, 0.0, 0.0])


def test_the_rank_that_waits_for_nobody_is_the_slow_one_and_named_with_its_host() -> None:
    found = split(windows(1.0), ranks([0.5, 0.5, 0.5, 0.1]))
    assert_sums(found)
    assert [found[part] for part in PARTS] == pytest.approx([0.5, 0.1, 0.0, 0.4, 0.0])
    assert found["slowest_rank"] == 3
    assert found["slowest_host"] == "node1"


def test_with_two_ranks_the_whole_difference_is_the_slow_ones() -> None:
    found = split(windows(1.0), ranks([0.1, 0.5]))
    assert_sums(found)
    assert found["straggler_seconds"] == pytest.approx(0.4)
    assert found["slowest_rank"] == 0


def test_what_even_the_slowest_rank_waits_for_others_is_jitter_and_no_exchange() -> None:
    found = split(windows(1.0), ranks([0.3, 0.4, 0.3, 0.4], waiting=[0.25, 0.35, 0.25, 0.35]))
    assert_sums(found)
    assert found["jitter_seconds"] == pytest.approx(0.25)
    assert found["communication_seconds"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("communication", "slow"),
    [
        pytest.param([0.5, 0.5, 0.12, 0.1], "node1", id="both ranks of a host are slow"),
        pytest.param([0.5, 0.5, 0.5, 0.1], None, id="one of its ranks is"),
        pytest.param([0.5, 0.1, 0.5, 0.1], None, id="one of each host is"),
    ],
)
def test_a_host_is_slow_where_all_its_ranks_are(communication: list[float], slow: str | None) -> None:
    assert split(windows(1.0), ranks(communication))["slow_host"] == slow


def test_a_rank_that_is_late_because_of_its_loader_makes_the_loader_the_cause() -> None:
    found = split(windows(1.0), ranks([0.1, 0.5], loader=[0.4, 0.0]))
    assert_sums(found)
    assert [found[part] for part in PARTS] == pytest.approx([0.5, 0.1, 0.4, 0.0, 0.0])


def test_one_device_exchanges_with_nobody() -> None:
    found = split(windows(1.0), ranks([0.01], loader=[0.2]))
    assert_sums(found)
    assert [found[part] for part in PARTS] == pytest.approx([0.8, 0.0, 0.2, 0.0, 0.0])
    assert math.isnan(found["slowest_rank"])
    assert split(windows(1.0), ranks([math.nan]))["compute_seconds"] == pytest.approx(1.0)


def test_what_nobody_counted_is_not_made_up() -> None:
    found = split(windows(1.0), ranks([math.nan, math.nan], loader=[0.1, 0.3]))
    assert found["step_seconds"] == pytest.approx(1.0)
    assert found["loader_seconds"] == pytest.approx(0.3)
    unknown = set(STEP_COLUMNS) - {"step_seconds", "loader_seconds", "slowest_host", "slow_host"}
    assert all(math.isnan(found[column]) for column in unknown)
    assert math.isnan(split(windows(1.0)[:1], ranks([0.1, 0.1]))["step_seconds"])


def test_records_of_an_earlier_version_are_split_as_far_as_they_go() -> None:
    older = ranks([0.1, 0.5]).drop(
        columns=["local_pass_seconds", "exchanged_pass_seconds", "waiting_seconds_per_step"]
    )
    found = split(windows(1.0), older)
    assert_sums(found | {"jitter_seconds": 0.0})
    assert math.isnan(found["jitter_seconds"])
    assert math.isnan(found["crosscheck_communication_seconds"])
    oldest = older.drop(columns="communication_seconds_per_step")
    assert math.isnan(split(windows(1.0), oldest)["compute_seconds"])


def test_more_counted_communication_than_the_step_holds_leaves_no_part_below_zero() -> None:
    found = split(windows(1.0), ranks([1.4, 1.6], loader=[0.1, 1.2]))
    assert_sums(found)


def test_the_crosscheck_too_is_of_the_rank_that_waits_for_nobody() -> None:
    found = split(windows(1.0), ranks([0.1, 0.5], local=[0.8, 0.4], exchanged=[0.95, 0.95]))
    assert found["crosscheck_communication_seconds"] == pytest.approx(0.15)
    faster = split(windows(1.0), ranks([0.1, 0.5], local=[0.8, 0.4], exchanged=[0.7, 0.7]))
    assert faster["crosscheck_communication_seconds"] == 0.0


def test_the_tables_of_a_study_hold_the_split_of_each_run(tmp_path: Path) -> None:
    def record(rank: int, communication: float) -> RankRecord:
        values: dict[str, Any] = dict.fromkeys(RankRecord.__dataclass_fields__, 0)
        values |= {"rank": rank, "host": "node-a", "loader_wait_seconds": 1.0}
        return RankRecord(**values | {"communication_seconds_per_step": communication})

    records = [record(0, 0.5), record(1, 0.1)]
    write_run(tmp_path, "d2.r1", windows=windows(1.0), ranks=records)
    spec = experiment(devices=[2], repeats=1)
    runs = collect("study", spec, tmp_path).runs
    row = runs.iloc[0].to_dict()
    assert_sums(row)
    assert row["straggler_seconds"] == pytest.approx(0.4)
    assert row["slowest_rank"] == 1
    scaling = scaling_table(runs, "strong")
    assert scaling["straggler_seconds"].tolist() == pytest.approx([0.4])
    (tmp_path / "d2.r1" / "ranks.csv").unlink()
    (row,) = collect("study", spec, tmp_path).runs.to_dict("records")
    assert row["outcome"] == "unreadable"
    assert "ranks.csv: cannot be read" in row["reason"]


# --- the cause ----------------------------------------------------------------------------------------


def study(parts: Mapping[int, Sequence[float]], **columns: Any) -> pd.DataFrame:
    """Runs whose steps divide so: device count -> compute, communication, loader, straggler, no jitter."""
    runs = make_runs({(ALONE, devices): [100.0] * 3 for devices in parts})
    divided = [(*values, 0.0)[: len(PARTS)] for values in parts.values()]
    for column, values in zip(PARTS, zip(*divided, strict=True), strict=True):
        runs[column] = runs["devices"].map(dict(zip(parts, values, strict=True)))
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    return runs.assign(**columns)


def test_a_training_that_scales_has_no_limit() -> None:
    assert sentences(study({1: (1.0, 0, 0, 0), 2: (0.5, 0.01, 0.02, 0.01)})) == [
        "On 2 devices, 7 % of each step is lost."
    ]


def test_communication_is_named_with_what_is_lost_and_the_line_to_write() -> None:
    runs = study({1: (1.0, 0, 0, 0), 4: (0.25, 0.12, 0, 0.01), 8: (0.125, 0.14, 0, 0.01)})
    found, others = slowdown_of(runs)
    assert found.sentence == "On 8 devices, 55 % of each step is lost, most of it to communication."
    assert found.advice.startswith("Exchange gradients less often: double the batch size")
    assert found.paste == "global_batch_size: 512"
    assert slowdown_of(runs, sweep={"global_batch_size": [256, 512]})[0].paste == ""
    assert others == ["On 4 devices, 34 % of each step is lost, most of it to communication."]


def test_a_bar_has_the_parts_of_a_step_with_the_shares_that_the_table_has() -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.2, 0.1, 0.05, 0.05)})
    found, _ = slowdown_of(runs)
    assert {part["name"]: round(part["share"], 4) for part in found.parts} == {
        "computing": 0.3125,
        "slower computing": 0.1875,
        "communication": 0.25,
        "waiting for data": 0.125,
        "one slow rank": 0.125,
    }
    assert sum(part["seconds"] for part in found.parts) == pytest.approx(found.step_seconds)
    point = scaling_table(runs, "strong").iloc[-1]
    assert point["communication_seconds"] / point["step_seconds"] == pytest.approx(0.25)


def test_parts_and_step_are_means_over_the_runs_so_that_they_sum() -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.125, 0.1, 0.02, 0)})
    runs.loc[runs["devices"] == 8, "communication_seconds"] = [0.05, 0.06, 0.19]
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    point = scaling_table(runs, "strong").iloc[-1]
    assert point["communication_seconds"] == pytest.approx(0.1), "the median is 0.06"
    assert_sums(point.to_dict())
    found, _ = slowdown_of(runs)
    (shown,) = (part["share"] for part in found.parts if part["key"] == "communication")
    assert shown == pytest.approx(point["communication_seconds"] / point["step_seconds"])


@pytest.mark.parametrize(("chosen", "devices"), [(1, 4), (2, 4), (4, 4), (8, 8), (16, 8), (None, 8)], ids=str)
def test_the_bar_is_of_the_answer_or_the_next_count_that_loses_time(chosen: int | None, devices: int) -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0, 0, 0), 4: (0.25, 0.1, 0, 0), 8: (0.125, 0.1, 0, 0)})
    assert slowdown_of(runs, chosen=chosen)[0].devices == devices


@pytest.mark.parametrize(
    ("loader", "cure", "paste"),
    [
        ("workers", "Load data with more CPUs", "cpus_per_device: 2"),
        ("resident", "larger batches", "global_batch_size: 512"),
    ],
)
def test_advice_on_a_slow_loader_is_for_that_loader(loader: str, cure: str, paste: str) -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.125, 0.01, 0.1, 0)}, loader=loader)
    found, _ = slowdown_of(runs)
    assert found.sentence == "On 8 devices, 47 % of each step is lost, most of it to waiting for data."
    assert cure in found.advice
    assert found.paste == paste


def test_a_slow_rank_is_named_with_its_node() -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.125, 0.0, 0, 0.125)}, nodes=2)
    runs = runs.assign(slowest_rank=3, slowest_host="node7")
    assert sentences(runs) == [
        "On 8 devices, 50 % of each step is lost, most of it to waiting for rank 3 on node7. "
        "Leave node7 out, or ask the site."
    ]
    (on_one_node,) = sentences(runs.assign(nodes=1))
    assert "Leave node7 out" not in on_one_node
    runs.loc[runs["repeat"] > 1, "slowest_rank"] = [5, 6, 5, 6]
    (changing,) = sentences(runs)
    assert "most of it to waiting for one slow rank. It is not the same rank in all runs." in changing


def test_compute_that_does_not_shrink_is_the_limit_of_strong_scaling_only() -> None:
    runs = study({1: (1.0, 0, 0, 0), 4: (0.9, 0.1, 0, 0)})
    (said,) = sentences(runs)
    assert said.startswith("On 4 devices, 75 % of each step is lost, most of it to slower computing. Give")
    (even,) = sentences(study({1: (1.0, 0, 0, 0), 4: (1.02, 0.05, 0, 0)}), "weak")
    assert even == "On 4 devices, 7 % of each step is lost."
    (slowed,) = sentences(study({1: (1.0, 0, 0, 0), 4: (1.5, 0.05, 0, 0)}), "weak")
    assert slowed.startswith("On 4 devices, 35 % of each step is lost, most of it to slower computing.")


def test_a_cause_that_faster_computing_hides_is_named_by_its_own_share() -> None:
    (said,) = sentences(study({1: (1.0, 0, 0, 0), 4: (0.2, 0.1, 0, 0)}))
    assert said.startswith("On 4 devices, communication takes 33 % of each step. Exchange")


def test_the_largest_loss_is_the_one_that_is_named() -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0.2, 0.1, 0.15)})
    (limit,) = (limit for _, limit in find_bottlenecks(scaling_table(runs, "strong"), runs) if limit)
    assert limit.point["devices"] == 2
    assert limit.cause == "communication"
    assert limit.share.estimate == pytest.approx(0.2 / 0.95)


def test_a_series_is_named_where_there_are_several() -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.125, 0.1, 0, 0)})
    both = pd.concat([runs.assign(series="hook-none"), runs.assign(series="hook-fp16")])
    first, second = sentences(both)
    assert first.startswith("On 8 devices with hook-none, 44 % of each step is lost")
    assert second.startswith("On 8 devices with hook-fp16, 44 % of each step is lost")
    found, _ = slowdown_of(runs.assign(series="hook-none"))
    assert found.where == "8 devices with hook-none"
    assert found.sentence.startswith("On 8 devices, ")


def test_start_up_is_said_as_a_share_of_a_run() -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0, 0, 0)}, wall_seconds=10.0)
    assert startup_sentences(scaling_table(runs.assign(wall_seconds=100.0), "strong")) == []
    assert startup_sentences(scaling_table(runs, "strong"), "GPU") == [
        "Start-up takes 40 % of a run on 1 GPU and 40 % on 2 GPUs. In longer trainings it matters less."
    ]


def test_two_measurements_that_disagree_are_both_given() -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0.05, 0, 0)})

    def checked(seconds: float) -> list[str]:
        checks = runs["devices"].map({2: seconds})
        return slowdown_of(runs.assign(crosscheck_communication_seconds=checks))[1]

    assert checked(0.07) == []
    assert checked(0.03) == []
    runs["communication_seconds"] = 0.01
    assert checked(0.03) == []  # thrice as much, but little of the step
    runs["communication_seconds"] = 0.05
    (said,) = checked(0.2)
    assert said == (
        "The time in communication is uncertain. On 2 devices it is 50.0 ms a step by DDP's counters, 200 ms "
        "by a test after the training."
    )


def test_idle_devices_are_not_guessed_about_where_the_split_tells_why() -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0.4, 0, 0)}, mean_utilization=0.2)
    one, two = (point for _, point in scaling_table(runs, "strong").iterrows())
    assert cause_at(one) == CAUSES[LAUNCH]
    assert cause_at(two) == ""
    assert cause_at(two.drop(PARTS)) != ""


def test_communication_in_doubt_is_not_named_where_one_of_its_measurements_is_small() -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0.3, 0, 0.15)})
    assert "most of it to communication" in sentences(runs)[0]
    disturbed, doubt = sentences(runs.assign(crosscheck_communication_seconds=runs["devices"].map({2: 0.01})))
    assert "to waiting for one slow rank" in disturbed
    assert "is uncertain" in doubt
