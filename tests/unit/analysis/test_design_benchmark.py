"""Published measurements that stand in for a cluster, and what studies of them come to."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from benchmarks.bench_design import (
    DEADLINE,
    HEADLINE,
    SEED,
    THRESHOLD,
    Figures,
    Task,
    replay_of,
    rows,
    study,
)
from benchmarks.measure import TableError
from benchmarks.published_tables import T4_STEPS, V100_REPEATS
from benchmarks.replayed_studies import (
    ReplayedSeries,
    bisection,
    chosen_study,
    full_grid,
    published_scatter,
    read_series,
)
from benchmarks.run import main

from scalewise.plan.config.experiment import Repeats

AMDAHL = 0.02
"""Part of a step that does not divide: the efficiency is 0.53 on 48 devices and 0.44 on 64."""


def steps_table(path: Path, counts: dict[int, int], **columns: str) -> Path:
    """Steps of a planted training on counts of devices, each with its nodes."""
    table = pd.DataFrame(
        {
            "training": "planted",
            "nodes": list(counts.values()),
            "devices": list(counts),
            "batch_size_per_device": 32,
            "step_seconds": [0.1 * (1 + AMDAHL * (devices - 1)) for devices in counts],
            **columns,
        }
    )
    table.to_csv(path, index=False)
    return path


def planted(folder: Path) -> ReplayedSeries:
    (series,) = read_series(
        steps_table(folder / "planted.csv", {n: max(1, n // 8) for n in (1, 4, 8, 16, 32, 48, 64)})
    )
    return series


def test_published_tables_have_the_counts_that_fill_nodes() -> None:
    t4 = read_series(T4_STEPS)
    assert len(t4) == 24
    assert t4[0].counts == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
    assert {str(shape) for shape in t4[0].shapes.values()} >= {"1x4", "2x4", "16x4"}
    v100 = read_series(V100_REPEATS)
    # of one training there are two counts alone
    assert [series.counts for series in v100] == [[1, 4, 8, 16, 32], [1, 4, 8], [1, 4, 8, 16, 32]]
    assert all(len(speeds) >= 5 for series in v100 for speeds in series.speeds.values())


def test_other_nodes_and_missing_counts_are_read(tmp_path: Path) -> None:
    # 3 of 8 do not divide a node, 12 leave half a node over, 9 are uneven
    counts = {2: 1, 3: 1, 8: 1, 9: 2, 12: 2, 16: 2, 40: 5}
    (series,) = read_series(steps_table(tmp_path / "table.csv", counts))
    assert series.counts == [2, 8, 16, 40]
    assert series.efficiency(2) == 1
    assert series.efficiency(40) == pytest.approx((1 + AMDAHL) / (1 + 39 * AMDAHL))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("devices,speed\n1,2\n", "needs the columns", id="other columns"),
        pytest.param(
            "nodes,devices,batch_size_per_device,step_seconds\n1,1,8,0.1\n1,2,8,\n",
            "step_seconds is nan in row 2, not above 0",
            id="missing value",
        ),
        pytest.param(
            "nodes,devices,batch_size_per_device,step_seconds\n1,1,8,0.1\n0,2,8,0.1\n",
            "nodes is 0 in row 2",
            id="no nodes",
        ),
        pytest.param(
            "nodes,devices,batch_size_per_device,step_seconds\n1,1,8,0.1\n1,2,8,0.1\n",
            "no series with 3 device counts",
            id="too few counts",
        ),
        pytest.param(
            "case,nodes,devices,repeat,samples_per_second\n" + "".join(f"a,1,{n},1,{n}\n" for n in (1, 2, 4)),
            "each with two repeats or more",
            id="single repeats",
        ),
    ],
)
def test_table_that_cannot_be_replayed_is_refused_with_the_reason(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=reason):
        read_series(path)


def test_noise_is_that_of_published_repeats_and_the_same_for_both_studies(tmp_path: Path) -> None:
    scatter = published_scatter()
    assert scatter[True, True] < scatter[False, True] < scatter[False, False] < 0.02
    series = planted(tmp_path)
    one, same = (replay_of(Task(series, "efficiency 0.5", HEADLINE), SEED) for _ in range(2))
    other = replay_of(Task(series, "efficiency 0.7", HEADLINE), SEED)
    assert one.speeds == same.speeds != other.speeds
    for devices, speeds in one.speeds.items():
        assert len(set(speeds)) == HEADLINE.max
        assert abs(math.log(speeds[0] / series.true_speed(devices))) < 0.06


def test_published_repeats_are_the_runs_and_limit_them() -> None:
    series = read_series(V100_REPEATS)[0]
    replay = replay_of(Task(series, "knee", HEADLINE), SEED)
    assert replay.repeats == Repeats(min=5, max=5)
    assert list(replay.speeds[1]) == list(series.speeds[1])


def test_costs_are_those_of_runs_of_equal_steps_or_of_equal_samples(tmp_path: Path) -> None:
    series = planted(tmp_path)
    by_steps = replay_of(Task(series, "knee", HEADLINE), SEED)
    hours = by_steps.device_hours({64: 1}) / by_steps.device_hours({1: 1})
    assert hours == pytest.approx(64 * (1 + 63 * AMDAHL), rel=0.1)
    whole = replay_of(Task(series, DEADLINE, HEADLINE), SEED)
    hours = whole.device_hours({64: 1}) / whole.device_hours({1: 1})
    assert hours == pytest.approx(1 + 63 * AMDAHL, rel=0.1)
    # the middle one of seven counts keeps the deadline with 5 % to spare
    assert (whole.rule.deadline_minutes or 0) * 60 == pytest.approx(
        1.05 * whole.samples / series.true_speed(16)
    )


def test_both_ways_come_to_the_planted_answer_and_choosing_costs_less(tmp_path: Path) -> None:
    replay = replay_of(Task(planted(tmp_path), "efficiency 0.5", HEADLINE), SEED)
    full, chosen = full_grid(replay), chosen_study(replay)
    assert full.devices == chosen.devices == bisection(replay).devices == 48
    assert full.measured == 7
    assert min(full.repeats.values()) == 6
    assert chosen.measured < 7
    assert chosen.repeats[1] >= 6
    assert chosen.repeats[48] >= 6
    assert chosen.device_hours < 0.6 * full.device_hours


def test_efficiency_on_the_threshold_is_asked_for_as_it_truly_is(tmp_path: Path) -> None:
    series = planted(tmp_path)
    replay = replay_of(Task(series, THRESHOLD, HEADLINE), SEED)
    assert replay.rule.min_efficiency == pytest.approx(1 / (1 + 15 * AMDAHL))


def test_share_of_hours_and_other_answers_are_counted(tmp_path: Path) -> None:
    found = study(Task(planted(tmp_path), DEADLINE, HEADLINE))
    figures = Figures.of([found])
    assert figures.cases == 1
    assert figures.device_hours_share == found.chosen.device_hours / found.full.device_hours
    assert figures.other_answers == int(found.is_other) == 0
    wrong = replace(found, chosen=replace(found.chosen, devices=64))
    assert Figures.of([found, wrong]).other_answers_share == 0.5


@pytest.mark.slow
def test_benchmark_prints_its_rows_and_writes_every_case(tmp_path: Path) -> None:
    table = steps_table(tmp_path / "few.csv", {1: 1, 4: 1, 8: 2, 16: 4})
    path = tmp_path / "found.json"
    found = rows([table], path)
    told = json.loads(path.read_text())
    assert told["cases"] == 5 == len(told["each_case"])
    assert 0 < told["device_hours_share"] <= 1.2
    assert 0 <= told["other_answers_share"] <= 1
    assert set(told["criteria"]) == {"efficiency 0.5", "efficiency 0.7", "efficiency 0.8", "deadline", "knee"}
    met = told["device_hours_share"] <= 0.25 and told["other_answers_share"] <= 0.02
    assert [row.met for row in found if row.target] == [met]
    assert {row.n for row in found} >= {5, 1}


def test_tables_go_with_one_benchmark_that_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["design", "published", "--table", str(T4_STEPS)])
    assert "for published alone, or design alone" in capsys.readouterr().err


def test_table_that_is_refused_ends_the_command_with_the_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_text("devices,speed\n1,2\n")
    with pytest.raises(SystemExit) as ended:
        main(["design", "--table", str(path)])
    assert ended.value.code == 2
    assert f"{path} needs the columns" in capsys.readouterr().err
