"""What the ranks of the hello job report, compared with what was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import preflight

from scalewise.execution.preflight_job import Rank, check_report, judge
from scalewise.site.preflight import Finding, Preflight

DATASET = "resources/datasets/digits/dataset.safetensors"


def planned(shape: str = "2x2") -> Preflight:
    return preflight(shape, 4, datasets=[DATASET])


def reported(rank: int, **found: Any) -> dict[str, Any]:
    """A rank of two nodes with two devices each, where all is as planned but for what is given."""
    as_planned: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank % 2,
        "host": f"n{rank // 2 + 1}",
        "device": "an H200",
        "gpu": f"GPU-{rank}",
        "cpus": 4,
        "python": "/env/bin/python",
        "torch": "2.15.0",
        "total": 10.0,
        "datasets": {DATASET: 1234567},
    }
    return as_planned | found


INSIDE = {"where": "inside a node", "devices": 2, "bytes": 26_000_000, "seconds": 0.0002}
INSIDE |= {"hardware": "18 NVLinks", "promised": 450e9}
ACROSS = INSIDE | {"where": "across nodes", "devices": 4, "seconds": 3.0, "hardware": "", "promised": 0}


def judged(*odd: Rank, inside: Rank = INSIDE) -> list[Finding]:
    """The findings, where some ranks have found something else."""
    ranks = {rank: reported(rank) for rank in range(4)} | {found["rank"]: found for found in odd}
    report = {"ranks": [*ranks.values()], "all_reduces": [inside, ACROSS], "interface": "hsn0 on n1"}
    return list(check_report(report, planned()))


def test_ranks_that_found_all_as_planned_are_ok_in_every_line() -> None:
    lines = list(map(str, judged()))

    assert all(line.startswith("ok ") for line in lines)
    found = "\n".join(lines)
    assert "rank 3 on n2: an H200 GPU-3, 4 CPUs" in found
    assert "2 ranks on each of n1, n2" in found
    assert "all-reduce over 4 ranks" in found
    assert "across nodes, 4 devices: 26.0 MB in 3,000 ms, 0.0130 GB/s" in found
    # 2 x (1 - 1/2) x 26 MB / 0.2 ms = 130 GB/s
    assert "130 GB/s, 29 % of the 450 GB/s of 18 NVLinks" in found
    assert "network_interface hsn0 on n1" in found


def test_an_all_reduce_far_below_its_hardware_is_worth_a_look() -> None:
    slow = INSIDE | {"seconds": 0.002}

    (finding,) = [each for each in judged(inside=slow) if each.state == "unknown"]

    assert "13.0 GB/s, 3 % of the 450 GB/s of 18 NVLinks" in finding.text


@pytest.mark.parametrize(
    ("odd", "names"),
    [
        pytest.param([reported(1, device="an A100")], ["different devices", "an A100; an H200"], id="GPU"),
        pytest.param([reported(1, gpu="GPU-0")], ["2 ranks on n1 share one GPU (GPU-0)"], id="shared"),
        pytest.param([reported(2, cpus=1)], ["rank 2 on n2 has 1 of its 4 CPUs"], id="CPUs"),
        pytest.param([reported(2, total=9.0)], ["ranks [2] another sum than 10"], id="sum"),
        pytest.param(
            [reported(2, host="n1")], ["planned were 2x2 ranks", "n1: local ranks [0, 0, 1]"], id="place"
        ),
        pytest.param([reported(3, torch="2.4.0")], ["different programs", "torch 2.4.0"], id="torch"),
        pytest.param(
            [reported(3, datasets={DATASET: 7})],
            [DATASET, "1,234,567 bytes on n1, 7 bytes"],
            id="old file",
        ),
        pytest.param([reported(3, datasets={DATASET: None})], [DATASET, "missing on n2"], id="no file"),
    ],
)
def test_what_differs_from_the_plan_is_not_ok(odd: list[Rank], names: list[str]) -> None:
    (finding,) = [each for each in judged(*odd) if each.state == "bad"]
    for name in names:
        assert name in str(finding)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (None, "there is no output"),
        ("loading\nTraceback (most recent call last):\nRuntimeError: no GPU\nbye\n", "RuntimeError: no GPU"),
        ("[rank3]: ValueError: first\n[rank0]: DistBackendError: peer\n", "[rank3]: ValueError: first"),
        ("srun: error: step creation\n\x1b[2J\n", "\\x1b[2J"),
    ],
)
def test_ranks_without_a_report_are_not_ok_with_their_last_words(
    log: str | None, said: str, tmp_path: Path
) -> None:
    if log is not None:
        (tmp_path / "hello.log").write_text(log)

    (finding,) = judge(tmp_path / "none.json", tmp_path / "hello.log", planned(), "exit code 1")

    assert finding.state == "bad"
    assert f"(exit code 1): {said}" in finding.text


def test_a_job_that_started_no_ranks_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "hello.slurm.log").write_text(
        "slurm_script: line 2: /gone/python: No such file or directory\n"
    )

    (finding,) = judge(tmp_path / "none.json", tmp_path / "hello.log", planned(), "job 41 FAILED")

    assert "(job 41 FAILED): slurm_script: line 2: /gone/python: No such file" in finding.text
