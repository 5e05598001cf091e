"""How much of a machine others use while a run trains."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

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
