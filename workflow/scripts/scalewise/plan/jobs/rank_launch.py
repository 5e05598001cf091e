"""How the ranks of a job are started, whatever they do: a training, the hello job, an all-reduce."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.records import LauncherName


class RankLaunch(BaseModel):
    """Where ranks run, and what starts them.

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
