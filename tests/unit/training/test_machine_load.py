"""How much of a machine others use while a run trains, and the clock of a CPU process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import psutil
import pytest
import torch

from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for
from scalewise.ranks.monitoring.machine_load import CpuMeter, CpuUse, other_cpu_fraction

BURN = "import time\nwhile time.process_time() < 0.4: sum(range(100_000))"
"""A process that uses so many CPU seconds."""


@pytest.mark.parametrize(
    ("ranks", "share"),
    [
        pytest.param([("a", 20, 50, 80), ("a", 22, 50, 80)], 8 / 80, id="what the ranks did not take"),
        pytest.param([("a", 20, 20, 40), ("b", 10, 30, 40)], 0.5, id="of the machine that was busiest"),
        pytest.param([("a", 20.01, 20, 40)], 0, id="a tick too much"),
        pytest.param([("a", 0, 0, 0)], None, id="no time at all"),
        pytest.param([], None, id="no rank"),
    ],
)
def test_the_share_of_others_is_what_the_ranks_of_a_machine_did_not_take(
    ranks: list[tuple[str, float, float, float]], share: float | None
) -> None:
    assert other_cpu_fraction([CpuUse(*each) for each in ranks]) == pytest.approx(share)


def test_work_of_a_child_is_the_ranks_own_and_that_of_others_is_not() -> None:
    meter, cpus = CpuMeter("a"), psutil.cpu_count() or 1
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    used, seconds = meter.used(), time.monotonic() - began
    assert used.rank >= 0.3
    assert used.busy >= 0.3
    # ticks, and the time between two readings
    assert used.total == pytest.approx(seconds * cpus, rel=0.2, abs=0.5)


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_a_gpus_events_agree_with_a_synchronised_clock_and_do_not_stop_the_host(
    record_property: Callable[[str, object], None],
) -> None:
    timer: DeviceTimer[Any] = timer_for(torch.device("cuda", 0))
    matrix = torch.ones(4096, 4096, device="cuda")
    pairs: list[tuple[float, float]] = []
    for _ in range(8):
        timer.synchronize()
        began = time.perf_counter()
        marks = [timer.record()]
        for _ in range(40):
            matrix @ matrix
            marks.append(timer.record())
        queued = time.perf_counter() - began
        timer.synchronize()
        by_host = time.perf_counter() - began
        pairs.append((timer.seconds(marks[0], marks[-1]), by_host))
    # libraries load in the first
    ratio = median(by_device / by_host for by_device, by_host in pairs[1:])
    record_property("figure", f"events over a synchronised clock: {ratio:.4f}, n = {len(pairs) - 1}")
    record_property("figure", f"queued in {1e3 * queued:.1f} ms, done after {1e3 * by_host:.1f} ms")
    assert ratio == pytest.approx(1, abs=0.02)
    assert all(by_device <= by_host * 1.001 for by_device, by_host in pairs[1:])
    assert queued < by_host / 2
