"""Waits in the queue and expected starts, of jobs that Slurm lets wait for different reasons."""

from __future__ import annotations

import json
import math
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.slurm.lab import Lab
from tests.slurm.study import ROOT
from tests.waiting import wait_until

READ_ACCOUNTING = """
import json, sys
from scalewise.analysis.accounting import read_accounting
records = read_accounting(sys.argv[1:]).records
print(json.dumps([(each.job, each.submitted, each.wait_seconds) for each in records]))
"""
QUERY_SLURM = """
import json
from scalewise.watch.jobs import query_slurm
print(json.dumps({job: each.starts for job, each in (query_slurm() or {}).items()}))
"""


def on_head(lab: Lab, script: str, *arguments: str) -> Any:
    path = f"PYTHONPATH={ROOT / 'workflow' / 'scripts'}"
    # a format that a user may have set
    command = ["env", path, "SLURM_TIME_FORMAT=relative", sys.executable, "-c", script, *arguments]
    return json.loads(lab.run(*command).stdout)


def test_a_wait_is_what_slurm_recorded_and_an_expected_start_what_squeue_shows(
    lab: Lab, tmp_path: Path
) -> None:
    def submit(*options: str, work: str = "true") -> str:
        command = ["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={work}"]
        return lab.run(*command, cwd=tmp_path).stdout.strip()

    others = submit("--exclusive", "--nodes=4", "--time=20", work="sleep infinity")
    lab.wait(others, "RUNNING")
    blocked, begins, held, cancelled = (
        submit("--time=2", *options) for options in ([], ["--begin=now+5"], ["--hold"], [])
    )

    def expected() -> bool:
        command = ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--start", "--noheader", "--format=%i|%S"]
        shown = dict(line.split("|") for line in lab.ask(*command).split())
        starts = {job: float(start) if start != "N/A" else None for job, start in shown.items()}
        known = starts[blocked] is not None and starts[held] is None
        return known and starts.items() <= on_head(lab, QUERY_SLURM).items()

    wait_until(expected, "the expected starts are others than those of squeue --start")
    lab.run("scancel", cancelled)
    lab.run("scancel", others)
    lab.run("scontrol", "release", held)
    for job in (others, blocked, begins, held, cancelled):
        lab.accounting(job)

    records = on_head(lab, READ_ACCOUNTING, others, blocked, begins, held, cancelled)
    read = {job: (submitted, wait) for job, submitted, wait in records}
    fields = ["--noheader", "--parsable2", "--allocations", "--format=JobID,Submit,Eligible,Start,End"]
    recorded = {}
    for line in lab.run("sacct", *fields, f"--jobs={','.join(read)}").stdout.split():
        job, *times = line.split("|")
        recorded[job] = [
            datetime.fromisoformat(time).timestamp() if time[0].isdigit() else math.nan for time in times
        ]
    assert read.keys() == recorded.keys() == {others, blocked, begins, held, cancelled}
    freed = recorded[others][3]
    for job in (blocked, begins, held):
        submitted, eligible, start, _ = recorded[job]
        assert read[job] == (submitted, start - eligible)
    assert read[blocked][1] >= freed - recorded[blocked][0], "another job had all nodes"
    assert recorded[begins][1] >= recorded[begins][0] + 5, "the begin time is no wait"
    assert recorded[held][1] >= freed, "the hold is no wait"
    assert read[cancelled][1] is None, "it never started, though Slurm may record a start"
