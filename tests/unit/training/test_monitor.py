"""How busy devices and machines were, in every run and at no cost to the training."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import torch
from tests.waiting import LIMIT_SECONDS, wait_until

from scalewise.ranks.monitoring import monitor as monitoring
from scalewise.ranks.monitoring.machine_load import CpuMeter, CpuUse, other_cpu_fraction
from scalewise.ranks.monitoring.monitor import (
    EVALUATE,
    SHORTEST_SECONDS,
    TRAIN,
    Monitor,
    MonitorReport,
    across_ranks,
)
from scalewise.ranks.monitoring.sensors import Reading
from scalewise.records import UTILIZATION, UtilizationRecord, write_rows

CPU = torch.device("cpu")
IDLE = itertools.repeat(Reading(0.5, 1))


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_short_run_leaves_one_sample() -> None:
    with Monitor(CPU, 1, "node-a", 3) as monitor:
        report = monitor.stop()
    (sample,) = report.samples
    assert (sample.host, sample.rank, sample.device, sample.phase) == ("node-a", 3, "CPU process", "start")
    assert (report.energy_joules, report.throttled, report.note) == (None, None, "")


def test_samples_come_while_the_training_computes_and_end_with_it() -> None:
    monitor = Monitor(CPU, 1, "node-a", 0, interval_seconds=0.01)
    monitor.start()
    monitor.phase = TRAIN

    def sampled() -> bool:
        burn(0.01)
        return len(monitor._samples) > 3

    wait_until(sampled, "fewer than four samples have been taken", longest_pause_seconds=0.001)
    assert "monitor" in {thread.name for thread in threading.enumerate()}
    report = monitor.stop()
    assert "monitor" not in {thread.name for thread in threading.enumerate()}
    assert monitor.stop() is report
    assert len(report.samples) > 3
    assert report.mean_utilization is not None
    assert 0 < report.mean_utilization <= 1
    assert 0 < report.cpu_fraction < 1


def test_a_training_that_fails_leaves_no_thread() -> None:
    def fail() -> None:
        with Monitor(CPU, 1, "node-a", 0):
            raise ValueError("of the training")

    with pytest.raises(ValueError, match="of the training"):
        fail()
    assert "monitor" not in {thread.name for thread in threading.enumerate()}


def test_the_mean_is_of_the_training_alone() -> None:
    # as it starts, and at the end of each phase
    readings = iter([Reading(utilization, 1) for utilization in (0.0, 0.0, 0.9, 0.1, 0.7, 0.1)])
    monitor = Monitor(CPU, 1, "node-a", 0, sensor=Script(readings), interval_seconds=60)
    monitor.start()
    time.sleep(2 * SHORTEST_SECONDS)
    for _ in range(2):
        for phase in (TRAIN, EVALUATE):
            monitor.phase = phase
            time.sleep(2 * SHORTEST_SECONDS)
    report = monitor.stop()
    assert [sample.phase for sample in report.samples] == ["start", TRAIN, EVALUATE, TRAIN, EVALUATE]
    assert report.mean_utilization is not None
    assert 0.7 < report.mean_utilization < 0.9


def test_a_mean_is_not_stated_of_a_training_that_is_shorter_than_three_readings_cover() -> None:
    sensor = Script(IDLE, window_seconds=1.0)
    monitor = Monitor(CPU, 1, "node-a", 0, sensor=sensor, interval_seconds=60)
    monitor.start()
    monitor.phase = TRAIN
    time.sleep(2 * SHORTEST_SECONDS)
    report = monitor.stop()
    assert report.mean_utilization is None
    assert report.note == "0.0 s of training are too short for the device's utilization"


@pytest.mark.parametrize(("counted", "drawn"), [((5.0, 5.0), None), ((5.0, 12.5), 7.5)])
def test_energy_is_what_the_counter_moved_by_and_unknown_where_it_did_not_move(
    counted: tuple[float, float], drawn: float | None
) -> None:
    readings = iter([Reading(0.5, 1, energy_joules=joules) for joules in counted])
    monitor = Monitor(CPU, 1, "node-a", 0, sensor=Script(readings), interval_seconds=60)
    monitor.start()
    assert monitor.stop().energy_joules == drawn


@dataclass
class Script:
    """A sensor that says what a test tells it to."""

    readings: Iterator[Reading]
    action: Callable[[], None] = lambda: None
    closed: bool = False
    window_seconds: float = 0.0

    def read(self) -> Reading:
        self.action()
        return next(self.readings)

    def missing(self) -> str:
        return ""

    def close(self) -> None:
        self.closed = True


def test_a_sensor_that_costs_much_is_asked_less_often() -> None:
    sensor = Script(IDLE, action=lambda: burn(0.02))
    with Monitor(CPU, 1, "node-a", 0, sensor=sensor, interval_seconds=0.01) as monitor:
        wait_until(lambda: monitor._interval > 0.1, lambda: f"it samples each {monitor._interval} s")
        report = monitor.stop()
    # 10, 20, 40, ... ms apart, and one at the end
    assert len(report.samples) <= 8
    assert sensor.closed


def test_a_long_run_keeps_a_bounded_number_of_samples_from_its_whole_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitoring, "MAX_SAMPLES", 10)
    monitor = Monitor(CPU, 1, "node-a", 0, sensor=Script(IDLE), interval_seconds=60)
    monitor.start()
    time.sleep(2 * SHORTEST_SECONDS)
    for index in range(50):
        monitor.phase = f"part {index}"
        time.sleep(2 * SHORTEST_SECONDS)
    samples = monitor.stop().samples
    assert [sample.phase for sample in samples[1:]] == [f"part {n}" for n in (7, 15, 23, 31, 39, 47, 49)]


def test_a_sensor_that_hangs_delays_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "SENSOR_TIMEOUT_SECONDS", 0.05)
    hangs, release = threading.Event(), threading.Event()

    def hang() -> None:
        if threading.current_thread().name == "monitor":
            hangs.set()
            release.wait(LIMIT_SECONDS)

    sensor = Script(IDLE, hang)
    monitor = Monitor(CPU, 1, "node-a", 0, sensor=sensor, interval_seconds=0.01)
    monitor.start()
    try:
        assert hangs.wait(LIMIT_SECONDS), "the sensor is not read"
        monitor.phase = TRAIN  # would wait for ever
        so_far = monitor.report()
        report = monitor.stop()
    finally:
        release.set()
    assert report.note == "the sensor stopped answering"
    assert report.mean_utilization is None
    assert so_far.samples == []
    assert not sensor.closed


def seen(**changed: Any) -> MonitorReport:
    values: dict[str, Any] = {
        "samples": [],
        "mean_utilization": 0.8,
        "train_seconds": 1.0,
        "energy_joules": 100.0,
        "cpu_fraction": 0.001,
        "throttled": False,
        "note": "",
    }
    return MonitorReport(**(values | changed))


def test_a_run_is_as_busy_as_its_devices_in_the_mean_and_draws_what_they_draw_together() -> None:
    slow = seen(mean_utilization=0.4, energy_joules=50.0, cpu_fraction=0.004, throttled=True, note="hot")
    assert across_ranks([seen(), slow, seen(note="hot")]) == {
        "mean_utilization": pytest.approx(2.0 / 3),
        "lowest_utilization": 0.4,
        "energy_joules": 250.0,
        "monitor_cpu_fraction": 0.004,
        "throttled": True,
        "monitor_note": "rank 1, 2: hot",
    }


def test_a_rank_that_saw_nothing_leaves_no_mean_and_no_sum_of_the_others() -> None:
    blind = seen(mean_utilization=None, energy_joules=None, throttled=None, note="not monitored")
    of_run = across_ranks([seen(), blind])
    assert (of_run["mean_utilization"], of_run["lowest_utilization"], of_run["energy_joules"]) == (None,) * 3
    assert of_run["throttled"] is False
    assert of_run["monitor_note"] == "rank 1: not monitored"
    assert across_ranks([blind])["throttled"] is None


def test_samples_come_back_from_their_file_and_what_is_not_known_is_empty(tmp_path: Path) -> None:
    rows = [
        UtilizationRecord(
            "2026-01-01T00:00:00.500+00:00", "node-a", 0, "cuda:0 GPU", TRAIN, 0.5, 1, 300.5, 4, 0.25
        ),
        UtilizationRecord("2026-01-01T00:00:01.000+00:00", "node-a", 1, "CPU process", TRAIN, 1.0, 2, None),
    ]
    write_rows(tmp_path / UTILIZATION, UtilizationRecord, rows)
    table = pd.read_csv(tmp_path / UTILIZATION)
    assert list(table.columns) == [
        "timestamp", "host", "rank", "device", "phase", "utilization", "memory_bytes", "power_watts",
        "memory_total_bytes", "memory_utilization",
    ]  # fmt: skip
    assert (table["memory_total_bytes"].iloc[0], table["memory_utilization"].iloc[0]) == (4, 0.25)
    assert table.loc[1, ["memory_total_bytes", "memory_utilization"]].isna().all()
    assert table["power_watts"].tolist()[0] == 300.5
    assert pd.isna(table["power_watts"].iloc[1])


def test_a_sample_has_the_memory_of_the_device_and_how_busy_it_was() -> None:
    sensor = Script(iter([Reading(0.5, 1), Reading(0.5, 2, memory_total_bytes=8, memory_utilization=0.25)]))
    with Monitor(CPU, 1, "node-a", 0, sensor=sensor, interval_seconds=60) as monitor:
        (sample,) = monitor.stop().samples
    assert (sample.memory_bytes, sample.memory_total_bytes, sample.memory_utilization) == (2, 8, 0.25)


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
