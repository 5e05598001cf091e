"""Clocks of the devices, which may run behind their host."""

from __future__ import annotations

import time
from typing import Protocol, TypeVar

import torch

Mark = TypeVar("Mark")


class DeviceTimer(Protocol[Mark]):
    """A clock that a device may run behind: marks are cheap, reading them needs ``synchronize``."""

    def record(self) -> Mark:
        """Mark this point in time on the device's own clock."""

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""

    def seconds(self, start: Mark, end: Mark) -> float:
        """Seconds between two marks; valid once the device has come to them."""


class HostTimer:
    """The clock of a CPU process, which never runs behind it."""

    def record(self) -> float:
        """Monotonic seconds."""
        return time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: nothing is ever pending."""

    def seconds(self, start: float, end: float) -> float:
        """Seconds between two marks."""
        return end - start


class CudaTimer:
    """The clock of a GPU: events in its stream, read without stopping it between steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self) -> torch.cuda.Event:
        """An event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self._device)

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events, of which CUDA gives milliseconds."""
        return float(start.elapsed_time(end)) / 1e3


def timer_for(device: torch.device) -> HostTimer | CudaTimer:
    """The clock of a device."""
    return CudaTimer(device) if device.type == "cuda" else HostTimer()
