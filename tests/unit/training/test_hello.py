"""The program of the preflight's job: its ranks by hand, and the promises of the hardware."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from tests.machine import needs_two_cores
from tests.paths import SCRIPTS

import hello
from scalewise.execution.preflight_job import HelloReport

GPU = torch.device("cuda")


@needs_two_cores
def test_two_ranks_by_hand_report_their_places_and_an_all_reduce(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"12345")
    words = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", str(SCRIPTS / "hello.py")]
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "report.json", "--dataset=data"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=300,
    )

    report = HelloReport.model_validate_json((tmp_path / "report.json").read_text())

    assert [(rank.rank, rank.local_rank, rank.total) for rank in report.ranks] == [(0, 0, 3.0), (1, 1, 3.0)]
    assert {tuple(rank.datasets.items()) for rank in report.ranks} == {(("data", 5),)}
    (timed,) = report.all_reduces
    assert (timed.where, timed.devices, timed.bytes) == ("inside a node", 2, 25 * 2**20)
    assert timed.seconds > 0
    assert json.loads((tmp_path / "report.json").read_text())["interface"] == ""


def nvml(links: int) -> ModuleType:
    """A library of a driver that reports so many NVLinks of 25 GB/s, and PCIe 5 with 16 lanes."""

    class NVMLError(Exception):
        pass

    def state(_gpu: str, link: int) -> int:
        if not links:
            raise NVMLError
        return int(link < links)

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
        NVML_NVLINK_MAX_LINKS=36,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=str,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetFieldValues=lambda _gpu, _ids: [SimpleNamespace(value=SimpleNamespace(uiVal=25_000))],
        nvmlDeviceGetMaxPcieLinkGeneration=lambda _gpu: 5,
        nvmlDeviceGetMaxPcieLinkWidth=lambda _gpu: 16,
    )
    return module


@pytest.mark.parametrize(
    ("links", "expected"), [(18, ("18 NVLinks", 450e9)), (0, ("PCIe 5 x16", pytest.approx(63e9, rel=0.01)))]
)
def test_the_link_inside_a_node_is_what_the_driver_reports(
    links: int, expected: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(links))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="1"))

    assert hello.node_link(GPU) == expected
