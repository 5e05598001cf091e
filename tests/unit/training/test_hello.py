"""The program of the preflight's job: its ranks by hand, and the promises of the hardware."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import hello

GPU = torch.device("cuda")


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
