"""How busy devices and machines were, in every run and at no cost to the training."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from tests.unit.conftest import StartPython, said
from tests.waiting import LIMIT_SECONDS, wait_until

from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for
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
from scalewise.ranks.monitoring.sensors import (
    THROTTLING,
    CpuSensor,
    NvmlSensor,
    Reading,
    gpu_limits,
    sensor_of,
)
from scalewise.records import GpuLimits

CPU = torch.device("cpu")
IDLE = itertools.repeat(Reading(0.5, 1))
BURN = "import time\nwhile time.process_time() < {}: sum(range(100_000))\nprint(flush=True)\ninput()"
"""A process that uses so many CPU seconds, prints a line, and waits for one before it ends."""


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


def test_the_mean_is_of_the_training_only() -> None:
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
    readings = iter([Reading(0.5, 2, 300.5, joules, None, 8, 0.25) for joules in counted])
    monitor = Monitor(CPU, 1, "node-a", 0, sensor=Script(readings), interval_seconds=60)
    monitor.start()
    report = monitor.stop()
    assert report.energy_joules == drawn
    (sample,) = report.samples
    assert (sample.memory_bytes, sample.memory_total_bytes, sample.memory_utilization) == (2, 8, 0.25)
    assert sample.power_watts == 300.5


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


def test_a_slow_sensor_is_read_less_often() -> None:
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
    subprocess.run([sys.executable, "-c", BURN.format(0.4)], input="\n", text=True, check=True)
    used, seconds = meter.used(), time.monotonic() - began
    assert used.rank >= 0.3
    assert used.busy >= 0.3
    # ticks, and the time between two readings
    assert used.total == pytest.approx(seconds * cpus, rel=0.2, abs=0.5)


def test_a_cpu_process_is_as_busy_as_its_cpu_time_on_each_of_its_cpus() -> None:
    sensor, of_two = CpuSensor(1), CpuSensor(2)
    wall, cpu = time.monotonic(), time.process_time()
    burn(0.2)
    time.sleep(0.1)
    reading, half = sensor.read(), of_two.read().utilization
    expected = (time.process_time() - cpu) / (time.monotonic() - wall)
    assert reading.utilization == pytest.approx(expected, abs=0.05)
    assert half == pytest.approx(expected / 2, abs=0.05)
    assert reading.memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert (reading.power_watts, reading.energy_joules, reading.throttling) == (None, None, None)
    assert (reading.memory_total_bytes, reading.memory_utilization) == (None, None)


@pytest.mark.parametrize(
    ("ended", "listed"),
    [
        pytest.param(False, True, id="at work"),
        pytest.param(True, True, id="that has ended"),
        pytest.param(False, False, id="of a kernel that lists no children"),
    ],
)
def test_a_worker_counts_with_the_process_that_started_it(
    start_python: StartPython, ended: bool, listed: bool, tmp_path: Path
) -> None:
    sensor = CpuSensor(1)
    if not listed:
        sensor._children_of_main_thread = tmp_path / "no such file"
    wall, cpu = time.monotonic(), time.process_time()
    process = start_python(BURN.format(0.3))
    said(process)
    if ended:
        process.communicate("\n")
    parents = (time.process_time() - cpu) / (time.monotonic() - wall)
    utilization = sensor.read().utilization
    assert utilization is not None
    assert utilization - parents > 0.5 * 0.3 / (time.monotonic() - wall)


class NvmlError(Exception):
    """As pynvml.NVMLError."""


REASONS = {
    "nvmlClocksEventReasonGpuIdle": 0x1,
    "nvmlClocksEventReasonSwPowerCap": 0x4,
    "nvmlClocksEventReasonHwSlowdown": 0x8,
    "nvmlClocksEventReasonSwThermalSlowdown": 0x20,
    "nvmlClocksEventReasonHwThermalSlowdown": 0x40,
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": 0x80,
}
GPU_IDLE, POWER_CAP = REASONS["nvmlClocksEventReasonGpuIdle"], REASONS["nvmlClocksEventReasonSwPowerCap"]
UUID = "ffc79498-8ff3-c2dc-3b0d-fafd804516ae"


@dataclass
class Nvml:
    """Stands in for pynvml's functions, in the units of NVIDIA's reference: no GPU is needed here."""

    known: str = f"GPU-{UUID}"
    unsupported: set[str] = field(default_factory=set)
    reasons: int = 0
    users: int = 0
    millijoules: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000, 10**9, 250_000)))
    NVMLError = NvmlError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    nvmlMemory_v2 = 0x02000028  # noqa: N815

    def nvmlInit(self) -> None:  # noqa: N802
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != self.known:
            raise NvmlError("Not Found")
        return uuid

    def __getattr__(self, name: str) -> Any:
        if name in REASONS:
            return REASONS[name]
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=37, memory=90),
            "nvmlDeviceGetMemoryInfo": lambda version: {
                self.nvmlMemory_v2: SimpleNamespace(total=8 << 30, free=6 << 30, used=2 << 30)
            }[version],
            "nvmlDeviceGetPowerUsage": lambda: 412_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: next(self.millijoules),
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: self.reasons,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 650_000,
            "nvmlDeviceGetMaxClockInfo": lambda clock: {1: 1980, 2: 2619}[clock],
        }

        def call(handle: str, *arguments: Any, **named: Any) -> Any:
            assert handle == self.known
            if name in self.unsupported:
                raise NvmlError("Not Supported")
            return answers[name](*arguments, **named)

        return call


def test_nvmls_percent_milliwatts_and_millijoules_become_fraction_watts_and_joules() -> None:
    # a slice of a GPU has another prefix
    for prefix in ("GPU", "MIG"):
        reading = NvmlSensor(Nvml(known=f"{prefix}-{UUID}"), UUID).read()
        assert reading == Reading(0.37, 2 << 30, 412.5, 1000.0, (), 8 << 30, 0.9)


def test_limits_of_power_and_clocks_are_in_watts_and_megahertz() -> None:
    limits = NvmlSensor(Nvml(), UUID).limits()
    assert limits == GpuLimits(
        power_watts=650.0, sm_clock_mhz=1980, memory_clock_mhz=2619, memory_bytes=8 << 30
    )
    assert limits.named() == {
        "GPU power limit": "650 W",
        "GPU maximum clock": "1980 MHz",
        "GPU memory's maximum clock": "2619 MHz",
    }
    # one that a GPU does not tell is unknown, and no number
    silent = NvmlSensor(Nvml(unsupported={"nvmlDeviceGetEnforcedPowerLimit"}), UUID).limits()
    assert silent == limits.model_copy(update={"power_watts": None})


NVIDIA_SMI = {
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "power brake",
    "sw_thermal_slowdown": "thermal slowdown",
}


def nvidia_smi(*fields: str) -> list[str]:
    """Return what NVIDIA's program prints of CUDA's first GPU, without units."""
    uuid = torch.cuda.get_device_properties(0).uuid
    query = [f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    printed = subprocess.run(["nvidia-smi", *query], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [value.strip() for value in printed.strip().split(",")]


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="compares with nvidia-smi, not installed")
def test_a_real_gpu_is_read_as_nvidia_smi_reads_it(record_property: Callable[[str, object], None]) -> None:
    """Memory, power, limits and reasons of throttling are those that nvidia-smi names."""
    sensor, why = sensor_of(torch.device("cuda", 0), 1)
    assert isinstance(sensor, NvmlSensor), why
    try:
        # other tests may take and give back memory in between
        for _ in range(5):
            before = float(nvidia_smi("memory.used")[0])
            reading = sensor.read()
            reasons = nvidia_smi(*(f"clocks_event_reasons.{name}" for name in NVIDIA_SMI))
            after, total, limit, clock = map(
                float, nvidia_smi("memory.used", "memory.total", "enforced.power.limit", "clocks.max.sm")
            )
            active = {
                words for words, each in zip(NVIDIA_SMI.values(), reasons, strict=True) if each == "Active"
            }
            used = (reading.memory_bytes or 0) / 2**20
            alike = min(before, after) - 100 <= used <= max(before, after) + 100
            if alike and set(reading.throttling or ()) == active:
                break
        limits = sensor.limits()
        assert gpu_limits(str(torch.cuda.get_device_properties(0).uuid)) == limits
        assert sensor.missing() == ""
    finally:
        sensor.close()
    record_property("figure", f"{reading.power_watts:.0f} W, throttling: {reading.throttling or 'none'}")
    assert alike, f"{before}, {after} MiB by nvidia-smi, {used} MiB by NVML"
    assert set(reading.throttling or ()) == active
    assert (reading.memory_total_bytes or 0) / 2**20 == pytest.approx(total, rel=0.02)
    assert reading.memory_utilization is not None
    assert 0 <= reading.memory_utilization <= 1
    assert (limits.power_watts, limits.sm_clock_mhz) == pytest.approx((limit, clock), abs=1)
    assert reading.energy_joules is not None
    assert 0 < (reading.power_watts or 0) < 2 * limit


def watched(nvml: Nvml, seconds: float = 0.0) -> MonitorReport:
    """What a monitor reports of a training on such a GPU."""
    with Monitor(CPU, 1, "node-a", 0, sensor=NvmlSensor(nvml, UUID)) as monitor:
        monitor.phase = TRAIN
        time.sleep(seconds)
        report = monitor.stop()
    assert nvml.users == 0
    return report


def test_what_a_gpu_does_not_tell_is_left_out_and_named_and_the_rest_is_there() -> None:
    unsupported = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTotalEnergyConsumption"}
    report = watched(Nvml(unsupported=unsupported))
    sample = report.samples[-1]
    assert (sample.utilization, sample.memory_bytes, sample.power_watts) == (None, 2 << 30, 412.5)
    assert report.mean_utilization is None
    assert report.note == "NVML gives no utilization (Not Supported); NVML gives no energy (Not Supported)"


def test_energy_is_power_times_time_where_there_is_no_counter() -> None:
    before = time.monotonic()
    energy = watched(Nvml(unsupported={"nvmlDeviceGetTotalEnergyConsumption"}), seconds=0.05).energy_joules
    assert energy is not None
    assert 412.5 * 0.05 <= energy <= 412.5 * (time.monotonic() - before)


@pytest.mark.parametrize(
    ("reasons", "throttled", "note"),
    [
        *((REASONS[constant] | GPU_IDLE, True, reason) for constant, reason in THROTTLING.items()),
        pytest.param(POWER_CAP | GPU_IDLE, False, "", id="at its power cap, or idle"),
    ],
)
def test_a_gpu_that_slows_down_for_heat_or_power_is_flagged_with_nvmls_reason(
    reasons: int, throttled: bool, note: str
) -> None:
    report = watched(Nvml(reasons=reasons))
    assert report.throttled is throttled
    assert report.note.partition(" samples: ")[2] == note


def test_the_names_of_nvml_are_those_of_its_package() -> None:
    """The stand-in may know what the package does not."""
    pynvml = pytest.importorskip("pynvml")
    assert {name: getattr(pynvml, name) for name in REASONS} == REASONS
    for call in ("UtilizationRates", "MemoryInfo", "PowerUsage", "TotalEnergyConsumption"):
        assert callable(getattr(pynvml, f"nvmlDeviceGet{call}"))
    assert callable(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
    assert pynvml.nvmlMemory_v2 == Nvml.nvmlMemory_v2
    assert set(THROTTLING) <= set(REASONS)


@pytest.mark.parametrize("installed", [True, False], ids=["no such GPU", "no package"])
def test_a_gpu_that_nvml_does_not_know_is_trained_on_and_the_record_says_why_it_was_not_watched(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Z9")
    if not installed:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    device = torch.device("cuda", 1)
    sensor, why = sensor_of(device, 4)
    assert sensor is None
    with Monitor(device, 4, "node-a", 1) as monitor:
        monitor.phase = TRAIN
        report = monitor.stop()
    assert report.note == why
    assert why.startswith("not monitored: NVML: " if installed else "not monitored: the package nvidia-ml-py")
    assert (report.samples, report.mean_utilization, report.energy_joules) == ([], None, None)


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
