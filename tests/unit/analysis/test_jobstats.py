"""What jobstats measured of the jobs: read from AdminComment, and a reason where it is not stated."""

from __future__ import annotations

import base64
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from scalewise.analysis.jobstats import MOST_BYTES, job_figures, jobstats_table, read_summary

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


def test_the_figures_of_a_summary() -> None:
    figures = job_figures(read_summary(packed(SUMMARY)))

    assert figures["gpus"] == 3
    assert figures["gpu_utilization"] == pytest.approx((0.986 + 0.5 + 0.314) / 3)
    assert figures["lowest_gpu_utilization"] == pytest.approx(0.314)
    assert figures["gpu_memory_bytes"] == 83314868224


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


RUNS = pd.DataFrame(
    {
        "run": ["d1.r1", "d2.r1", "d4.r1"],
        "series": "all runs",
        "devices": [1, 2, 4],
        "outcome": ["completed", "completed", "failed"],
        "slurm_job_id": ["11", "12", None],
    }
)


def answer(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a stand-in for sacct first on PATH."""
    (folder / "sacct").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_each_job_with_a_result_has_its_figures_or_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(
        tmp_path,
        monkeypatch,
        f"""echo "$*" > {tmp_path}/asked; printf '11|%s\\n12|\\n' '{packed(SUMMARY)}'""",
    )
    table = jobstats_table(RUNS, in_slurm=True)

    assert (tmp_path / "asked").read_text().split()[-1] == "11,12"
    assert list(table["run"]) == ["d1.r1", "d2.r1"]
    assert table["gpus"].iloc[0] == 3
    assert pd.isna(table["gpus"].iloc[1])
    assert "no AdminComment" in table["note"].iloc[1]


def test_sacct_that_fails_or_is_missing_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(tmp_path, monkeypatch, "echo 'slurm_persist_conn_open failed' >&2; exit 1")
    assert "slurm_persist_conn_open" in jobstats_table(RUNS, in_slurm=True)["note"].iloc[0]
    monkeypatch.setattr("scalewise.analysis.jobstats.SACCT_SECONDS", 0.2)
    answer(tmp_path, monkeypatch, "exec sleep 60")
    assert "did not answer" in jobstats_table(RUNS, in_slurm=True)["note"].iloc[0]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "cannot be run" in jobstats_table(RUNS, in_slurm=True)["note"].iloc[0]


def test_nothing_is_asked_without_slurm() -> None:
    assert jobstats_table(RUNS, in_slurm=False).empty
