"""End of a training after its last step, by an exception that programs and frameworks let through."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process, util
from time import monotonic, sleep
from typing import NoReturn

import torch

MOST_EXITS = 3
"""Exits that a program may swallow; then Scalewise ends the process without it."""

WAITS_SECONDS = 60.0
"""Longest wait for the other ranks at the last step."""


class Ending:
    """Ends this process with exit status 0, all ranks after the same step."""

    def __init__(self) -> None:
        self.raised_exits = 0
        """Times that SystemExit was raised."""
        self.device: torch.device | None = None
        """The GPU that is trained on; None for a CPU process."""

    def end(self) -> NoReturn:
        """Raise SystemExit, again after each step of a program that swallows it.

        The process group stays: what the program does at its end may use it.
        """
        self.raised_exits += 1
        if self.raised_exits > MOST_EXITS:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(0)
        if self.raised_exits == 1:
            with suppress(Exception):
                wait_for_ranks(self.device)
        raise SystemExit(0)

    def at_exit(self) -> None:
        """Leave the process group, if the program was ended before it could."""
        distributed = torch.distributed
        if self.raised_exits and distributed.is_available() and distributed.is_initialized():
            with suppress(Exception):
                distributed.destroy_process_group()


def wait_for_ranks(device: torch.device | None) -> None:
    """Wait until all ranks are here: none may leave while another one still exchanges gradients.

    Args:
        device: The GPU that is trained on, for NCCL's barrier; None for a CPU process.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    devices = None
    if "nccl" in distributed.get_backend():
        devices = [torch.cuda.current_device() if device is None else device.index]
    waiting = distributed.barrier(async_op=True, device_ids=devices)
    until = monotonic() + WAITS_SECONDS
    while waiting is not None and not waiting.is_completed() and monotonic() < until:
        sleep(0.001)


def finish_with_multiprocessing(function: Callable[[], None]) -> None:
    """Call a function at the end of a process that multiprocessing has forked: it runs no atexit handlers."""
    if parent_process() is not None:
        util.Finalize(None, function, exitpriority=0)
