"""Identify this process among the ranks, from RANK, LOCAL_RANK, WORLD_SIZE and SLURM_*."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from scalewise.config.shape import Shape
from scalewise.plan.launch import RANK_VARIABLES


@dataclass(frozen=True)
class Identity:
    """Place of this process in the run.

    Args:
        rank: Counted over all nodes, from 0.
        local_rank: Counted on this node, from 0.
        world_size: Number of ranks in all.
        local_world_size: Number of ranks on this node.
        host: This node's name.
        slurm_job_id: None outside Slurm.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str
    slurm_job_id: str | None


def identify(environ: Mapping[str, str], launcher: str) -> Identity:
    """Read the identity that the launcher gave this process.

    Args:
        environ: The process's variables. In a Slurm job, torchrun's ranks have those of both launchers.
        launcher: Names the variables to read.

    Raises:
        RuntimeError: Variables are missing; the message names them.
    """
    names = _SLURM_VARIABLES if launcher == "srun" else RANK_VARIABLES
    missing = [name for name in names if name not in environ]
    if missing:
        raise RuntimeError(
            f"this process was not started as a rank by {launcher}: {', '.join(missing)} not set. "
            "Only a job of Scalewise starts ranks."
        )
    if launcher == "srun":
        rank, local_rank, world_size, node = (int(environ[name]) for name in names[:4])
        local_world_size = tasks_on_node(environ["SLURM_STEP_TASKS_PER_NODE"], node)
    else:
        rank, local_rank, world_size, local_world_size = (int(environ[name]) for name in names)
    return Identity(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        host=socket.gethostname(),
        slurm_job_id=environ.get("SLURM_JOB_ID"),
    )


def node_rank(environ: Mapping[str, str]) -> int:
    """Return the number of this node in a Slurm job with one task per node; outside Slurm 0."""
    return int(environ.get("SLURM_PROCID", "0"))


def tasks_on_node(counts: str, node: int) -> int:
    """Return the number of tasks on one node, from Slurm's notation, such as ``4(x2),3``."""
    expanded: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        expanded += [int(tasks)] * int(times or 1)
    return expanded[node]


def check_place(identity: Identity, shape: Shape) -> None:
    """Check that the ranks are placed as planned.

    Raises:
        RuntimeError: They are not; the message names both shapes.
    """
    found = (identity.world_size, identity.local_world_size)
    if found != (shape.world_size, shape.devices_per_node):
        raise RuntimeError(
            f"planned were {shape.world_size} ranks, {shape.devices_per_node} on each node ({shape}), but "
            f"{found[0]} were started, {found[1]} of them on {identity.host}. Look for options in the site's "
            "slurm.extra that place tasks."
        )


_SLURM_VARIABLES = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE",
)
