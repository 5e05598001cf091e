"""Environment and command line of a rank of a user's program."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.execution.messages import RankSetup
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.catalog.program_files import command_for_folder, program_words
from scalewise.plan.config.program import ARGUMENT, FOLDER, ProgramSettings
from scalewise.plan.config.shape import Shape
from scalewise.plan.config.templates import fill_in
from scalewise.plan.jobs.launch import RANK_VARIABLES
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.training.distributed.identity import Identity
from scalewise.training.distributed.network_interface import choose_interface

PORTS = range(20_000, 32_000)
"""Ports that the kernel gives to no outgoing connection, which could take one before the program does."""


@dataclass(frozen=True)
class Meeting:
    """The address at which the ranks of a program meet."""

    host: str
    port: int


def meeting_of(rank_files: RankFiles, rank_setup: RankSetup, identity: Identity) -> Meeting:
    """The address at which rank 0 will wait: chosen there, and told to the others by the attempt's folder.

    Raises:
        TimeoutError: Rank 0 has not told it in time.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and "MASTER_PORT" in os.environ:
        return Meeting(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))  # torchrun's own
    if identity.rank == 0:
        nodes = rank_setup.shape.nodes
        address = choose_interface(nodes, rank_setup.network_interface).address
        meeting = Meeting(address, free_port(address))
        rank_files.publish_endpoint(meeting.host, meeting.port)
        return meeting
    point = rank_files.wait_for_endpoint(rank_setup.timeout_seconds)
    return Meeting(point.host, point.port)


def free_port(address: str) -> int:
    """A port that nobody listens on, out of a range that the kernel gives to nobody.

    Raises:
        OSError: None was found.
    """
    for port in random.SystemRandom().sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop} on {address}")


def template_values(definition: RunDefinition, settings: ProgramSettings, folder: Path) -> dict[str, object]:
    """Values of the names in braces that are the same on every rank."""
    shape = definition.shape
    return {
        "devices": shape.world_size,
        "devices_per_node": shape.devices_per_node,
        "nodes": shape.nodes,
        "batch_size_per_device": definition.batch_size_per_device,
        "global_batch_size": definition.global_batch_size,
        "accumulation_steps": settings.accumulation_steps,
        "seed": settings.seed,
        FOLDER: folder,
        **{f"{ARGUMENT}{name}": value for name, value in settings.argument.items()},
    }


def rank_values(
    values: Mapping[str, object], identity: Identity, meeting: Meeting, shape: Shape
) -> dict[str, object]:
    """The same, and what differs between nodes and ranks."""
    return {
        **values,
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "node_rank": identity.rank // shape.devices_per_node,
        "master_address": meeting.host,
        "master_port": meeting.port,
    }


def visible_gpus(environ: Mapping[str, str], number: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that shows the first GPUs of those that were given.

    Args:
        environ: Variables of the process. Slurm names in them the GPUs of a job, or of a single task.
        number: GPUs of the run on this node.
    """
    given = environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")
    entries = given.split(",") if given is not None else map(str, range(number))
    return ",".join(itertools.islice(entries, number))


def command(settings: ProgramSettings, values: Mapping[str, object], python: str) -> list[str]:
    """Interpreter, program and arguments."""
    words = [fill_in(str(word), values) for word in settings.arguments]
    runs_in = settings.working_directory
    *module, program = program_words(settings.program)
    if runs_in is not None and not module:
        program = str(Path(program).absolute())
    return [command_for_folder(settings.python or python, runs_in), *module, program, *words]


def variables(
    settings: ProgramSettings,
    values: Mapping[str, object],
    rank_setup: RankSetup,
    identity: Identity,
    startup: Path,
    probe_spec: Path,
) -> dict[str, str]:
    """All variables of one rank's program, beside those of this process.

    Those of torchrun are set whatever starts the ranks, also for a single one: programs look for RANK, and
    frameworks for TORCHELASTIC_RUN_ID, to take the way that several ranks take. A program that starts its
    own ranks gets none of them.

    Args:
        settings: The program's.
        values: Values of the names in braces on this rank.
        rank_setup: Says how ranks meet.
        identity: This rank's.
        startup: The folder that brings the probe into the program.
        probe_spec: The file that tells the probe what to measure.
    """
    found = {key: value for key, value in os.environ.items() if not key.startswith("SCALEWISE_")}
    shape = rank_setup.shape
    node_rank = str(values["node_rank"])
    # what a rank has printed must be in the log when it is killed
    found |= {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": str(values["master_address"]),
        "MASTER_PORT": str(values["master_port"]),
    }
    interface = choose_interface(shape.nodes, rank_setup.network_interface)
    # gloo would take the address of the host's name, which on many machines is a loopback one
    found.setdefault("GLOO_SOCKET_IFNAME", interface.name)
    if rank_setup.network_interface is not None:
        found.setdefault("NCCL_SOCKET_IFNAME", interface.name)
    if settings.starts == "ranks":
        place = (identity.rank, identity.local_rank, identity.world_size, identity.local_world_size)
        found |= {name: str(value) for name, value in zip(RANK_VARIABLES, place, strict=True)}
        found |= {"NODE_RANK": node_rank, "GROUP_RANK": node_rank}
        found.setdefault("TORCHELASTIC_RUN_ID", "scalewise")
    else:
        found = {key: value for key, value in found.items() if key not in RANK_VARIABLES}
        found["NODE_RANK"] = node_rank
    # a program takes each GPU that it sees
    gpus = visible_gpus(found, 0 if rank_setup.accelerator == "cpu" else shape.devices_per_node)
    found["CUDA_VISIBLE_DEVICES"] = gpus
    if not found.keys().isdisjoint(("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")):
        # ROCm prefers it, and counts within the GPUs of ROCR_VISIBLE_DEVICES
        found["HIP_VISIBLE_DEVICES"] = gpus
    found |= {name: fill_in(str(value), values) for name, value in settings.environment.items()}
    path = os.pathsep.join(filter(None, (str(startup), found.get("PYTHONPATH"))))
    return found | {"PYTHONPATH": path, "SCALEWISE_PROBE": str(probe_spec)}
