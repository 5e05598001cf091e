"""What Slurm's accounting holds of the jobs: waits, jobstats' figures, or why they are unknown."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import BEGAN, experiment, leave_history, write_run
from tests.small_runs import definition
from tests.stand_ins import stand_ins
from tests.unit.analysis.planted_tables import read_json

from scalewise.analysis.accounting import Accounting, JobRecord, parse_records, read_accounting
from scalewise.analysis.analysis_spec import MEASURED_WAITS, STATED_WAITS, AnalysisSpec
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.jobstats import MOST_BYTES, job_figures, jobstats_table, read_summary
from scalewise.analysis.queue_waits import (
    NO_RECORD,
    NOT_STARTED,
    QueueWait,
    RunJob,
    jobs_of_runs,
    queue_waits_table,
    unknown_waits,
    wait_rows,
    waits_by_devices,
    waits_by_run,
    with_measured_waits,
)
from scalewise.analysis.rounds.judge_round import judge_round
from scalewise.plan.study import load_study
from scalewise.records import Start

RECORDED = """\
1|main|4|wl[1-4]|1795788427|1795788427|1795788428|
2|main|1|wl1|1795788428|1795788428|1795788436|
3|main|1|wl1|1795788428|1795788434|1795788436|
4|main|1|wl1|1795788428|1795788437|1795788437|
5|main|1|None assigned|1795788428|Unknown|None|
6|main|1|wl1|1795788428|1795788432|1795788436|
7|main|1|None assigned|1795788428|1795788428|1795788428|
8|main|1|wl1|1795788428|1795788428|1795788436|
8|main|1|wl1|1795788440|1795788461|1795788461|
9|main|1|None assigned|1795788428|1795788428|Unknown|
"""
"""Output of sacct of Slurm 22.05, of jobs that waited for nodes (2), had a begin time (3), a dependency (4),
were held (5, cancelled; 6, released), were cancelled in the queue (7), requeued (8), and still wait (9)."""


@pytest.mark.parametrize(
    ("job", "waits"),
    [
        pytest.param("1", [1], id="free nodes"),
        pytest.param("2", [8], id="nodes that others have"),
        pytest.param("3", [2], id="from the begin time on"),
        pytest.param("4", [0], id="from the end of the other job on"),
        pytest.param("5", [None], id="held, and cancelled"),
        pytest.param("6", [4], id="from the release on"),
        pytest.param("7", [None], id="cancelled in the queue, with a start in the record"),
        pytest.param("8", [8, 0], id="requeued"),
        pytest.param("9", [None], id="still waiting"),
    ],
)
def test_a_wait_is_from_the_time_at_which_a_job_could_start(job: str, waits: list[int | None]) -> None:
    assert [record.wait_seconds for record in parse_records(RECORDED) if record.job == job] == waits


@pytest.mark.parametrize("times", [*(f"{no}|{no}" for no in ("Unknown", "None", "N/A", "0", "")), "200|150"])
def test_without_both_times_in_their_order_a_wait_is_unknown(times: str) -> None:
    (record,) = parse_records(f"1|gpu|1|n1|100|{times}|")

    assert record.wait_seconds is None


def test_a_comment_with_separators_and_lines_is_read_as_it_is() -> None:
    records = parse_records("1|gpu|1|n1|1|1|1|see|ticket\nnext line | of it\n2|gpu|1|n1|1|1|1|\n")

    assert [(record.job, record.comment) for record in records] == [("1", "see|ticket"), ("2", "")]


RUNS = pd.DataFrame(
    {"run": ["d1.r1", "d1.r2", "d2.r1"], "series": "all runs", "devices": [1, 1, 2], "slurm_job_id": None}
)
JOBS = {"d1.r1": [RunJob("2", 0)], "d1.r2": [RunJob("3", 0)], "d2.r1": [RunJob("8", 1)]}


def sacct(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a stand-in for sacct first on PATH."""
    stand_ins(folder, {"sacct": script})
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_one_call_has_all_jobs_and_times_that_no_setting_of_the_user_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    sacct(tmp_path, monkeypatch, f'echo "$SLURM_TIME_FORMAT $*" >> {tmp_path}/asked; echo "{RECORDED}"')
    accounting = read_accounting(["1", "8", "1"])

    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert asked.startswith("%s ")
    assert asked.endswith(" -j 1,8")
    assert len(accounting.of("8")) == 2
    assert read_accounting([]) == Accounting()
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'slurm_persist_conn_open failed' >&2; exit 1", "slurm_persist_conn_open failed"),
        ("exec sleep 60", "no answer within 0.2 s"),
        (None, "No such file"),
    ],
    ids=["fails", "hangs", "is missing"],
)
def test_the_reason_is_stated_if_sacct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    monkeypatch.setattr(
        "scalewise.analysis.accounting.SACCT_SECONDS", 0.2 if script == "exec sleep 60" else 30
    )
    sacct(tmp_path, monkeypatch, script or "")
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    waits = queue_waits_table(RUNS, JOBS, read_accounting(["2", "3"]))

    assert len(waits) == len(RUNS)
    assert waits["wait_seconds"].isna().all()
    assert waits["note"].str.startswith("not stated: `sacct").all()
    assert waits["note"].str.contains(reason, regex=False).all()
    assert waits_by_devices(waits) == {}
    assert reason in unknown_waits(waits)[0]


def waits_of(jobs: Mapping[str, list[RunJob]] = JOBS, records: str = RECORDED) -> pd.DataFrame:
    return queue_waits_table(RUNS, jobs, Accounting(parse_records(records)))


def test_waits_by_devices_and_by_run(tmp_path: Path) -> None:
    path = tmp_path / "queue_waits.csv"
    # Slurm gave the id 8 to an earlier job, too
    waits_of(records="8|gpu|1|n1|10|10|99999|\n" + RECORDED).to_csv(path, index=False)
    waits = pd.read_csv(path)

    assert waits_by_devices(waits) == {1: QueueWait(2, 5, 2, 8), 2: QueueWait(2, 4, 0, 8)}
    assert waits_by_run(waits) == {"d1.r1": 8, "d1.r2": 2, "d2.r1": 8}
    assert waits.loc[waits["run"] == "d1.r2", ["submitted", "eligible", "started"]].to_numpy().tolist() == [
        ["2026-11-27T14:07:08+00:00", "2026-11-27T14:07:14+00:00", "2026-11-27T14:07:16+00:00"]
    ]


def test_jobs_that_accounting_does_not_list_or_that_have_not_started_have_a_reason() -> None:
    waits = waits_of({"d1.r1": [RunJob("77", 0)], "d1.r2": [RunJob("9", 0)], "d2.r1": []})

    assert list(waits["note"]) == [NO_RECORD, NOT_STARTED]
    assert [line.startswith("1 wait is unknown: ") for line in unknown_waits(waits)] == [True, True]
    # a run of several jobs has a wait only if all of its jobs have
    waits = waits_of(JOBS | {"d2.r1": [RunJob("8", 0), RunJob("77", 1)]})
    assert waits_by_run(waits) == {"d1.r1": 8, "d1.r2": 2}


def test_the_jobs_of_a_run_are_those_of_its_present_training(tmp_path: Path) -> None:
    def start(job: str | None, restarts: int = 0) -> Start:
        return Start(started_at=BEGAN, limit_seconds=60, slurm_job_id=job, restart_count=restarts)

    starts = [start("10"), start("11"), start("11", 1), start("12")]
    leave_history(tmp_path / "d1.r1", definition(1), *starts, first=1)
    leave_history(tmp_path / "d1.r2", definition(1), start(None))
    (tmp_path / "d2.r1").mkdir()
    (tmp_path / "d2.r1" / "history.json").write_text("damaged")
    runs = RUNS.assign(slurm_job_id=pd.Series([12.0, None, 21.0], dtype=object))

    assert jobs_of_runs(runs, tmp_path) == {
        "d1.r1": [RunJob("11", 1), RunJob("12", 0)],
        "d1.r2": [],
        "d2.r1": [RunJob("21", 0)],
    }


@pytest.mark.parametrize(
    ("stated", "devices", "source"),
    [
        pytest.param({}, 2, MEASURED_WAITS, id="measured"),
        pytest.param({1: 2.0, 2: 2.0}, 1, STATED_WAITS, id="stated by the site file"),
    ],
)
def test_a_deadline_counts_the_measured_waits_unless_the_site_file_states_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: dict[int, float], devices: int, source: str
) -> None:
    # runs of 90 seconds; jobs with 1 device waited for an hour, those with 2 for three minutes
    waits = {"1": 3600, "2": 180}
    lines = []
    for run in ("d1.r1", "d1.r2", "d2.r1", "d2.r2"):
        count, job = run[1], f"{run[1]}{run[-1]}"
        origin = {"slurm_job_id": job}
        write_run(tmp_path / "runs", run, rate=1000.0 * int(count) + int(run[-1]), origin=origin)
        lines.append(f"{job}|gpu|1|n1|1000|1000|{1000 + waits[count]}|")
    sacct(tmp_path, monkeypatch, "cat <<END\n" + "\n".join(lines) + "\nEND")
    spec = experiment(repeats=2, decision={"deadline_minutes": 20})
    compute(AnalysisSpec("study", spec, stated), tmp_path / "runs", tmp_path, in_slurm=True)

    decision = read_json(tmp_path / "decision.json")
    assert decision["devices"] == devices
    assert decision["numbers"]["queue_minutes"] == {1: 2.0, 2: 3.0}[devices]
    assert f"in the queue, {source}" in decision["alternatives"][0]
    assert any("no promise" in caution for caution in decision["cautions"]) == (source == MEASURED_WAITS)


CHOOSING = {
    "model": "linear",
    "dataset": "digits",
    "global_batch_size": 256,
    "epochs": 10,
    "devices": {"up_to": 4},
    "partitions": "all",
    "decision": {"by": "soonest"},
}
TWO_QUEUES = """\
accelerator: cuda
devices_per_node: 4
cpus_per_node: 64
slurm: {account: a}
partitions: {short: {partition: gpu}, long: {partition: big}}
default_partition: short
"""


@pytest.mark.parametrize("in_slurm", [True, False])
def test_rounds_of_several_partitions_count_the_measured_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_slurm: bool
) -> None:
    (tmp_path / "site.yaml").write_text(TWO_QUEUES)
    study = load_study({"experiments": {"e": CHOOSING}}, (), tmp_path / "site.yaml")
    # equal GPUs, whose runs take 90 seconds; jobs of one partition waited for ten minutes
    waits = {"short": 1, "long": 600}
    lines = []
    for name, wait in waits.items():
        for repeat in (1, 2):
            run, job = f"d1.r{repeat}", f"{wait}{repeat}"
            place = tmp_path / f"e@{name}" / "runs"
            write_run(place, run, rate=1000.0 + repeat, origin={"slurm_job_id": job})
            lines.append(f"{job}|gpu|1|n1|1000|1000|{1000 + wait}|")
    sacct(tmp_path, monkeypatch, "cat <<END\n" + "\n".join(lines) + "\nEND")
    definitions = {name: planned.rounds_definition for name, planned in study.experiments.items()}

    wins = {}
    for name, text in definitions.items():
        sisters = {other: definitions[other] for other in definitions if other != name}
        judged = judge_round(text, 1, tmp_path / name, (), sisters, in_slurm=in_slurm)
        wins[name] = judged.wins, judged.requests_more

    if in_slurm:
        assert wins == {"e@short": (1.0, True), "e@long": (0.0, False)}
    else:
        # equal but for the waits: the leader by the draws stays
        assert wins["e@long"] == (1.0, True)


def test_a_device_count_without_a_job_is_expected_to_wait_as_the_next_larger_one() -> None:
    table = pd.DataFrame({"devices": [2, 2, 8], "wait_seconds": [60.0, 120.0, 600.0]})
    study = AnalysisSpec("study", experiment(repeats=2))

    assert with_measured_waits(study, table).queue_minutes == {2: 1.5, 8: 10.0}
    expected = with_measured_waits(study, table, [1, 2, 4, 8, 16]).queue_minutes
    assert expected == {1: 1.5, 2: 1.5, 4: 10.0, 8: 10.0, 16: 10.0}


# --- jobstats -------------------------------------------------------------------------------------------


# the summary that docs/setup/summaries.md of jobstats shows, with a second node
SUMMARY: dict[str, Any] = {
    "gpus": 3,
    "nodes": {
        "della-k1g1": {
            "cpus": 12,
            "gpu_total_memory": {"1": 85899345920},
            "gpu_used_memory": {"1": 83314868224},
            "gpu_utilization": {"1": 98.6},
            "total_time": 57620.8,
        },
        "della-k1g2": {"gpu_used_memory": {"0": 1024, "3": 2048}, "gpu_utilization": {"0": 50, "3": 31.4}},
    },
    "total_time": 50944,
}


def packed(value: Any) -> str:
    return "JS1:" + base64.b64encode(gzip.compress(json.dumps(value).encode())).decode()


def broken(**gpu: Any) -> str:
    return packed({"nodes": {"n1": gpu}})


@pytest.mark.parametrize(
    ("comment", "reason"),
    [
        pytest.param("", "no AdminComment", id="none"),
        pytest.param("checked by an admin", "does not begin with JS1:", id="another comment"),
        pytest.param("JS2:abc", "does not begin with JS1:", id="another version"),
        pytest.param(packed(SUMMARY).lower(), "lower case", id="written by an old sacctmgr"),
        pytest.param("JS1:Short", "too short", id="a short job"),
        pytest.param("JS1:None", "no data", id="no data"),
        pytest.param("JS1:n o t!", "damaged", id="no base64"),
        pytest.param("JS1:" + base64.b64encode(b"plain").decode(), "damaged", id="no gzip"),
        pytest.param(packed(SUMMARY)[:-40], "damaged", id="cut off"),
        pytest.param(
            "JS1:" + base64.b64encode(gzip.compress(b" " * (4 * MOST_BYTES))).decode(), "longer", id="a bomb"
        ),
        pytest.param(
            "JS1:" + base64.b64encode(gzip.compress(b"[" * 100_000)).decode(), "damaged", id="nested deeply"
        ),
        pytest.param(packed([1]), "no nodes", id="no object"),
        pytest.param(packed({"nodes": {}}), "no GPU", id="no node"),
        pytest.param(broken(cpus=3), "no GPU", id="no GPU"),
        pytest.param(broken(gpu_utilization=98.0), "no gpu_utilization by GPU", id="not by GPU"),
        pytest.param(broken(gpu_utilization={"0": "high"}), "high", id="no number"),
        pytest.param(broken(gpu_utilization={"0": 250}), "250", id="an impossible number"),
        pytest.param(broken(gpu_utilization={"0": math.nan}), "nan", id="not a number"),
    ],
)
def test_without_a_sound_summary_the_reason_is_stated(comment: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        job_figures(read_summary(comment))


RUNS_WITH_JOBS = pd.DataFrame(
    {
        "run": ["d1.r1", "d2.r1", "d4.r1"],
        "series": "all runs",
        "devices": [1, 2, 4],
        "outcome": ["completed", "completed", "failed"],
        "slurm_job_id": ["11", "12", None],
    }
)


def test_each_job_with_a_result_has_its_figures_or_a_reason() -> None:
    records = [
        JobRecord("11", "gpu", 1, 0, 0, 0, packed(SUMMARY)),
        JobRecord("11", "gpu", 1, 9, 9, 9),  # requeued: the summary of the earlier start stays
        JobRecord("12", "gpu", 1, 0, 0, 0),
    ]
    first, second = jobstats_table(RUNS_WITH_JOBS, Accounting(records)).to_dict("records")

    assert (first["run"], first["gpus"], first["gpu_memory_bytes"]) == ("d1.r1", 3, 83314868224)
    assert first["gpu_utilization"] == pytest.approx((0.986 + 0.5 + 0.314) / 3)
    assert first["lowest_gpu_utilization"] == pytest.approx(0.314)
    assert second["run"] == "d2.r1"
    assert pd.isna(second["gpus"])
    assert "no AdminComment" in second["note"]
    assert set(jobstats_table(RUNS_WITH_JOBS, Accounting(reason="not stated"))["note"]) == {"not stated"}


def test_there_are_no_rows_without_slurm() -> None:
    assert jobstats_table(RUNS_WITH_JOBS, None).empty
    assert wait_rows(queue_waits_table(RUNS, JOBS, None)) == []
