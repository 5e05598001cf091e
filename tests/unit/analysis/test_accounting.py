"""What Slurm's accounting holds of the jobs: the waits, or why they are unknown."""

import math
from pathlib import Path

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.stand_ins import stand_ins
from tests.unit.analysis.planted import at

from scalewise.analysis.accounting import Accounting, parse_records, read_accounting
from scalewise.analysis.analysis_spec import MEASURED_WAITS, AnalysisSpec
from scalewise.analysis.queue_waits import median_waits
from scalewise.analysis.study import Part, analyze

RECORDED = """\
1|wl[1-4]|1795788427|1795788427|1795788428
2|wl1|1795788428|1795788428|1795788436
3|wl1|1795788428|1795788434|1795788436
4|wl1|1795788428|1795788437|1795788437
5|None assigned|1795788428|Unknown|None
6|wl1|1795788428|1795788432|1795788436
7|None assigned|1795788428|1795788428|1795788428
8|wl1|1795788428|1795788428|1795788436
8|wl1|1795788440|1795788461|1795788461
9|None assigned|1795788428|1795788428|Unknown
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


RUNS = pd.DataFrame(
    {"run": ["d1.r1", "d1.r2", "d2.r1"], "series": "all runs", "devices": [1, 1, 2], "slurm_job_id": None}
)
JOBS = {"d1.r1": {"2": 0}, "d1.r2": {"3": 0}, "d2.r1": {"8": 1}}


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
    accounting = read_accounting(["2", "3"])

    assert accounting.reason.startswith("not stated: `sacct")
    assert reason in accounting.reason
    assert median_waits(RUNS, JOBS, accounting) == {}


def test_waits_are_medians_by_device_count_of_the_jobs_that_have_started() -> None:
    # Slurm gave the id 8 to an earlier job, too
    accounting = Accounting(parse_records("8|n1|10|10|99999\n" + RECORDED))

    assert median_waits(RUNS, JOBS, accounting) == {1: 0.1, 2: 0.1}
    # of job 9, which still waits, and of an id without a record no wait is known
    others = {"d1.r1": {"2": 0}, "d1.r2": {"77": 0}, "d2.r1": {"9": 0}}
    assert median_waits(RUNS, others, accounting) == {1: 0.1}


@pytest.mark.parametrize(
    ("script", "devices", "minutes", "facts"),
    [
        ("echo '11|n1|1000|1000|4600\n21|n1|1000|1000|1180'", 2, 3.0, [MEASURED_WAITS]),
        ("echo 'accounting is disabled' >&2; exit 1", 1, None, ["no wait", "accounting is disabled"]),
    ],
    ids=["measured: an hour for 1 device, three minutes for 2", "unknown"],
)
def test_a_deadline_counts_measured_waits_and_names_unknown_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str,
    devices: int, minutes: float | None, facts: list[str],
) -> None:  # fmt: skip
    """Runs take 90 seconds, and have a deadline of 20 minutes."""
    sacct(tmp_path, monkeypatch, script)
    for run in ("d1.r1", "d1.r2", "d2.r1", "d2.r2"):
        rate, origin = 1000.0 * int(run[1]) + int(run[-1]), {"slurm_job_id": f"{run[1]}1"}
        write_run(tmp_path / "runs", run, rate=rate, origin=origin)
    spec = experiment(repeats=2, decision={"deadline_minutes": 20})
    part = Part("", AnalysisSpec("study", spec), tmp_path / "runs", in_slurm=True)
    analysis = analyze("study", [part], tmp_path)
    assert analysis.answer.devices == devices
    assert at(analysis, devices)["queue_minutes"] == pytest.approx(minutes or math.nan, nan_ok=True)
    told = [text for text, _ in analysis.answer.cautions if "in the queue" in text]
    assert [all(fact in text for fact in facts) for text in told] == [True]
