"""The plan that a dry run ends with: a row for each point, costs, requests and warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.planted_records import leave_failure, leave_result, measurements, run_record
from tests.unit.plan.conftest import Load

from scalewise.plan.plan_table import plan_lines
from scalewise.plan.planned_study import Study
from scalewise.records import read_failure

STUDY = """\
experiments:
  a-study: {dataset: digits, model: linear, global_batch_size: 240, devices: [1, 2], repeats: 3, epochs: 4,
            runtime_minutes: 6, sweep: {gradient_as_bucket_view: [false, true]}}
"""
SITE = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\n"
CLUSTER = f"{SITE}max_nodes: 2\nslurm: {{account: mine, partition: main}}\n"


def said(study: Study, results: Path) -> str:
    """Return the plan without its line breaks."""
    return " ".join(" ".join(plan_lines(study, results, {})).split())


def rows(lines: list[str]) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  d")}


def test_each_point_has_a_row_of_at_most_80_columns(load: Load, tmp_path: Path) -> None:
    lines = list(plan_lines(load(STUDY, SITE), tmp_path, {}))
    assert lines[1] == "a-study"
    assert max(map(len, lines)) <= 80
    assert rows(lines)["d2.bucket-view-on"] == ["3", "1x2", "120", "4", "epochs", "<=", "0.600"]
    assert len(rows(lines)) == 4
    # 2 series x (1 + 2) devices x 3 repeats x 0.1 h
    assert lines[5 + 1].startswith("12 runs, at most 1.800 device-hours.")


def test_finished_runs_are_counted_and_cost_what_they_took(load: Load, tmp_path: Path) -> None:
    study = load(STUDY, SITE)
    for run in list(study.runs.values())[:2]:
        folder = tmp_path / run.experiment / "runs" / run.run
        leave_result(folder, run_record(run, measurements=measurements()))
    record = json.loads(next(tmp_path.rglob("record.json")).read_text())["provenance"]
    lines = list(plan_lines(study, tmp_path, {}))
    first = next(iter(rows(lines).values()))
    assert first[:3] == ["2", "of", "3"]
    assert "<=" not in first
    assert record["started_at"] < record["ended_at"]
    assert any(line.startswith("2 of 12 runs are done. To do: 10 runs, at most ") for line in lines)


def test_a_change_that_trains_finished_runs_again_is_named(load: Load, tmp_path: Path) -> None:
    run = next(iter(load(STUDY, SITE).runs.values()))
    leave_result(tmp_path / run.experiment / "runs" / run.run, run_record(run, measurements=measurements()))
    changed = load(STUDY.replace("epochs: 4", "epochs: 5"), SITE)
    text = said(changed, tmp_path)
    assert "finished runs are trained again, because epochs changed from 4 to 5. (1 run)" in text


def test_requests_that_agree_are_shown_once_as_profiles_leave_them(load: Load, tmp_path: Path) -> None:
    study = load(STUDY, CLUSTER)
    asked = {"nodes": 1, "runtime": 99, "slurm_account": "other", "mpi": "", "_cores": 3}
    requests = {key: asked for key, run in study.runs.items() if run.shape.world_size == 1}
    lines = list(plan_lines(study, tmp_path, requests))
    start = lines.index("Each job requests runtime=99 slurm_account=other")
    assert lines[start + 1] == "  1x1: nodes=1"


@pytest.mark.parametrize("exclusive", [True, False])
def test_whole_nodes_for_a_part_of_one_have_their_price(exclusive: bool, load: Load, tmp_path: Path) -> None:
    site = CLUSTER if exclusive else CLUSTER.replace("partition: main", "partition: main, exclusive: false")
    # 12 runs of 0.1 h hold 4 devices each, 1.8 of these 4.8 hours are used
    assert ("3.000 of these device-hours" in said(load(STUDY, site), tmp_path)) is exclusive


def test_runs_that_would_fail_again_are_named_with_the_reason(load: Load, tmp_path: Path) -> None:
    study = load(STUDY, SITE)
    refused = {}
    for key, run in list(study.runs.items())[:2]:
        leave_failure(tmp_path / key[1], run, "timed-out", "stopped after 6 minutes. Raise runtime_minutes.")
        failure = read_failure(tmp_path / key[1])
        assert failure is not None
        refused[key] = failure
    text = " ".join(" ".join(plan_lines(study, tmp_path, {}, refused)).split())
    assert "Warning: a-study/d1.bucket-view-off.r1 and 1 other run would end as before" in text
    assert "timed-out: stopped after 6 minutes. Raise runtime_minutes." in text
