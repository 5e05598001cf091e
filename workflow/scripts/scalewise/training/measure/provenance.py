"""Origin of a number: commit, versions, devices. These alone are recorded, never the whole environment."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from scalewise import __version__
from scalewise.plan.config.site import cpu_model
from scalewise.records import CPU_PROCESS, Environment, GpuLimits
from scalewise.training.measure.environments import operating_system
from scalewise.training.measure.sensors import NvmlSensor, driver_version, sensor_of

_PACKAGES = ("torch", "torchvision", "numpy", "safetensors", "snakemake", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of Scalewise, Python and the libraries that matter to a measurement."""
    found = {"scalewise": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.cuda.is_initialized():  # this process works on a GPU, not only beside one
        found |= _gpu_versions()
    return found


def _gpu_versions() -> dict[str, str]:
    """Versions of the driver, as NVML tells it, and of NCCL; unknown ones are left out."""
    found = {}
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    if (driver := driver_version()) is not None:
        found["driver"] = driver
    return found


def device_name(device: torch.device) -> str:
    """The device's name, such as ``NVIDIA H200``, or ``CPU process``."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return CPU_PROCESS


def environment(host: str) -> Environment:
    """The environment of this process, on its own host."""
    return Environment(
        hosts=[host], cpu_model=cpu_model(), operating_system=operating_system(), versions=versions()
    )


def gpu_limits(device: torch.device) -> GpuLimits | None:
    """The limits of a GPU in force; None for a CPU process and where NVML does not know the device."""
    if device.type != "cuda":
        return None
    sensor, _ = sensor_of(device, cpus_per_device=1)
    if not isinstance(sensor, NvmlSensor):
        return None
    try:
        return sensor.limits()
    finally:
        sensor.close()
