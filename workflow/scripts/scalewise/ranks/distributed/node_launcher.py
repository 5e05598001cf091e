"""Start the ranks of one node by a torchrun agent."""

from __future__ import annotations

import os
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed import run as torchrun

from scalewise.execution.messages import RankSetup
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.launch import standalone_options
from scalewise.ranks.distributed.identity import node_rank
from scalewise.ranks.distributed.network_interface import choose_interface


def start_ranks(script: Path, rank_files: RankFiles) -> None:
    """Start the ranks of this node and wait for them.

    Args:
        script: The program of a rank; its argument is the attempt's folder.
        rank_files: The attempt's folder, with the launcher and the rendezvous.
    """
    rank_setup = rank_files.rank_setup()
    if rank_setup.shape.nodes == 1:
        options = standalone_options(rank_setup.shape.devices_per_node)
        torchrun.main([*options, str(script), str(rank_files.folder)])
    else:
        _torchrun_of_several_nodes(script, rank_files, rank_setup)


def _torchrun_of_several_nodes(script: Path, rank_files: RankFiles, rank_setup: RankSetup) -> None:
    """Run this node's torchrun agent.

    This process hosts the store, not the agent: the agent would need a port that is known to be free.
    """
    shape, seconds = rank_setup.shape, rank_setup.timeout_seconds
    interface = choose_interface(shape.nodes, rank_setup.network_interface)
    conf = [f"join_timeout={seconds}", f"read_timeout={seconds}"]
    if rank_setup.rendezvous == "file":
        endpoint = f"{rank_files.rendezvous_file}.agents"
        conf.append("store_type=file")
        store = None
    else:
        timeout = timedelta(seconds=seconds)
        store = open_store(rank_files, node_rank(os.environ) == 0, interface.address, timeout)
        endpoint = f"{store.host}:{store.port}"
        conf.append("is_host=false")
    # the same on all nodes; torchrun names a folder after it, so it is no path
    rendezvous_id = sha256(os.fsencode(rank_files.folder.absolute())).hexdigest()[:16]
    torchrun.main(
        [
            f"--nnodes={shape.nodes}",
            f"--nproc-per-node={shape.devices_per_node}",
            f"--node-rank={node_rank(os.environ)}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            f"--rdzv-id={rendezvous_id}",
            f"--rdzv-conf={','.join(conf)}",
            # the address of this host that the others reach
            f"--local-addr={interface.address}",
            "--max-restarts=0",
            str(script),
            str(rank_files.folder),
        ]
    )
    del store  # kept open until every agent has ended


def open_store(rank_files: RankFiles, host: bool, address: str, timeout: timedelta) -> TCPStore:
    """Open the store by which the agents of the nodes find each other.

    The system chooses a free port, and the others read it from the attempt's folder. So any number of runs
    start on one node at once, and nothing depends on host names or a batch system's commands.

    Args:
        rank_files: The attempt's folder, which all of them see.
        host: True in the process that hosts the store.
        address: This host's IPv4 address.
        timeout: A process waits this long for another.
    """
    if host:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        rank_files.publish_endpoint(address, store.port)
        return store
    point = rank_files.wait_for_endpoint(timeout.total_seconds())
    return TCPStore(point.host, point.port, is_master=False, timeout=timeout)
