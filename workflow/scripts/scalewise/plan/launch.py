"""The one place that builds the command that starts the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.plan.topology import Shape


@dataclass(frozen=True)
class Launch:
    """A command and what it adds to the environment; never a line for a shell to split.

    Args:
        name: of the launcher, for the records.
        argv: program and arguments.
        environment: variables of every rank.
    """

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]


def torchrun(python: str, program: Sequence[str], shape: Shape, cpus_per_device: int) -> Launch:
    """Start the ranks of a run on this machine, one device or many alike.

    ``--standalone`` lets the store choose a free port. ``--local-addr`` keeps a host name that does
    not resolve from hanging the rendezvous.

    Args:
        python: interpreter of the ranks.
        program: script and arguments of a rank.
        shape: must be one node.
        cpus_per_device: threads of each rank.
    """
    if shape.nodes != 1:
        raise ValueError(f"torchrun on one machine cannot start {shape.nodes} nodes")
    argv = (
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nnodes=1",
        f"--nproc-per-node={shape.devices_per_node}",
        *program,
    )
    return Launch("torchrun", argv, thread_environment(cpus_per_device))


def thread_environment(cpus_per_device: int) -> dict[str, str]:
    """Thread counts that libraries read when they are loaded; set in every rank."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(cpus_per_device))
