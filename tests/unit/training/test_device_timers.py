"""A device's own clock agrees with another clock of its host."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch

from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for

PRODUCTS = 40


def seconds_by_both(device: torch.device, timer: DeviceTimer[Any]) -> tuple[float, float]:
    """Seconds of some products of matrices, by the device's clock and by the host's."""
    side = 4096 if device.type == "cuda" else 256
    matrix = torch.ones(side, side, device=device)
    timer.synchronize()
    began = time.perf_counter()
    start = timer.record()
    for _ in range(PRODUCTS):
        matrix @ matrix
    end = timer.record()
    timer.synchronize()
    return timer.seconds(start, end), time.perf_counter() - began


def compare(device: torch.device, record_property: Callable[[str, object], None]) -> None:
    """Holds the clocks against each other, after products in which libraries load."""
    timer: DeviceTimer[Any] = timer_for(device)
    pairs = [seconds_by_both(device, timer) for _ in range(8)][1:]
    ratio = median(by_device / by_host for by_device, by_host in pairs)
    record_property("figure", f"events over a synchronised clock: {ratio:.4f}, n = {len(pairs)}")
    assert ratio == pytest.approx(1, abs=0.02)
    assert all(by_device <= by_host * 1.001 for by_device, by_host in pairs)


def test_a_cpus_marks_are_seconds_of_the_systems_monotonic_clock() -> None:
    timer: DeviceTimer[Any] = timer_for(torch.device("cpu"))
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    start = timer.record()
    after = time.clock_gettime(time.CLOCK_MONOTONIC)
    time.sleep(0.05)
    until = time.clock_gettime(time.CLOCK_MONOTONIC)
    end = timer.record()
    ended = time.clock_gettime(time.CLOCK_MONOTONIC)
    # the marks lie between readings of that clock: whatever else the machine does, none is a moment off
    assert until - after <= timer.seconds(start, end) <= ended - before


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_a_gpus_events_agree_with_a_synchronised_clock(
    record_property: Callable[[str, object], None],
) -> None:
    compare(torch.device("cuda", 0), record_property)


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_marks_of_a_gpu_do_not_stop_the_host(record_property: Callable[[str, object], None]) -> None:
    """The host is ahead of the GPU while steps are marked, and waits for it where it synchronises."""
    timer = timer_for(torch.device("cuda", 0))
    matrix = torch.ones(4096, 4096, device="cuda")
    matrix @ matrix
    timer.synchronize()
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        timer.record()
        matrix @ matrix
    queued = time.perf_counter() - began
    timer.synchronize()
    done = time.perf_counter() - began
    record_property("figure", f"queued in {1e3 * queued:.1f} ms, done after {1e3 * done:.1f} ms")
    assert queued < done / 2
