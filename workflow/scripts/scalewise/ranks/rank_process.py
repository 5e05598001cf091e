"""Begin and end the process of a rank: identity, CPUs and device, heartbeats, and the error that ends it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import torch

from scalewise.execution.messages import RankSetup, is_out_of_memory
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.signals import exit_when_parent_dies
from scalewise.ranks.distributed.devices import claim_cpus, claim_device
from scalewise.ranks.distributed.identity import Identity, check_place, identify


def initialize_rank(rank_files: RankFiles, rank_setup: RankSetup) -> tuple[Identity, str, torch.device]:
    """Claim this rank's CPUs and device, and let the supervisor see the rank.

    Returns:
        The rank's identity, the CPUs it may run on, such as ``0-3,8``, and its device.

    Raises:
        RuntimeError: Place, CPUs or device are not as planned.
    """
    identity = identify(os.environ, rank_setup.launcher)
    rank_files.started(identity.rank, identity.host)
    rank_files.keep_fault(identity.rank)
    exit_when_parent_dies(rank_setup.supervisor_pid, rank_setup.supervisor_host == identity.host)
    if identity.rank == 0:
        rank_files.start_heartbeats()
    check_place(identity, rank_setup.shape)
    affinity = claim_cpus(rank_setup.accelerator, identity, rank_setup.cpus_per_device)
    in_slurm = identity.slurm_job_id is not None
    device = claim_device(rank_setup.accelerator, identity.local_rank, in_slurm=in_slurm)
    return identity, affinity, device


def install_sigterm_handler(rank_files: RankFiles, rank: int) -> None:
    """Leave a note at SIGTERM, which a launcher sends to the peers of a failed rank; SIGKILL leaves none."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # the folder may be gone, or be used by another attempt
            rank_files.terminated(rank)
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, stop)


def run_and_report_errors(rank_files: RankFiles, work: Callable[[], None]) -> None:
    """Do a rank's work; write an exception to a file for the supervisor before raising it again."""
    rank = identify(os.environ, rank_files.rank_setup().launcher).rank
    install_sigterm_handler(rank_files, rank)
    try:
        work()
    except Exception as error:
        # a loader process that ends makes torch raise at any line, so also in those below
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out_of_memory = is_out_of_memory(f"{type(error).__name__}: {error}")
        # a full disk or a missing folder must not hide the error, which is printed as it is raised again
        with suppress(OSError):
            rank_files.failed(rank, socket.gethostname(), error, out_of_memory)
        raise
