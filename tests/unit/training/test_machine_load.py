"""What other processes took of a machine while a run trained, from the kernel's own accounts."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from scalewise.ranks.monitoring.machine_load import CpuMeter, CpuUse, other_cpu_fraction

BURNS = "import time; begun = time.process_time()\nwhile time.process_time() - begun < 0.6: pass"


def test_the_share_of_others_is_what_the_ranks_of_a_machine_did_not_take() -> None:
    ranks = [CpuUse("a", rank=20, busy=50, total=80), CpuUse("a", rank=22, busy=50, total=80)]
    assert other_cpu_fraction(ranks) == pytest.approx(8 / 80)


def test_the_machine_that_was_busiest_with_others_counts() -> None:
    ranks = [CpuUse("a", rank=20, busy=20, total=40), CpuUse("b", rank=10, busy=30, total=40)]
    assert other_cpu_fraction(ranks) == pytest.approx(0.5)


def test_a_tick_too_much_is_nothing_and_no_time_at_all_is_unknown() -> None:
    assert other_cpu_fraction([CpuUse("a", rank=20.01, busy=20, total=40)]) == 0
    assert other_cpu_fraction([CpuUse("a", rank=0, busy=0, total=0)]) is None
    assert other_cpu_fraction([]) is None


def test_work_of_a_child_is_the_ranks_own_and_that_of_others_is_not() -> None:
    meter, cpus = CpuMeter("a"), psutil.cpu_count() or 1
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", BURNS], check=True)
    used, seconds = meter.used(), time.monotonic() - began
    assert used.rank >= 0.5
    assert used.busy >= 0.5
    # ticks, and the time between two readings
    assert used.total == pytest.approx(seconds * cpus, rel=0.2, abs=0.5)
