"""Command line and environment of a rank of a user's program, with the probe on its PYTHONPATH."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from scalewise.config.program import FOLDER, ProgramSettings, program_command
from scalewise.config.templates import fill_in
from scalewise.execution.rank_files import RankFiles, RankSetup
from scalewise.plan.launch import RANK_VARIABLES
from scalewise.plan.run_definition import RunDefinition, run_values
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.distributed.network_interface import choose_interface, free_port

Endpoint = tuple[str, int]
"""Host and port of the rendezvous."""

PROBE = Path(__file__).resolve().parents[2] / "measure"


def write_startup(folder: Path) -> None:
    """Write the ``sitecustomize.py`` that the interpreter runs as it starts; it changes no environment.

    It is the source of ``measure/startup.py`` with a call at its end: a process that never imports torch
    loads no other file of the probe.

    Args:
        folder: Created if missing. It comes first on PYTHONPATH.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = (PROBE / "startup.py").read_text(encoding="utf-8")
    call = f"\n\nbegin({str(PROBE)!r}, {str(folder.resolve())!r})\n"
    (folder / "sitecustomize.py").write_text(source + call, encoding="utf-8")


def find_endpoint(rank_files: RankFiles, rank_setup: RankSetup, identity: Identity) -> Endpoint:
    """Return the address of the rendezvous: rank 0 chooses it, the others read it.

    Raises:
        TimeoutError: Rank 0 has not published it in time.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and "MASTER_PORT" in os.environ:
        endpoint = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])  # by torchrun
        if identity.rank == 0:
            rank_files.publish_endpoint(*endpoint)
        return endpoint
    if identity.rank == 0:
        address = choose_interface(rank_setup.definition.shape.nodes, rank_setup.network_interface).address
        rank_files.publish_endpoint(address, free_port(address))
    return rank_files.wait_for_endpoint(rank_setup.timeout_seconds)


def template_values(
    definition: RunDefinition,
    settings: ProgramSettings,
    folder: Path,
    identity: Identity,
    endpoint: Endpoint,
) -> dict[str, object]:
    """Return the values of the names in braces on a rank."""
    return {
        **run_values(definition, settings),
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "node_rank": identity.rank // definition.shape.devices_per_node,
        "master_address": endpoint[0],
        "master_port": endpoint[1],
        FOLDER: folder,
    }


def first_gpus(environ: Mapping[str, str], number: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that shows the first of the available GPUs.

    Args:
        environ: Variables of the process. Slurm sets them to the GPUs of a job, or of a single task.
        number: GPUs of the run on this node.
    """
    available = environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")
    gpus = map(str, range(number)) if available is None else available.split(",")
    return ",".join(itertools.islice(gpus, number))


def set_interface(environ: MutableMapping[str, str], rank_setup: RankSetup) -> None:
    """Set the network interface of gloo, and of NCCL if the site file names one; the user's variables stay.

    Raises:
        RuntimeError: This host does not have it.
    """
    interface = choose_interface(rank_setup.definition.shape.nodes, rank_setup.network_interface)
    # gloo would use the address of the host's name, which is a loopback address on many machines
    environ.setdefault("GLOO_SOCKET_IFNAME", interface.name)
    if rank_setup.network_interface is not None:
        environ.setdefault("NCCL_SOCKET_IFNAME", rank_setup.network_interface)


def own_gpu(environ: Mapping[str, str], rank_setup: RankSetup, identity: Identity, ranks: int = 1) -> str:
    """Return the GPU of a rank as CUDA_VISIBLE_DEVICES names it; empty for a CPU process, or several ranks.

    Raises:
        RuntimeError: The ranks do not see the GPUs with their local numbers.
    """
    if rank_setup.definition.accelerator == "cpu":
        return ""
    visible = first_gpus(environ, rank_setup.definition.shape.devices_per_node)
    check_gpus(visible, identity, ranks)
    return visible.split(",")[identity.local_rank] if ranks == 1 else ""


def check_gpus(visible: str, identity: Identity, ranks: int) -> None:
    """Refuse ranks that do not see the GPU with their local number, before anything is started.

    Args:
        visible: The value of CUDA_VISIBLE_DEVICES.
        identity: The rank, or the first of several that a process starts.
        ranks: Number of ranks that this process starts.

    Raises:
        RuntimeError: They do not; the message has the fix.
    """
    listed = [each for each in visible.split(",") if each]
    if any(each.startswith("MIG-") for each in listed) and identity.local_world_size > 1:
        raise RuntimeError(
            f"{identity.host} has MIG instances ({visible}): CUDA shows one of them to a process, and NCCL "
            "does not span them. Use one device a node, or whole GPUs."
        )
    if identity.local_rank + ranks <= len(listed):
        return
    sees = "one GPU" if len(listed) == 1 else f"{len(listed)} GPUs"
    if identity.slurm_job_id is not None and len(listed) == 1:
        fix = (
            "Slurm binds GPUs to tasks here: remove options such as --gpu-bind and --gpus-per-task from the "
            "site's slurm.extra, or add a line such as `export CUDA_VISIBLE_DEVICES=0,1,2,3` to its prelude."
        )
    else:
        fix = "Unset that variable or name more GPUs in it, or correct devices_per_node in the site file."
    raise RuntimeError(
        f"local rank {identity.local_rank + ranks - 1} on {identity.host} sees {sees} only "
        f"(CUDA_VISIBLE_DEVICES={visible}). {fix}"
    )


def build_command(settings: ProgramSettings, values: Mapping[str, object], python: str) -> list[str]:
    """Return interpreter, program and arguments."""
    return program_command(settings, python, [fill_in(str(word), values) for word in settings.arguments])


def build_environment(
    settings: ProgramSettings,
    values: Mapping[str, object],
    rank_setup: RankSetup,
    identity: Identity,
    startup: Path,
    probe_spec: Path,
) -> dict[str, str]:
    """Return the variables of one rank's program: those of this process, with changes.

    torchrun's are set for every launcher, also for a single rank: programs read RANK, and frameworks
    TORCHELASTIC_RUN_ID, to train as one of several ranks. A program that starts its ranks itself gets none
    of them.

    Args:
        settings: The program's.
        values: Values of the names in braces on this rank.
        rank_setup: The rendezvous of the ranks.
        identity: This rank.
        startup: The folder of ``write_startup``.
        probe_spec: The file that states what the probe measures.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SCALEWISE_")}
    shape = rank_setup.definition.shape
    node_rank = str(values["node_rank"])
    # a killed rank's output must be in the log
    environment |= {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": str(values["master_address"]),
        "MASTER_PORT": str(values["master_port"]),
    }
    set_interface(environment, rank_setup)
    if settings.starts == "ranks":
        place = (identity.rank, identity.local_rank, identity.world_size, identity.local_world_size)
        environment |= {name: str(value) for name, value in zip(RANK_VARIABLES, place, strict=True)}
        environment |= {"NODE_RANK": node_rank, "GROUP_RANK": node_rank}
        environment.setdefault("TORCHELASTIC_RUN_ID", "scalewise")
    else:
        environment = {key: value for key, value in environment.items() if key not in RANK_VARIABLES}
        environment["NODE_RANK"] = node_rank
    # a program takes each GPU that it sees
    gpus = first_gpus(
        environment, 0 if rank_setup.definition.accelerator == "cpu" else shape.devices_per_node
    )
    environment["CUDA_VISIBLE_DEVICES"] = gpus
    if not environment.keys().isdisjoint(("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")):
        # ROCm prefers it, and counts within the GPUs of ROCR_VISIBLE_DEVICES
        environment["HIP_VISIBLE_DEVICES"] = gpus
    environment |= {name: fill_in(str(value), values) for name, value in settings.environment.items()}
    path = os.pathsep.join(filter(None, (str(startup), environment.get("PYTHONPATH"))))
    return environment | {"PYTHONPATH": path, "SCALEWISE_PROBE": str(probe_spec)}
