"""Sensors of a device's utilization: NVML for a GPU, the kernel's accounts for a CPU process.

A sensor is read from a thread beside the training, so it never calls into CUDA: that could wait for the
device, or make it wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from scalewise.records import GpuLimits

if TYPE_CHECKING:
    import torch

THROTTLING = {
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown",
}
"""NVML's reasons that disturb a measurement. The power cap is none: a GPU is meant to run at it."""


@dataclass(frozen=True)
class Reading:
    """A device at one time; None for what it does not tell.

    Args:
        utilization: A fraction, 0 to 1.
        memory_bytes: Memory in use.
        power_watts: Power drawn now.
        energy_joules: Energy drawn since some time before the first reading.
        throttling: Reasons for which the device runs slower than it could; empty where it does not.
        memory_total_bytes: Memory of the device, used or not.
        memory_utilization: Fraction of time in which its memory was read or written, 0 to 1.
    """

    utilization: float | None
    memory_bytes: int | None
    power_watts: float | None = None
    energy_joules: float | None = None
    throttling: tuple[str, ...] | None = None
    memory_total_bytes: int | None = None
    memory_utilization: float | None = None


class Sensor(Protocol):
    """Reads one device."""

    def read(self) -> Reading:
        """Read the device now. Nothing is raised for what the device does not tell."""

    def missing(self) -> str:
        """Name the quantities that no reading told, and why; empty where all were told."""

    def close(self) -> None:
        """Let go of the device."""


class CpuSensor:
    """A CPU process as a device: its own CPU time and that of its children, the loader's workers.

    Args:
        cpus: Number of CPUs that the process and its children share.
        pid: Another process than this one.
    """

    def __init__(self, cpus: int, pid: int | None = None) -> None:
        self._cpus = cpus
        self._own = pid is None
        self._process = psutil.Process(pid)
        number = self._process.pid
        # the loader starts its workers from the main thread; asking psutil reads every process of the node
        self._children_of_main_thread = Path(f"/proc/{number}/task/{number}/children")
        self._last = (time.monotonic(), self._cpu_seconds())

    def read(self) -> Reading:
        """Read utilization since the reading before, and the process's own memory."""
        now, used = time.monotonic(), self._cpu_seconds()
        (last_time, last_used), self._last = self._last, (now, used)
        share = (used - last_used) / ((now - last_time) * self._cpus)
        # children are accounted in clock ticks, which may fall into the reading after
        return Reading(min(max(share, 0.0), 1.0), self._resident_bytes())

    def missing(self) -> str:
        """Name nothing: power is not looked for, and so not missed."""
        return ""

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def _resident_bytes(self) -> int | None:
        try:
            return int(self._process.memory_info().rss)
        except psutil.Error:
            return None

    def _cpu_seconds(self) -> float:
        try:
            mine = self._process.cpu_times()
        except psutil.Error:  # another process, which has ended
            return self._last[1]
        # a process knows its own time more finely than the kernel tells others
        seconds = time.process_time() if self._own else mine.user + mine.system
        seconds += mine.children_user + mine.children_system
        for child in self._children():
            with suppress(psutil.Error):  # ended a moment ago
                times = child.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    def _children(self) -> list[psutil.Process]:
        try:
            pids = self._children_of_main_thread.read_text(encoding="ascii").split()
        except OSError:  # a kernel without this file
            return self._process.children()
        children = []
        for pid in pids:
            with suppress(psutil.Error):
                children.append(psutil.Process(int(pid)))
        return children


class NvmlSensor:
    """A GPU by NVIDIA's management library, which needs no CUDA context.

    Args:
        nvml: The module pynvml.
        uuid: The device's UUID as CUDA gives it, without a prefix.

    Raises:
        pynvml.NVMLError: There is no driver, or it does not know the device.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._failures: dict[str, str] = {}
        self._told: set[str] = set()
        nvml.nvmlInit()
        try:
            self._handle = self._find(uuid)
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            raise

    def _find(self, uuid: str) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except self._nvml.NVMLError:
            return self._nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")

    def read(self) -> Reading:
        """Read what NVML counts in percent, milliwatts and millijoules."""
        nvml = self._nvml
        rates = self._ask("utilization", nvml.nvmlDeviceGetUtilizationRates)
        memory = self._memory()
        milliwatts = self._ask("power", nvml.nvmlDeviceGetPowerUsage)
        millijoules = self._ask("energy", nvml.nvmlDeviceGetTotalEnergyConsumption)
        reasons = self._ask("throttling", nvml.nvmlDeviceGetCurrentClocksEventReasons)
        return Reading(
            utilization=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else int(memory.used),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            energy_joules=None if millijoules is None else millijoules / 1000,
            throttling=None if reasons is None else self._name(reasons),
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_utilization=None if rates is None else rates.memory / 100,
        )

    def limits(self) -> GpuLimits:
        """Ask for the limits in force, which NVML counts in milliwatts and megahertz."""
        nvml = self._nvml

        def highest(clock: int) -> int | None:
            answer = self._ask("clock", lambda handle: nvml.nvmlDeviceGetMaxClockInfo(handle, clock))
            return None if answer is None else int(answer)

        milliwatts = self._ask("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit)
        memory = self._memory()
        return GpuLimits(
            power_watts=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=highest(nvml.NVML_CLOCK_SM),
            memory_clock_mhz=highest(nvml.NVML_CLOCK_MEM),
            memory_bytes=None if memory is None else int(memory.total),
        )

    def _memory(self) -> Any:
        nvml = self._nvml
        # the second version: the first counts what the driver keeps to itself as used
        return self._ask(
            "memory", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        )

    def missing(self) -> str:
        """Name the quantities that NVML never gave, and its own words for why."""
        return "; ".join(
            f"NVML gives no {quantity} ({error})"
            for quantity, error in self._failures.items()
            if quantity not in self._told
        )

    def close(self) -> None:
        """Let go of NVML, which counts its users: others in this process keep it."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _ask(self, quantity: str, question: Callable[[Any], Any]) -> Any:
        try:
            answer = question(self._handle)
        except self._nvml.NVMLError as error:
            self._failures.setdefault(quantity, str(error))
            return None
        self._told.add(quantity)
        return answer

    def _name(self, reasons: int) -> tuple[str, ...]:
        return tuple(name for constant, name in THROTTLING.items() if reasons & getattr(self._nvml, constant))


def sensor_of(device: torch.device, cpus_per_device: int) -> tuple[Sensor | None, str]:
    """The sensor of a rank's own device; None, with the reason, where it has none."""
    if device.type != "cuda":
        return CpuSensor(cpus_per_device), ""
    import torch  # noqa: PLC0415 - who watches another process needs none

    return gpu_sensor(str(torch.cuda.get_device_properties(device).uuid))


def gpu_sensor(uuid: str) -> tuple[NvmlSensor | None, str]:
    """The sensor of a GPU; None, with the reason, where it has none.

    By its UUID: indices differ between CUDA and NVML where CUDA_VISIBLE_DEVICES is set.
    """
    try:
        import pynvml  # noqa: PLC0415 - a machine without GPUs has no use for it
    except ImportError:
        return None, "not monitored: the package nvidia-ml-py is not installed"
    try:
        return NvmlSensor(pynvml, uuid.removeprefix("GPU-").removeprefix("MIG-")), ""
    except pynvml.NVMLError as error:
        return None, f"not monitored: NVML: {error}"


def driver_version() -> str | None:
    """The version of NVIDIA's driver, as NVML tells it; None where it does not."""
    try:
        import pynvml  # noqa: PLC0415 - as above
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def gpu_limits(uuid: str) -> GpuLimits | None:
    """Return the limits of a GPU in force; None if NVML does not know it."""
    sensor, _ = gpu_sensor(uuid)
    if sensor is None:
        return None
    try:
        return sensor.limits()
    finally:
        sensor.close()
