"""Build the command with which a job starts the ranks of a run.

Under Slurm, this command starts a process on each node, which starts torchrun
(ranks/distributed/node_launcher.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.config.settings import LauncherName
from scalewise.config.shape import Shape, ShapeText
from scalewise.config.site import Container, Site
from scalewise.plan.runs.run_definition import RunDefinition


class RankLaunch(BaseModel):
    """The shape and the launcher of ranks.

    Args:
        cpus_per_device: Threads of each rank.
        rendezvous: ``tcp``, or ``file`` if a cluster closes its ports.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    shape: ShapeText
    accelerator: Literal["cpu", "cuda"]
    cpus_per_device: int
    launcher: LauncherName
    rendezvous: Literal["tcp", "file"]

    @classmethod
    def for_run(cls, run: RunDefinition) -> RankLaunch:
        """Take the facts from a run."""
        return cls(
            shape=run.shape,
            accelerator=run.accelerator,
            cpus_per_device=run.settings.cpus_per_device,
            launcher=run.launcher,
            rendezvous=run.settings.rendezvous,
        )


class SiteLaunch(BaseModel):
    """Facts of a site that decide how ranks start there.

    Args:
        slurm: Whether srun starts a job's ranks, inside its allocation.
        python: Interpreter of the ranks; None for the one that runs now.
        prelude: Lines of shell before the program, on every node, outside of a container.
        container: Image, runtime and lines of shell inside; None without a container.
        container_arguments: Options of the container's program before the image.
        network_interface: Interface between nodes; None for the one with the address of the node's name.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    slurm: bool = False
    python: str | None = None
    prelude: tuple[str, ...] = ()
    container: Container | None = None
    container_arguments: tuple[str, ...] = ()
    network_interface: str | None = None

    @classmethod
    def of(cls, site: Site) -> SiteLaunch:
        """Take the facts from a checked site."""
        facts = site.facts
        arguments: Sequence[str] = ["--nv"] if site.accelerator == "cuda" else []
        if facts.container is not None and facts.container.arguments is not None:
            arguments = facts.container.arguments
        return cls(
            slurm=site.slurm is not None,
            python=facts.python,
            prelude=tuple(facts.prelude),
            container=facts.container,
            container_arguments=tuple(arguments),
            network_interface=facts.network_interface,
        )


@dataclass(frozen=True)
class Launch:
    """A command with its additions to the environment; no shell splits it.

    Args:
        name: The launcher, for the records.
        argv: Program and arguments.
        environment: Variables of every rank.
        process_environments: Further variables of each process to start: every rank, or the process that
            starts them.
        shown: The command for logs, which others may read: without prelude and container, which may hold
            secrets.
    """

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    process_environments: tuple[dict[str, str], ...] = ({},)
    shown: tuple[str, ...] = ()


def build_launch(
    ranks: RankLaunch,
    site: SiteLaunch,
    rank_words: Sequence[str],
    python: str,
    visible: Sequence[Path],
    *,
    once_a_node: bool = False,
) -> Launch:
    """Build the command that starts the ranks of a run.

    Args:
        ranks: Their launcher is srun (a task per device), popen (a process per device, on this machine),
            torchrun or spawn (a process per node).
        site: Facts of the site.
        rank_words: Script and arguments of one rank; ``start_ranks.py``, which starts the ranks of a node, is
            in the same folder.
        python: Interpreter if neither site nor container name one.
        visible: Folders that the ranks read and write, for the container.
        once_a_node: Start one process a node, with any launcher; the process starts its ranks.
    """
    launcher, shape = ranks.launcher, ranks.shape
    interpreter = site.python or (python if site.container is None else "python3")
    process_environments: tuple[dict[str, str], ...] = ({},)
    tasks_per_node = 1
    if once_a_node:
        program: tuple[str, ...] = (interpreter, "-u", *rank_words)
    elif launcher == "srun":
        program = (interpreter, *rank_words)
        tasks_per_node = shape.devices_per_node
    elif launcher == "popen":
        # -u: the output of a killed rank must be in the log
        program = (interpreter, "-u", *rank_words)
        tasks_per_node = shape.devices_per_node
        process_environments = tuple(
            rank_environment(local, shape) for local in range(shape.devices_per_node)
        )
        if site.container is not None:
            process_environments = tuple(map(keep_in_container, process_environments))
    # under Slurm, start_ranks.py starts torchrun and handles the signal before a job's end
    elif launcher == "torchrun" and shape.nodes == 1 and not site.slurm:
        program = torchrun_standalone(interpreter, shape.devices_per_node, rank_words)
    else:
        program = (interpreter, str(Path(rank_words[0]).with_name("start_ranks.py")), *rank_words)
    step: tuple[str, ...] = ()
    if site.slurm:
        cpus_per_task = ranks.cpus_per_device * shape.devices_per_node // tasks_per_node
        step = srun_step(shape.nodes, tasks_per_node, cpus_per_task)
    hidden = [f"[{key}]" for key in ("prelude", "container") if getattr(site, key)]
    return Launch(
        launcher,
        (*step, *site_command(site, visible, program)),
        thread_environment(ranks.cpus_per_device),
        process_environments,
        shown=(*step, *hidden, *program),
    )


def torchrun_standalone(python: str, processes: int, program: Sequence[str]) -> tuple[str, ...]:
    """Return the command that starts the ranks of one node by torchrun.

    ``--standalone`` lets the store choose a free port. Without ``--local-addr`` the rendezvous hangs if the
    host name does not resolve.
    """
    return (python, "-m", "torch.distributed.run", *standalone_options(processes), *program)


def standalone_options(processes: int) -> tuple[str, ...]:
    """Return the options of torchrun for the ranks of one node."""
    return ("--standalone", "--local-addr=127.0.0.1", "--nnodes=1", f"--nproc-per-node={processes}")


def srun_step(nodes: int, tasks_per_node: int, cpus_per_task: int) -> tuple[str, ...]:
    """Return the start of a command that runs a program as a job step, with the same tasks on each node.

    All options are given: the executor removes Slurm's variables from the job's environment, and srun
    has not inherited ``--cpus-per-task`` since 22.05. Without ``--kill-on-bad-exit`` the peers of a
    dead rank would continue. ``--mpi=none``: the ranks find each other.
    """
    return (
        *("srun", "--kill-on-bad-exit=1", "--mpi=none", "--input=none"),
        *(f"--nodes={nodes}", f"--ntasks={nodes * tasks_per_node}", f"--ntasks-per-node={tasks_per_node}"),
        f"--cpus-per-task={cpus_per_task}",
    )


def site_command(start: SiteLaunch, visible: Sequence[Path], program: Sequence[str]) -> tuple[str, ...]:
    """Build the site's command for a program: prelude, container, the container's prelude, the program.

    Args:
        start: Facts of the site.
        visible: Folders that are visible in the container, in addition to the working folder.
        program: The program and its arguments.
    """
    container = start.container
    if container is not None:
        here = Path.cwd()
        folders = dict.fromkeys(str(path) for path in (here, *visible))
        binds = [f"--bind={folder}" for folder in (*folders, *container.binds)]
        program = (
            *(container.runtime, "exec", *start.container_arguments, *binds, f"--pwd={here}"),
            *(container.image, *with_prelude(container.prelude, program, "container.prelude")),
        )
    return with_prelude(start.prelude, program)


_PRELUDE = """\
trap 'echo "scalewise: this line of {key} failed: $scalewise_command" >&2; exit 1' EXIT
{steps}
trap - EXIT
exec "$@\""""
"""``eval`` limits an open quote or a comment to its line; the trap also handles ``exit`` and ``set -e``."""


def with_prelude(lines: Sequence[str], program: Sequence[str], key: str = "prelude") -> tuple[str, ...]:
    """Build a command that runs lines of shell, then the program.

    A line that fails ends the run; the message names the key, the line's number and its command.
    """
    if not lines:
        return tuple(program)
    steps = (
        f"scalewise_command={shlex.quote(f'{_first_word(line)} (line {number} of {len(lines)})')}\n"
        f'scalewise_line={shlex.quote(line)}\neval "$scalewise_line" || exit'
        for number, line in enumerate(lines, 1)
    )
    return ("bash", "-c", _PRELUDE.format(key=key, steps="\n".join(steps)), key, *program)


def _first_word(line: str) -> str:
    """Return the command of a line of shell without the rest, which may hold a secret."""
    match = re.match(r"\W*[\w./+-]*", line)
    word = match[0] if match is not None else ""
    return word if word == line.rstrip() else f"{word} ..."


RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that identify a rank. torchrun sets them, and so do popen and spawn."""


def rank_environment(local_rank: int, shape: Shape, node_rank: int = 0) -> dict[str, str]:
    """Return the ``RANK_VARIABLES`` of one rank; ranks of a node and nodes are counted from 0."""
    rank = node_rank * shape.devices_per_node + local_rank
    place = (rank, local_rank, shape.world_size, shape.devices_per_node)
    return {name: str(value) for name, value in zip(RANK_VARIABLES, place, strict=True)}


def keep_in_container(variables: Mapping[str, str]) -> dict[str, str]:
    """Add copies of variables that a container's program gets although ``--cleanenv`` removes all others.

    Source: Apptainer's and Singularity's user guides, "Environment and Metadata".
    """
    prefixes = ("", "APPTAINERENV_", "SINGULARITYENV_")
    return {f"{prefix}{name}": value for prefix in prefixes for name, value in variables.items()}


def thread_environment(cpus_per_device: int) -> dict[str, str]:
    """Return the variables for the thread count of each rank, which libraries read when they are loaded."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(cpus_per_device))
