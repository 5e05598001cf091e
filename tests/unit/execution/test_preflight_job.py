"""What the ranks of the hello job found, held against what was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import preflight

from scalewise.config.shape import Shape
from scalewise.execution.preflight_job import (
    PreflightReport,
    RankPreflight,
    TimedAllReduce,
    check_report,
    file_sizes,
)
from scalewise.site.preflight import Preflight

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
        "device": "an H200",
        "visible_devices": "0,1",
        "cpus": f"{rank % 2 * 4}-{rank % 2 * 4 + 3}",
        "threads": 4,
        "python": "/env/bin/python 3.11.7",
        "torch": "2.15.0",
        "total": 10.0,
        "all_reduces": [
            TimedAllReduce(shape=Shape(1, 2), bytes=26_000_000, seconds=0.0002),
            TimedAllReduce(shape=Shape(2, 2), bytes=26_000_000, seconds=3.0),
        ],
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
            "ok      rank 0 on n1: local rank 0, an H200 of CUDA_VISIBLE_DEVICES=0,1, CPUs 0-3, 4 threads",
            "ok      rank 1 on n1: local rank 1, an H200 of CUDA_VISIBLE_DEVICES=0,1, CPUs 4-7, 4 threads",
            "ok      rank 2 on n2: local rank 0, an H200 of CUDA_VISIBLE_DEVICES=0,1, CPUs 0-3, 4 threads",
            "ok      rank 3 on n2: local rank 1, an H200 of CUDA_VISIBLE_DEVICES=0,1, CPUs 4-7, 4 threads",
            "ok      2 ranks on each of n1, n2",
            "ok      all-reduce over 4 ranks",
            # a ring of n devices sends 2 (n - 1) / n of the bytes over each link
            "ok      all-reduce of 26.0 MB over 2 devices in a node: 0.200 ms, 130 GB/s",
            "ok      all-reduce of 26.0 MB over 4 devices on 2 nodes: 3,000 ms, 0.0130 GB/s",
            "ok      every rank runs /env/bin/python 3.11.7 with torch 2.15.0",
            f"ok      {DATASET}: 1,234,567 bytes on every node",
        ],
    }


def test_a_rank_on_a_cpu_names_no_gpus() -> None:
    lines = judged(*(reported(rank, device="CPU process", visible_devices="") for rank in range(4)))["ok"]
    assert "ok      rank 0 on n1: local rank 0, CPU process, CPUs 0-3, 4 threads" in lines


PLACES = (
    "planned were {} ranks, found {}. Look for options in the site's extra and srun_extra that place tasks."
)
PROGRAMS = "ranks run different programs: "
BLIND = f"{DATASET} is not the same seen from {{}}. Work in a folder that all nodes share, and bind it "


@pytest.mark.parametrize(
    ("odd", "shape", "here", "said"),
    [
        pytest.param(
            [reported(2, host="n1", local_rank=2)],
            *("2x2", 1234567),
            PLACES.format("2x2", "n1: local ranks [0, 1, 2]; n2: local ranks [1]"),
            id="three on one node and one on the other",
        ),
        pytest.param(
            [reported(2, host="n1", local_rank=2), reported(3, host="n1", local_rank=3)],
            *("2x2", 1234567),
            PLACES.format("2x2", "n1: local ranks [0, 1, 2, 3]"),
            id="all on one node",
        ),
        pytest.param(
            [reported(3, local_rank=0)],
            *("2x2", 1234567),
            PLACES.format("2x2", "n1: local ranks [0, 1]; n2: local ranks [0, 0]"),
            id="two of one local rank",
        ),
        *(
            pytest.param(
                [],
                *(shape, 1234567),
                PLACES.format(shape, "n1: local ranks [0, 1]; n2: local ranks [0, 1]"),
                id=f"fewer than {shape}",
            )
            for shape in ("4x1", "2x4")
        ),
        pytest.param(
            [reported(1, total=3.0), reported(3, total=9.0)],
            *("2x2", 1234567),
            "the all-reduce gave ranks [1, 3] another sum than 10. Set network_interface in the site "
            "file, and ask the site which one is right.",
            id="a wrong sum",
        ),
        pytest.param(
            [reported(1, device="a T4"), reported(3, device="a T4")],
            *("2x2", 1234567),
            "ranks have different devices, whose runs cannot be compared: a T4; an H200. Describe each "
            "kind as one of `partitions` in the site file",
            id="GPUs of two models",
        ),
        pytest.param([reported(2, python="/usr/bin/python3 3.9.2")], "2x2", 1234567, PROGRAMS, id="a python"),
        pytest.param([reported(2, torch="2.14.0")], "2x2", 1234567, PROGRAMS, id="a torch"),
        *(
            pytest.param(
                [reported(rank, datasets={DATASET: seen}) for rank in (2, 3)],
                *("2x2", 1234567),
                BLIND.format("n2"),
                id=f"a dataset of {seen} bytes",
            )
            for seen in (None, 1234)
        ),
        pytest.param([reported(0, datasets={})], "2x2", 1234567, BLIND.format("n1"), id="did not look"),
        pytest.param([], "2x2", None, f"{DATASET} is missing. Run snakemake once more.", id="no dataset"),
    ],
)
def test_what_is_not_as_planned_is_shown_with_its_ranks_and_a_fix(
    odd: list[RankPreflight], shape: str, here: int | None, said: str
) -> None:
    line, *others = judged(*odd, shape=shape, here=here)["bad"]
    assert line.startswith(f"NOT OK  {said}")
    assert not others or shape == "2x4"
    if said == PROGRAMS:
        assert "/env/bin/python 3.11.7 with torch 2.15.0" in line
        assert f"{odd[0].python} with torch {odd[0].torch}" in line


def test_sizes_are_those_of_the_files_that_can_be_seen(tmp_path: Path) -> None:
    there, absent = tmp_path / "there", tmp_path / "absent"
    there.write_bytes(b"12345")

    assert file_sizes([str(there), str(absent)]) == {str(there): 5, str(absent): None}
