"""The start of a job's ranks, whatever they do: a training, the hello job, an all-reduce."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.records import LauncherName


class RankLaunch(BaseModel):
    """The place and the launcher of ranks.

    Args:
        shape: Nodes x devices per node, as text.
        cpus_per_device: Threads of each rank.
        rendezvous: ``tcp``, or ``file`` where a cluster closes its ports.
    """

    model_config = ConfigDict(frozen=True)

    shape: str
    accelerator: Literal["cpu", "cuda"]
    cpus_per_device: int
    launcher: LauncherName
    rendezvous: Literal["tcp", "file"]
