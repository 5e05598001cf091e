"""What jobstats measured of the jobs: read from AdminComment, and a reason where it is not stated."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any

import pandas as pd
import pytest

from scalewise.analysis.accounting import Accounting, JobRecord
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


def test_each_job_with_a_result_has_its_figures_or_a_reason() -> None:
    records = [JobRecord("11", "gpu", 1, 0, 0, 0, packed(SUMMARY)), JobRecord("12", "gpu", 1, 0, 0, 0)]
    table = jobstats_table(RUNS, Accounting(records))

    assert list(table["run"]) == ["d1.r1", "d2.r1"]
    assert table["gpus"].iloc[0] == 3
    assert pd.isna(table["gpus"].iloc[1])
    assert "no AdminComment" in table["note"].iloc[1]


def test_a_requeued_job_keeps_the_summary_of_its_earlier_start() -> None:
    records = [JobRecord("11", "gpu", 1, 0, 0, 0, packed(SUMMARY)), JobRecord("11", "gpu", 1, 9, 9, 9)]

    assert jobstats_table(RUNS, Accounting(records))["gpus"].iloc[0] == 3


def test_accounting_that_does_not_answer_is_the_reason() -> None:
    assert set(jobstats_table(RUNS, Accounting(reason="not stated: no sacct"))["note"]) == {
        "not stated: no sacct"
    }


def test_there_are_no_rows_without_slurm() -> None:
    assert jobstats_table(RUNS, None).empty
