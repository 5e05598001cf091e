"""Read a device's utilization: from NVML for a GPU, from the kernel for a CPU process.

A thread next to the training reads the sensor, so it never calls CUDA: that could wait for the device, or
delay it.
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
"""NVML's reasons that disturb a measurement. The power cap is not one: GPUs run at it by design."""


@dataclass(frozen=True)
class Reading:
    """The state of a device; None for each quantity that it does not report.

    Args:
        utilization: A fraction, 0 to 1.
        memory_bytes: Memory in use.
        power_watts: Power drawn now.
        energy_joules: Energy drawn since a fixed time before the first reading.
        throttling: Reasons for which the device runs slower than it could; empty if it does not.
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
    """Read one device; the utilization of a reading may cover ``window_seconds`` before the last reading."""

    window_seconds: float

    def read(self) -> Reading:
        """Read the device now. A quantity that it does not report raises nothing."""

    def missing(self) -> str:
        """Return the quantities that no reading had, and why; empty if there are none."""

    def close(self) -> None:
        """Release the device."""


class CpuSensor:
    """Read the CPU time of a process and its children, the loader's workers, as the use of a device.

    Args:
        cpus: Number of CPUs that the process and its children share.
        pid: Id of the process; None for this one.
    """

    window_seconds = 0.0

    def __init__(self, cpus: int, pid: int | None = None) -> None:
        self._cpus = cpus
        self._is_this_process = pid is None
        self._process = psutil.Process(pid)
        number = self._process.pid
        # the loader starts its workers from the main thread; psutil would read every process of the node
        self._children_of_main_thread = Path(f"/proc/{number}/task/{number}/children")
        self._last = (time.monotonic(), self._cpu_seconds())

    def read(self) -> Reading:
        """Read the utilization since the last reading, and the memory of the process."""
        now, used = time.monotonic(), self._cpu_seconds()
        (last_time, last_used), self._last = self._last, (now, used)
        share = (used - last_used) / ((now - last_time) * self._cpus)
        # the kernel counts children in clock ticks, which the next reading may include
        return Reading(min(max(share, 0.0), 1.0), self._resident_bytes())

    def missing(self) -> str:
        """Return an empty text: CPU processes have no sensor of power."""
        return ""

    def close(self) -> None:
        """Release nothing: this sensor holds no device."""

    def _resident_bytes(self) -> int | None:
        try:
            return int(self._process.memory_info().rss)
        except psutil.Error:
            return None

    def _cpu_seconds(self) -> float:
        try:
            times = self._process.cpu_times()
        except psutil.Error:  # another process, which has ended
            return self._last[1]
        # finer than the kernel's ticks, but only available for this process
        seconds = time.process_time() if self._is_this_process else times.user + times.system
        seconds += times.children_user + times.children_system
        for child in self._children():
            with suppress(psutil.Error):  # it has just ended
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
    """Read a GPU by NVIDIA's management library, which needs no CUDA context.

    Args:
        nvml: The module pynvml.
        uuid: The device's UUID as CUDA gives it, without a prefix.

    Raises:
        pynvml.NVMLError: There is no driver, or no such device.
    """

    window_seconds = 1.0
    """NVML's utilization is that of the last second, or of a sixth of it, as the GPU has it."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._failures: dict[str, str] = {}
        self._available: set[str] = set()
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
        """Read the quantities that NVML reports, in percent, milliwatts and millijoules."""
        nvml = self._nvml
        rates = self._query("utilization", nvml.nvmlDeviceGetUtilizationRates)
        memory = self._memory()
        milliwatts = self._query("power", nvml.nvmlDeviceGetPowerUsage)
        millijoules = self._query("energy", nvml.nvmlDeviceGetTotalEnergyConsumption)
        reasons = self._query("throttling", nvml.nvmlDeviceGetCurrentClocksEventReasons)
        return Reading(
            utilization=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else int(memory.used),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            energy_joules=None if millijoules is None else millijoules / 1000,
            throttling=None if reasons is None else self._reasons(reasons),
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_utilization=None if rates is None else rates.memory / 100,
        )

    def limits(self) -> GpuLimits:
        """Read the limits in force, which NVML reports in milliwatts and megahertz."""
        nvml = self._nvml

        def highest(clock: int) -> int | None:
            megahertz = self._query("clock", lambda handle: nvml.nvmlDeviceGetMaxClockInfo(handle, clock))
            return None if megahertz is None else int(megahertz)

        milliwatts = self._query("power limit", nvml.nvmlDeviceGetEnforcedPowerLimit)
        memory = self._memory()
        return GpuLimits(
            power_watts=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=highest(nvml.NVML_CLOCK_SM),
            memory_clock_mhz=highest(nvml.NVML_CLOCK_MEM),
            memory_bytes=None if memory is None else int(memory.total),
        )

    def _memory(self) -> Any:
        nvml = self._nvml
        # the first version counts memory that the driver reserves as used
        return self._query(
            "memory", lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        )

    def missing(self) -> str:
        """Return the quantities that NVML never reported, with its errors."""
        return "; ".join(
            f"NVML gives no {quantity} ({error})"
            for quantity, error in self._failures.items()
            if quantity not in self._available
        )

    def close(self) -> None:
        """Release NVML, which counts its users: others in this process keep it."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _query(self, quantity: str, function: Callable[[Any], Any]) -> Any:
        try:
            value = function(self._handle)
        except self._nvml.NVMLError as error:
            self._failures.setdefault(quantity, str(error))
            return None
        self._available.add(quantity)
        return value

    def _reasons(self, bits: int) -> tuple[str, ...]:
        return tuple(name for constant, name in THROTTLING.items() if bits & getattr(self._nvml, constant))


def sensor_of(device: torch.device, cpus_per_device: int) -> tuple[Sensor | None, str]:
    """Return the sensor of a rank's device; None and the reason if there is none."""
    if device.type != "cuda":
        return CpuSensor(cpus_per_device), ""
    import torch  # noqa: PLC0415 - the process that watches a program has no torch

    return gpu_sensor(str(torch.cuda.get_device_properties(device).uuid))


def gpu_sensor(uuid: str) -> tuple[NvmlSensor | None, str]:
    """Return the sensor of a GPU; None and the reason if there is none.

    Args:
        uuid: The only identity that CUDA and NVML share: indices differ if CUDA_VISIBLE_DEVICES is set.
    """
    try:
        import pynvml  # noqa: PLC0415 - a machine without GPUs may not have it
    except ImportError:
        return None, "not monitored: the package nvidia-ml-py is not installed"
    try:
        return NvmlSensor(pynvml, uuid.removeprefix("GPU-").removeprefix("MIG-")), ""
    except pynvml.NVMLError as error:
        return None, f"not monitored: NVML: {error}"


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None if NVML does not report it."""
    try:
        import pynvml  # noqa: PLC0415 - a machine without GPUs may not have it
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
    """Return the limits of a GPU in force; None if NVML does not have it."""
    sensor, _ = gpu_sensor(uuid)
    if sensor is None:
        return None
    try:
        return sensor.limits()
    finally:
        sensor.close()
