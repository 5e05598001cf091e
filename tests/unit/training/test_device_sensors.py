"""What the devices tell: how busy they are, what they draw, why they are slow, and how late it is."""

from __future__ import annotations

import shutil
import subprocess
import sys
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

from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for
from scalewise.ranks.monitoring.monitor import TRAIN, Monitor, MonitorReport
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
BURN = "import time\nwhile time.process_time() < {}: sum(range(100_000))\nprint(flush=True)\ninput()"
"""A process that uses so many CPU seconds, says so, and waits to be told to end."""


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.fixture
def child() -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(seconds: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", BURN.format(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_cpu_process_is_as_busy_as_its_cpu_time_says() -> None:
    sensor = CpuSensor(1)
    wall, cpu = time.monotonic(), time.process_time()
    burn(0.2)
    time.sleep(0.1)
    reading = sensor.read()
    expected = (time.process_time() - cpu) / (time.monotonic() - wall)
    assert reading.utilization == pytest.approx(expected, abs=0.05)
    assert reading.memory_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert (reading.power_watts, reading.energy_joules, reading.throttling) == (None, None, None)
    assert (reading.memory_total_bytes, reading.memory_utilization) == (None, None)


def test_a_process_with_two_cpus_is_half_as_busy_with_one_thread() -> None:
    sensors = CpuSensor(1), CpuSensor(2)
    burn(0.2)
    one, two = (sensor.read().utilization for sensor in sensors)
    assert one is not None
    assert two == pytest.approx(one / 2, rel=0.1)


@pytest.mark.parametrize("ended", [False, True], ids=["at work", "that has ended"])
def test_a_worker_counts_with_the_process_that_started_it(
    child: Callable[[float], subprocess.Popen[str]], ended: bool
) -> None:
    sensor = CpuSensor(1)
    wall, cpu = time.monotonic(), time.process_time()
    process = child(0.3)
    if ended:
        process.communicate("\n")
    alone = (time.process_time() - cpu) / (time.monotonic() - wall)
    utilization = sensor.read().utilization
    assert utilization is not None
    assert utilization - alone > 0.5 * 0.3 / (time.monotonic() - wall)


def test_workers_count_where_the_kernel_lists_no_children(
    child: Callable[[float], subprocess.Popen[str]], tmp_path: Path
) -> None:
    listed, asked = CpuSensor(1), CpuSensor(1)
    asked._children_of_main_thread = tmp_path / "no such file"
    child(0.3)
    found, expected = asked.read().utilization, listed.read().utilization
    assert found is not None
    assert expected is not None
    assert expected > 0.05
    assert found == pytest.approx(expected, rel=0.3)


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
IDLE, POWER_CAP = REASONS["nvmlClocksEventReasonGpuIdle"], REASONS["nvmlClocksEventReasonSwPowerCap"]
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
    reading = NvmlSensor(Nvml(), UUID).read()
    assert reading == Reading(0.37, 2 << 30, 412.5, 1000.0, (), 8 << 30, 0.9)


def test_limits_of_power_and_clocks_are_told_in_watts_and_megahertz() -> None:
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
    """What NVIDIA's own program says of CUDA's first GPU, without units."""
    uuid = torch.cuda.get_device_properties(0).uuid
    query = [f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    told = subprocess.run(["nvidia-smi", *query], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [value.strip() for value in told.strip().split(",")]


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_a_real_gpu_is_read_as_nvidia_smi_reads_it(
    record_property: Callable[[str, object], None],
) -> None:
    """Memory, power, limits and reasons of throttling are those that nvidia-smi names."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("holds NVML's readings against nvidia-smi, which is not installed")
    device = torch.device("cuda", 0)
    sensor, why = sensor_of(device, 1)
    assert isinstance(sensor, NvmlSensor), why
    try:
        # other tests may take and give back memory in between
        for _ in range(5):
            before = float(nvidia_smi("memory.used")[0])
            reading = sensor.read()
            reasons = nvidia_smi(*(f"clocks_event_reasons.{name}" for name in NVIDIA_SMI))
            after, limit, clock = map(
                float, nvidia_smi("memory.used", "enforced.power.limit", "clocks.max.sm")
            )
            assert reading.memory_bytes is not None
            used = reading.memory_bytes / 2**20
            active = {
                words for words, told in zip(NVIDIA_SMI.values(), reasons, strict=True) if told == "Active"
            }
            alike = min(before, after) - 100 <= used <= max(before, after) + 100
            if alike and set(reading.throttling or ()) == active:
                break
        limits = sensor.limits()
        assert gpu_limits(str(torch.cuda.get_device_properties(0).uuid)) == limits
        missing = sensor.missing()
        total = float(nvidia_smi("memory.total")[0])
    finally:
        sensor.close()
    assert missing == ""
    record_property("figure", f"{reading.power_watts:.0f} W, throttling: {reading.throttling or 'none'}")
    assert alike, f"{before}, {after} MiB by nvidia-smi, {used} MiB by NVML"
    assert set(reading.throttling or ()) == active
    assert reading.memory_total_bytes is not None
    assert reading.memory_total_bytes / 2**20 == pytest.approx(total, rel=0.02)
    assert reading.memory_utilization is not None
    assert 0 <= reading.memory_utilization <= 1
    assert limits.power_watts == pytest.approx(limit, abs=1)
    assert limits.sm_clock_mhz == pytest.approx(clock, abs=1)
    assert reading.energy_joules is not None
    assert reading.power_watts is not None
    assert 0 < reading.power_watts < 2 * limit


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
        *((REASONS[constant] | IDLE, True, reason) for constant, reason in THROTTLING.items()),
        pytest.param(POWER_CAP | IDLE, False, "", id="at its power cap, or idle"),
    ],
)
def test_a_gpu_that_slows_down_for_heat_or_power_is_flagged_with_nvmls_reason(
    reasons: int, throttled: bool, note: str
) -> None:
    report = watched(Nvml(reasons=reasons))
    assert report.throttled is throttled
    assert report.note.partition(" samples: ")[2] == note


def test_a_slice_of_a_gpu_is_found_too() -> None:
    assert NvmlSensor(Nvml(known=f"MIG-{UUID}"), UUID).read().memory_bytes == 2 << 30


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
