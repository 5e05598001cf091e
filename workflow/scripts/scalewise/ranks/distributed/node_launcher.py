"""Start the ranks of one node by a torchrun agent, as a task of srun."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from torch.distributed import run as torchrun

from scalewise.execution.rank_files import RankFiles
from scalewise.plan.launch import standalone_options
from scalewise.ranks.distributed.identity import node_rank
from scalewise.ranks.distributed.network_interface import choose_interface, free_port


def start_ranks(script: Path, rank_files: RankFiles) -> None:
    """Start the ranks of this node and wait for them.

    Args:
        script: The program of a rank; its argument is the folder of the ranks' files.
        rank_files: The files of the ranks.
    """
    torchrun.main([*agent_options(rank_files), str(script), str(rank_files.folder)])


def agent_options(rank_files: RankFiles) -> Iterator[str]:
    """Yield the options of this node's agent.

    The first node's chooses a free port, and the others read it from the folder. So any number of runs start
    on one node at once, and nothing depends on host names or a batch system's commands.
    """
    setup = rank_files.setup
    shape, seconds, node = setup.definition.shape, setup.timeout_seconds, node_rank(os.environ)
    if shape.nodes == 1:
        yield from standalone_options(shape.devices_per_node)
        return
    interface = choose_interface(shape.nodes, setup.network_interface)
    yield from (f"--nnodes={shape.nodes}", f"--nproc-per-node={shape.devices_per_node}")
    yield from (f"--node-rank={node}", "--max-restarts=0", f"--local-addr={interface.address}")
    if setup.definition.settings.rendezvous == "file":
        yield from ("--rdzv-backend=c10d", f"--rdzv-endpoint={rank_files.rendezvous_file}.agents")
        yield from ("--rdzv-id=agents", f"--rdzv-conf=store_type=file,join_timeout={seconds}")
        return
    if node == 0:
        rank_files.publish_endpoint(interface.address, free_port(interface.address))
    host, port = rank_files.wait_for_endpoint(seconds)
    yield from (f"--master-addr={host}", f"--master-port={port}")
