"""What the ranks of the hello job found, held against what was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import preflight

from scalewise.execution.preflight_job import PreflightReport, RankPreflight, check_report, file_sizes
from scalewise.plan.jobs.preflight import Preflight

DATASET = "resources/datasets/digits/dataset.safetensors"


def planned(shape: str = "2x2") -> Preflight:
    devices: dict[str, Any] = {"accelerator": "cuda", "cpus_per_device": 4, "cpus_per_node": 8}
    return preflight(shape=shape, launcher="srun", datasets=[DATASET], **devices)


def reported(rank: int, **found: Any) -> RankPreflight:
    """Of a rank of two nodes with two devices each, where all is as planned but for what is given."""
    as_planned: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank % 2,
        "host": f"n{rank // 2 + 1}",
        "device": f"cuda:{rank % 2}",
        "visible_devices": "0,1",
        "cpus": f"{rank % 2 * 4}-{rank % 2 * 4 + 3}",
        "threads": 4,
        "python": "/env/bin/python 3.11.7",
        "torch": "2.15.0",
        "total": 10.0,
        "datasets": {DATASET: 1234567},
    }
    return RankPreflight(**as_planned | found)


def judged(*odd: RankPreflight, shape: str = "2x2", here: int | None = 1234567) -> dict[str, list[str]]:
    """The lines by their state, where some ranks have found something else."""
    ranks = {rank: reported(rank) for rank in range(4)} | {found.rank: found for found in odd}
    lines: dict[str, list[str]] = {"ok": [], "bad": []}
    for line in check_report(PreflightReport(ranks=list(ranks.values())), planned(shape), {DATASET: here}):
        lines[line.state].append(str(line))
    return lines


def test_ranks_that_found_all_as_planned_are_ok_in_every_line() -> None:
    assert judged() == {
        "bad": [],
        "ok": [
            "ok      rank 0 on n1: local rank 0, cuda:0 of CUDA_VISIBLE_DEVICES=0,1, CPUs 0-3, 4 threads",
            "ok      rank 1 on n1: local rank 1, cuda:1 of CUDA_VISIBLE_DEVICES=0,1, CPUs 4-7, 4 threads",
            "ok      rank 2 on n2: local rank 0, cuda:0 of CUDA_VISIBLE_DEVICES=0,1, CPUs 0-3, 4 threads",
            "ok      rank 3 on n2: local rank 1, cuda:1 of CUDA_VISIBLE_DEVICES=0,1, CPUs 4-7, 4 threads",
            "ok      2 ranks on each of n1, n2",
            "ok      all-reduce over 4 ranks",
            "ok      every rank runs /env/bin/python 3.11.7 with torch 2.15.0",
            f"ok      {DATASET}: 1,234,567 bytes on every node",
        ],
    }


def test_a_rank_on_a_cpu_names_no_gpus() -> None:
    assert (
        "ok      rank 0 on n1: local rank 0, cpu, CPUs 0-3, 4 threads"
        in (judged(reported(0, device="cpu", visible_devices=""))["ok"])
    )


@pytest.mark.parametrize(
    ("odd", "shape", "found"),
    [
        pytest.param(
            [reported(2, host="n1", local_rank=2)],
            "2x2",
            "planned were 2x2 ranks, found n1: local ranks [0, 1, 2]; n2: local ranks [1]",
            id="three on one node and one on the other",
        ),
        pytest.param(
            [reported(2, host="n1", local_rank=2), reported(3, host="n1", local_rank=3)],
            "2x2",
            "planned were 2x2 ranks, found n1: local ranks [0, 1, 2, 3]",
            id="all on one node",
        ),
        pytest.param(
            [reported(3, local_rank=0)],
            "2x2",
            "planned were 2x2 ranks, found n1: local ranks [0, 1]; n2: local ranks [0, 0]",
            id="two of one local rank",
        ),
        pytest.param(
            [],
            "4x1",
            "planned were 4x1 ranks, found n1: local ranks [0, 1]; n2: local ranks [0, 1]",
            id="fewer nodes than planned",
        ),
    ],
)
def test_ranks_at_wrong_places_are_shown(odd: list[RankPreflight], shape: str, found: str) -> None:
    assert (
        f"NOT OK  {found}. Look for options in the site's extra and srun_extra that place tasks."
        in (judged(*odd, shape=shape)["bad"])
    )


def test_ranks_that_are_missing_are_shown() -> None:
    bad = judged(shape="2x4")["bad"]

    assert bad[0].startswith(
        "NOT OK  planned were 2x4 ranks, found n1: local ranks [0, 1]; n2: local ranks [0, 1]"
    )


def test_a_wrong_sum_names_the_ranks_that_got_it() -> None:
    assert judged(reported(1, total=3.0), reported(3, total=9.0))["bad"] == [
        "NOT OK  the all-reduce gave ranks [1, 3] another sum than 10. Set network_interface in the site "
        "file, and ask the site which one is right."
    ]


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ({"python": "/usr/bin/python3 3.9.2"}, "/usr/bin/python3 3.9.2 with torch 2.15.0"),
        ({"torch": "2.14.0"}, "/env/bin/python 3.11.7 with torch 2.14.0"),
    ],
    ids=["python", "torch"],
)
def test_different_programs_are_shown(other: dict[str, str], shown: str) -> None:
    (line,) = judged(reported(2, **other))["bad"]

    assert line.startswith("NOT OK  ranks run different programs: ")
    assert shown in line
    assert "/env/bin/python 3.11.7 with torch 2.15.0" in line
    assert line.endswith("Set python in the site file, or correct prelude.")


@pytest.mark.parametrize("seen", [None, 1234], ids=["missing", "another size"])
def test_a_node_that_sees_another_dataset_is_named(seen: int | None) -> None:
    odd = [reported(rank, datasets={DATASET: seen}) for rank in (2, 3)]

    assert judged(*odd)["bad"] == [
        f"NOT OK  {DATASET} is not the same seen from n2. Work in a folder that all nodes share, and bind it "
        "if there is a container."
    ]


def test_a_rank_that_did_not_look_counts_as_blind() -> None:
    assert "is not the same seen from n1" in judged(reported(0, datasets={}))["bad"][0]


def test_a_dataset_that_is_missing_where_the_job_began_is_said_once() -> None:
    assert judged(here=None)["bad"] == [f"NOT OK  {DATASET} is missing. Run snakemake once more."]


def test_sizes_are_those_of_the_files_that_can_be_seen(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_bytes(b"12345")

    assert file_sizes([str(there), str(absent)]) == {str(there): 5, str(absent): None}
