"""What the terminal shows of a study: the plan that a dry run ends with, and the status."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.planted_records import leave_failure, leave_result, measurements, run_record
from tests.stand_ins import stand_ins
from tests.unit.plan.conftest import Load

from scalewise.config.errors import UserError
from scalewise.execution.slurm import queued_runs
from scalewise.plan.plan_table import plan_lines
from scalewise.plan.planned_study import Study, make_plan
from scalewise.records import RECORD
from scalewise.redo import SNAKEMAKE_LOCKS, redo
from scalewise.status import spent_in_slurm, status_lines

STUDY = """\
experiments:
  a-study: {dataset: digits, model: linear, global_batch_size: 240, devices: [1, 2], repeats: 3, epochs: 4,
            runtime_minutes: 6, sweep: {gradient_as_bucket_view: [false, true]}}
"""
SITE = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\n"


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


# --- the status ----------------------------------------------------------------------------------------


ONE_SERIES = STUDY.replace("a-study:", "a:").replace(", sweep: {gradient_as_bucket_view: [false, true]}", "")
CLUSTER = f"{SITE}max_nodes: 2\nslurm: {{account: mine, partition: main}}\n"


def leave(study: Study, results: Path, *names: str, **measured: Any) -> None:
    for name in names:
        run = study.runs["a", name]
        record = run_record(run, measurements=measurements(**measured))
        leave_result(results / "a" / "runs" / name, record)


def program(folder: Path, name: str, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program on PATH that prints lines, and writes its arguments into a file."""
    printed = "\n".join(lines)
    script = f"printf '%s\\n' \"$@\" > {folder}/{name}.asked\ncat <<'END'\n{printed}\nEND"
    monkeypatch.setenv("PATH", str(stand_ins(folder / "bin", {name: script})), prepend=":")


def test_points_with_done_disturbed_failed_and_missing_runs(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = load(ONE_SERIES.replace("[1, 2]", "[1, 2, 4]"), SITE)
    leave(study, tmp_path / "results", "d1.r1", "d1.r2", "d2.r1")
    leave(study, tmp_path / "results", "d1.r3", other_cpu_fraction=0.4)
    for run, rank in (("d4.r1", 1), ("d4.r3", 2)):
        reason = f"rank {rank} on node{rank}: no such file: labels"
        leave_failure(tmp_path / "results" / "a" / "runs" / run, study.runs["a", run], "failed", reason)
    (tmp_path / "results" / "a" / "runs" / "d2.r1" / "record.json").write_text("{", encoding="utf-8")
    lines = list(status_lines(make_plan(study), Path("results"), time.time()))
    assert lines[0].startswith("a: ")
    assert any(line.startswith("  d1: 3 of 3 done, ") for line in lines)
    assert "  d2: 0 of 3 done; 1 unreadable; 2 not run yet" in lines
    assert "  d4: 0 of 3 done; 2 failed; 1 not run yet" in lines
    text = " ".join("\n".join(lines).split())
    assert "d2.r1/record.json: not a record" in text
    assert "d4.r1 failed: rank 1 on node1: no such file: labels d4.r3 ended like d4.r1." in text
    assert any(line.startswith("  1 disturbed run: d1.r3 (other processes took 40 %") for line in lines)
    assert lines[-2].endswith(" device-hours by the records of the runs.")
    assert lines[-1].startswith("Snakemake is not running here.")
    assert max(map(len, lines)) <= 80
    SNAKEMAKE_LOCKS.mkdir(parents=True)
    (SNAKEMAKE_LOCKS / "0.output.lock").touch()
    assert [*status_lines(make_plan(study), Path("results"), time.time())] == lines[:-1]


LONG = "optimizer: [adadelta], learning_rate: [0.0001], schedule: [constant], horizontal_flip: [true]"


def test_a_point_with_a_long_name_has_a_line_of_80_columns_too(load: Load, tmp_path: Path) -> None:
    study = load(STUDY.replace("gradient_as_bucket_view: [false, true]", LONG), SITE)
    lines = list(status_lines(make_plan(study), tmp_path, time.time()))
    assert max(map(len, lines)) <= 80
    assert [line.partition("..: ")[2] for line in lines if line.startswith("  d2.")] == [
        "0 of 3 done; 3 not run yet"
    ]


def test_jobs_in_the_queue_are_those_of_this_folder(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queue = [
        f"1|PENDING|N/A|Priority|rule_train_wildcards_a_d1.r1|{tmp_path}",
        f"2|RUNNING|N/A|None|rule_ours_train_wildcards_a_d2.r1|{tmp_path}",
        "3|PENDING|N/A|Resources|rule_train_wildcards_a_d2.r2|/elsewhere",
        f"4|PENDING|N/A|Resources|a|b|{tmp_path}",
        "",
    ]
    program(tmp_path, "squeue", queue, monkeypatch)
    plan = make_plan(load(ONE_SERIES, CLUSTER))
    assert {run: job.number for run, job in queued_runs(plan).items()} == {
        ("a", "d1.r1"): "1",
        ("a", "d2.r1"): "2",
    }
    lines = list(status_lines(plan, tmp_path / "results", time.time()))
    assert any(line.endswith("; 1 waiting (Priority); 2 not run yet") for line in lines), lines
    assert any("1 running" in line for line in lines)


@pytest.mark.parametrize(
    ("allocated", "counted"),
    [
        ("billing=9,cpu=8,gres/gpu:h100=4,gres/gpu=4,node=1", "8.00 GPU-hours"),
        ("billing=9,cpu=8,mem=4G,node=1", "16.0 CPU-hours"),
    ],
)
def test_hours_are_those_of_slurms_accounting(
    allocated: str, counted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"1|3600|{allocated}|{tmp_path}", f"1|3600|{allocated}|{tmp_path}", f"2|3600|{allocated}|/other"]
    program(tmp_path, "sacct", lines, monkeypatch)
    # a job that was requeued is counted twice, as it ran twice
    assert spent_in_slurm(tmp_path) == f"Slurm counts {counted} for 1 job of the last 90 days."
    assert "--starttime=now-90days" in (tmp_path / "sacct.asked").read_text().split()


def test_without_answers_of_slurm_the_records_are_counted_and_none_is_removed(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    study = load(ONE_SERIES, CLUSTER)
    leave(study, tmp_path / "results", "d1.r1")
    plan, results = make_plan(study), tmp_path / "results"
    lines = list(status_lines(plan, results, time.time()))
    assert lines[0].startswith("squeue does not answer")
    assert lines[-2].endswith(" device-hours by the records of the runs.")
    with pytest.raises(UserError, match="squeue does not answer"):
        redo(plan, results, ["a"])
    assert (results / "a" / "runs" / "d1.r1" / RECORD).exists()
