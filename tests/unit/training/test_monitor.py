"""How busy a GPU was, its energy and its throttling, and how much of the machine others used."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.waiting import LIMIT_SECONDS, wait_until

from scalewise.ranks.monitoring import monitor as monitoring
from scalewise.ranks.monitoring.machine_load import CpuMeter, CpuUse, other_cpu_fraction
from scalewise.ranks.monitoring.monitor import (
    THROTTLING,
    DeviceUse,
    Monitor,
    MonitorReport,
    Reading,
    across_ranks,
    use_between,
)
from scalewise.records import GpuLimits

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


class Nvml:
    """Stands in for the module pynvml, in the units of NVIDIA's reference: no GPU is needed here."""

    class NVMLError(Exception):
        """As pynvml's."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    nvmlMemory_v2 = 0x02000028  # noqa: N815

    def __init__(self) -> None:
        self.known = f"GPU-{UUID}"
        self.unsupported: set[str] = set()
        self.reasons = 0
        self.answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=37, memory=90),
            "nvmlDeviceGetMemoryInfo": lambda version: {
                self.nvmlMemory_v2: SimpleNamespace(total=8 << 30, free=6 << 30, used=2 << 30)
            }[version],
            "nvmlDeviceGetPowerUsage": lambda: 412_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda: 1_000_000,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: self.reasons,
            "nvmlDeviceGetEnforcedPowerLimit": lambda: 650_000,
            "nvmlDeviceGetMaxClockInfo": lambda clock: {1: 1980, 2: 2619}[clock],
        }

    def nvmlInit(self) -> None:  # noqa: N802
        """Find the driver."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != self.known:
            raise self.NVMLError("Not Found")
        return uuid

    def __getattr__(self, name: str) -> Any:
        if name in REASONS:
            return REASONS[name]

        def call(handle: str, *arguments: Any) -> Any:
            assert handle == self.known
            if name in self.unsupported:
                raise self.NVMLError("Not Supported")
            return self.answers[name](*arguments)

        return call


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Return the module pynvml of a machine with a GPU."""
    stand_in = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setattr(monitoring, "INTERVAL_SECONDS", 0.005)
    return stand_in


def watched(readings: int = 1) -> MonitorReport:
    """Return what a monitor has read after so many readings."""
    monitor = Monitor(f"GPU-{UUID}")
    monitor.start()
    wait_until(lambda: len(monitor.report().readings) >= readings, "the monitor reads nothing")
    report = monitor.stop()
    assert not monitor.is_alive()
    return report


@pytest.mark.parametrize("prefix", ["GPU", "MIG"])
def test_nvmls_percent_milliwatts_and_millijoules_become_fraction_watts_and_joules(
    nvml: Nvml, prefix: str
) -> None:
    nvml.known = f"{prefix}-{UUID}"
    report = watched()
    reading = report.readings[0]
    assert (reading.utilization, reading.memory_utilization) == (0.37, 0.9)
    assert (reading.memory_bytes, reading.memory_total_bytes) == (2 << 30, 8 << 30)
    assert (reading.power_watts, reading.energy_joules, reading.throttling) == (412.5, 1000.0, ())
    assert report.limits == GpuLimits(
        power_watts=650.0, sm_clock_mhz=1980, memory_clock_mhz=2619, memory_bytes=8 << 30
    )
    assert (report.driver, report.note) == ("580.159.04", "")


def test_what_a_gpu_does_not_report_is_unknown_and_named_with_the_reason(nvml: Nvml) -> None:
    nvml.unsupported = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetEnforcedPowerLimit"}
    report = watched()
    reading = report.readings[0]
    assert (reading.utilization, reading.memory_utilization, reading.power_watts) == (None, None, 412.5)
    assert report.limits is not None
    assert (report.limits.power_watts, report.limits.sm_clock_mhz) == (None, 1980)
    assert report.note == (
        "NVML gives no power limit (Not Supported); NVML gives no utilization (Not Supported)"
    )


@pytest.mark.parametrize(
    ("reasons", "names"),
    [
        *((REASONS[constant] | GPU_IDLE, (name,)) for constant, name in THROTTLING.items()),
        pytest.param(POWER_CAP | GPU_IDLE, (), id="at its power cap, or idle"),
    ],
)
def test_a_gpu_that_slows_down_is_read_with_nvmls_reason(
    nvml: Nvml, reasons: int, names: tuple[str, ...]
) -> None:
    nvml.reasons = reasons
    assert watched().readings[0].throttling == names


@pytest.mark.parametrize("installed", [True, False], ids=["no such GPU", "no package"])
def test_a_gpu_that_nvml_does_not_know_leaves_the_reason(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    nvml.known = "another"
    if not installed:
        monkeypatch.setitem(sys.modules, "pynvml", None)
    report = watched(0)
    assert (report.readings, report.limits) == ([], None)
    assert report.note == "not monitored: " + (
        "NVML: Not Found" if installed else "the package nvidia-ml-py is not installed"
    )


def test_an_nvml_that_hangs_delays_no_end_of_a_run(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "STOP_SECONDS", 0.05)
    hangs, release = threading.Event(), threading.Event()

    def hang() -> int:
        hangs.set()
        release.wait(LIMIT_SECONDS)
        return 0

    nvml.answers["nvmlDeviceGetPowerUsage"] = hang
    monitor = Monitor(UUID)
    monitor.start()
    try:
        assert hangs.wait(LIMIT_SECONDS), "the GPU is not read"
        assert monitor.report().readings == []
        report = monitor.stop()
    finally:
        release.set()
        monitor.join()
    assert (report.readings, report.note) == ([], "not monitored: NVML does not respond")


# ---- the use during the measured steps ------------------------------------------------------------------


def reading(at: float, **changed: Any) -> Reading:
    """Return a reading of a GPU that draws 300 W, of which the counter reads 200 W."""
    values: dict[str, Any] = {
        "timestamp": "", "utilization": 0.5, "memory_utilization": 0.1, "memory_bytes": 1,
        "memory_total_bytes": 2, "power_watts": 300.0, "energy_joules": 200.0 * at, "throttling": (),
    }  # fmt: skip
    return Reading(at=at, **values | changed)


def read_from(first: int, last: int, note: str = "", **changed: Any) -> MonitorReport:
    """Return a report with a reading each second."""
    return MonitorReport([reading(at, **changed) for at in range(first, last)], None, None, note)


@pytest.mark.parametrize(
    ("changed", "joules"),
    [
        pytest.param({}, 2000.0, id="by the counter"),
        pytest.param({"energy_joules": None}, 3000.0, id="by the power without a counter"),
        pytest.param({"energy_joules": 7.0}, None, id="a counter that did not move"),
        pytest.param({"energy_joules": None, "power_watts": None}, None, id="neither"),
    ],
)
def test_energy_is_that_of_the_counter_or_else_power_times_time(
    changed: dict[str, Any], joules: float | None
) -> None:
    assert use_between(read_from(0, 11, **changed), (0.0, 10.0)).energy_joules == joules


def used(**changed: Any) -> DeviceUse:
    values: dict[str, Any] = {"mean_utilization": 0.8, "energy_joules": 100.0, "throttled": False, "note": ""}
    return DeviceUse(**values | changed)


def test_a_run_is_as_busy_as_its_devices_in_the_mean_and_draws_what_they_draw_together() -> None:
    slow = used(mean_utilization=0.4, energy_joules=50.0, throttled=True, note="hot")
    assert across_ranks([used(), slow, used(note="hot")]) == {
        "mean_utilization": pytest.approx(2.0 / 3),
        "lowest_utilization": 0.4,
        "energy_joules": 250.0,
        "throttled": True,
        "monitor_note": "rank 1, 2: hot",
    }


# ---- the CPUs of the machine -------------------------------------------------------------------------


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
