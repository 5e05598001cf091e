"""The status of a study: its runs, Slurm's queue and what Slurm has counted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.planted_records import leave_result, measurements, run_record
from tests.unit.plan.conftest import Load

from scalewise.execution.slurm import queued_runs
from scalewise.plan.planned_study import Study, make_plan
from scalewise.status import spent_in_slurm, status_lines

STUDY = """\
experiments:
  a: {dataset: digits, model: linear, global_batch_size: 240, devices: [1, 2], repeats: 3, epochs: 4}
"""
SITE = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\n"
CLUSTER = f"{SITE}max_nodes: 2\nslurm: {{account: mine, partition: main}}\n"


def leave(study: Study, results: Path, *names: str, **measured: Any) -> None:
    for name in names:
        run = study.runs["a", name]
        record = run_record(run, measurements=measurements(**measured))
        leave_result(results / "a" / "runs" / name, record)


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program on PATH that prints a text, and writes its arguments into a file."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {folder}/{name}.asked\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")


def test_points_with_done_disturbed_and_waiting_runs(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = load(STUDY, SITE)
    leave(study, tmp_path / "results", "d1.r1", "d1.r2", "d2.r1")
    leave(study, tmp_path / "results", "d1.r3", other_cpu_fraction=0.4)
    lines = list(status_lines(make_plan(study), tmp_path / "results", time.time()))
    assert lines[0].startswith("a: ")
    assert any(line.startswith("  d1: 3 of 3 done, ") for line in lines)
    assert any(line.startswith("  d2: 1 of 3 done, ") and line.endswith("; 2 waiting") for line in lines)
    assert any(line.startswith("  1 disturbed run: d1.r3 (other processes took 40 %") for line in lines)
    assert lines[-1].endswith(" device-hours by the records of the runs.")
    assert max(map(len, lines)) <= 80


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
    program(tmp_path, "squeue", "\n".join(queue), monkeypatch)
    plan = make_plan(load(STUDY, CLUSTER))
    assert {run: job.number for run, job in queued_runs(plan).items()} == {
        ("a", "d1.r1"): "1",
        ("a", "d2.r1"): "2",
    }
    lines = list(status_lines(plan, tmp_path / "results", time.time()))
    assert any(line.endswith("; 1 waiting (Priority); 2 waiting") for line in lines), lines
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
    program(tmp_path, "sacct", "\n".join(lines), monkeypatch)
    # a job that was requeued is counted twice, as it ran twice
    assert spent_in_slurm(tmp_path, 0.0) == f"Slurm counts {counted} for 1 job."
    assert "--starttime=1970-01-01T00:00:00" in (tmp_path / "sacct.asked").read_text().split()


def test_without_accounting_the_records_are_counted(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    study = load(STUDY, CLUSTER)
    leave(study, tmp_path / "results", "d1.r1")
    lines = list(status_lines(make_plan(study), tmp_path / "results", time.time()))
    assert lines[-1].endswith(" device-hours by the records of the runs.")
