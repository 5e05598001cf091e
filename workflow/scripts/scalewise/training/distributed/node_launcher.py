"""The process of one node that starts the ranks there: a torchrun agent, or torch.multiprocessing."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

from torch.distributed import run as torchrun
from torch.multiprocessing.spawn import spawn

from scalewise.execution.messages import RankSetup
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.shape import Shape
from scalewise.plan.jobs.launch import rank_environment, standalone_options
from scalewise.training.distributed.identity import node_rank
from scalewise.training.distributed.network_interface import choose_interface
from scalewise.training.distributed.process_group import open_store


def start_ranks(script: Path, rank_files: RankFiles) -> None:
    """Start the ranks of this node and wait for them.

    Args:
        script: The program of a rank; its argument is the folder that ranks read.
        rank_files: Holds how ranks are started and meet.
    """
    rank_setup = rank_files.rank_setup()
    if rank_setup.launcher == "spawn":
        _spawn(script, rank_files, rank_setup)
    else:
        _torchrun_agent(script, rank_files, rank_setup)


def _torchrun_agent(script: Path, rank_files: RankFiles, rank_setup: RankSetup) -> None:
    """The agent of this node."""
    shape = rank_setup.shape
    if shape.nodes == 1:
        torchrun.main([*standalone_options(shape.devices_per_node), str(script), str(rank_files.folder)])
    else:
        _agent_among_others(script, rank_files, rank_setup, shape)


def _agent_among_others(script: Path, rank_files: RankFiles, rank_setup: RankSetup, shape: Shape) -> None:
    """An agent among those of several nodes.

    The store belongs to this process and not to the agent, which could be given no port that is sure
    to be free. ``--local-addr``: the address of this host that the others reach.
    """
    interface = choose_interface(shape.nodes, rank_setup.network_interface)
    timeout = timedelta(seconds=rank_setup.timeout_seconds)
    conf = [f"join_timeout={rank_setup.timeout_seconds}", f"read_timeout={rank_setup.timeout_seconds}"]
    if rank_setup.rendezvous == "file":
        endpoint = f"{rank_files.rendezvous_file}.agents"
        conf.append("store_type=file")
        store = None
    else:
        store = open_store(rank_files, node_rank(os.environ) == 0, interface.address, timeout)
        endpoint = f"{store.host}:{store.port}"
        conf.append("is_host=false")
    torchrun.main(
        [
            f"--nnodes={shape.nodes}",
            f"--nproc-per-node={shape.devices_per_node}",
            f"--node-rank={node_rank(os.environ)}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            f"--rdzv-id={_meeting_name(rank_files)}",
            f"--rdzv-conf={','.join(conf)}",
            f"--local-addr={interface.address}",
            "--max-restarts=0",
            str(script),
            str(rank_files.folder),
        ]
    )
    del store  # held until every agent has ended


def _meeting_name(rank_files: RankFiles) -> str:
    """The name that the agents of one start share; torchrun names a folder after it, so it is no path."""
    return sha256(os.fsencode(rank_files.folder.absolute())).hexdigest()[:16]


def _spawn(script: Path, rank_files: RankFiles, rank_setup: RankSetup) -> None:
    shape = rank_setup.shape
    arguments = (node_rank(os.environ), shape, str(script), str(rank_files.folder))
    # the ranks inherit it: until they have loaded torch, nothing in them heeds a signal that ends a process
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    ranks = spawn(_spawned, arguments, nprocs=shape.devices_per_node, join=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    while not ranks.join():
        pass


def _spawned(local_rank: int, node: int, shape: Shape, script: str, folder: str) -> None:
    """A rank, told who it is by the variables that torchrun would set.

    A signal that came until here is dropped: the process that started this one has handed it on.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    os.environ.update(rank_environment(local_rank, shape, node))
    sys.argv = [script, folder]
    runpy.run_path(script, run_name="__main__")
