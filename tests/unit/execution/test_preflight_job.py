"""What the ranks of the hello job report, and what its hardware promises."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.small_runs import definition, site_of

import hello
from scalewise.execution.preflight_job import check_report, judge
from scalewise.site.preflight import Finding, Preflight

DATASET = "resources/datasets/digits/dataset.safetensors"
ALIKE = {"device": "an H200", "python": "/env/bin/python with torch 2.15.0", DATASET: "1,234,567 bytes"}
INSIDE = {"where": "inside a node", "devices": 2, "bytes": 26_000_000, "seconds": 0.0002}
INSIDE |= {"hardware": "18 NVLinks", "promised": 450e9}
ACROSS = INSIDE | {"where": "across nodes", "devices": 4, "seconds": 3.0, "hardware": "", "promised": 0}


def judged(odd: dict[str, str], seconds: float = 0.0002) -> list[Finding]:
    """The findings on two nodes with two devices each, where rank 3 has found something else."""
    ranks: list[dict[str, Any]] = [
        {"text": f"rank {rank} on n{rank // 2 + 1}", "host": f"n{rank // 2 + 1}", "same": ALIKE}
        for rank in range(4)
    ]
    ranks[3]["same"] = ALIKE | odd
    timed = [INSIDE | {"seconds": seconds}, ACROSS]
    return list(check_report({"ranks": ranks, "all_reduces": timed, "interface": "hsn0 on n1"}))


def test_ranks_that_found_all_as_planned_are_ok_in_every_line() -> None:
    lines = list(map(str, judged({})))

    assert all(line.startswith("ok ") for line in lines)
    found = "\n".join(lines)
    assert "rank 3 on n2" in found
    assert "all-reduce over 4 ranks" in found
    assert "across nodes, 4 devices: 26.0 MB in 3,000 ms, 0.0130 GB/s" in found
    # 2 x (1 - 1/2) x 26 MB / 0.2 ms = 130 GB/s
    assert "130 GB/s, 29 % of the 450 GB/s of 18 NVLinks" in found
    assert "network_interface hsn0 on n1" in found


def test_an_all_reduce_far_below_its_hardware_is_worth_a_look() -> None:
    (finding,) = [each for each in judged({}, seconds=0.002) if each.state == "?"]

    assert "13.0 GB/s, 3 % of the 450 GB/s of 18 NVLinks" in finding.text


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("device", "an A100", ["device is not the same", "an H200 on n1, n2; an A100 on n2", "gpu_type"]),
        ("python", "/usr/bin/python3 with torch 2.4.0", ["torch 2.4.0 on n2", "prelude"]),
        (DATASET, "7 bytes", [DATASET, "1,234,567 bytes on n1, n2; 7 bytes on n2", "all nodes share"]),
        (DATASET, "missing", [DATASET, "missing on n2"]),
    ],
)
def test_what_differs_between_ranks_is_not_ok(key: str, value: str, names: list[str]) -> None:
    (finding,) = [each for each in judged({key: value}) if each.state == "NOT OK"]
    assert [name for name in names if name not in str(finding)] == []


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        ({}, "there is no output"),
        ({"ranks": "loading\nTraceback (most recent):\nRuntimeError: no GPU\nbye\n"}, "RuntimeError: no GPU"),
        (
            {"ranks": "[rank3]: ValueError: first\n[rank0]: DistBackendError: peer\n"},
            "[rank3]: ValueError: first",
        ),
        ({"ranks": "srun: error: step creation\n\x1b[2J\n"}, "\\x1b[2J"),
        (
            {"slurm": "slurm_script: line 2: /gone/python: No such file\n"},
            "line 2: /gone/python: No such file",
        ),
    ],
)
def test_ranks_without_a_report_are_not_ok_with_their_last_words(
    logs: dict[str, str], said: str, tmp_path: Path
) -> None:
    for name, text in logs.items():
        (tmp_path / f"{name}.log").write_text(text)

    (finding,) = judge(tmp_path, Preflight(site_of(), definition(2), {}, []), "exit code 1")

    assert finding.state == "NOT OK"
    assert "over 1x2 ended without a report (exit code 1): " in finding.text
    assert said in finding.text


@pytest.mark.parametrize(
    ("links", "expected"), [(18, ("18 NVLinks", 450e9)), (0, ("PCIe 5 x16", pytest.approx(63e9, rel=0.01)))]
)
def test_the_link_inside_a_node_is_what_the_driver_reports(
    links: int, expected: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that reports so many NVLinks of 25 GB/s, and PCIe 5 with 16 lanes."""

    def state(_gpu: str, link: int) -> bool:
        if not links:
            raise NotImplementedError
        return link < links

    nvml = SimpleNamespace(
        NVMLError=NotImplementedError,
        NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON=90,
        NVML_NVLINK_MAX_LINKS=36,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=str,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetFieldValues=lambda *_: [SimpleNamespace(value=SimpleNamespace(uiVal=25_000))],
        nvmlDeviceGetMaxPcieLinkGeneration=lambda _gpu: 5,
        nvmlDeviceGetMaxPcieLinkWidth=lambda _gpu: 16,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="1"))
    assert hello.node_link(torch.device("cuda")) == expected
