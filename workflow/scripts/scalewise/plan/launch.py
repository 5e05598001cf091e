"""Build the command with which a job starts the ranks of a run.

Under Slurm, this command starts a process on each node, which starts torchrun
(ranks/distributed/node_launcher.py).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.config.program import ProgramSettings, program_files
from scalewise.config.shape import Shape
from scalewise.config.site import Site
from scalewise.plan.run_definition import RunDefinition


@dataclass(frozen=True)
class Launch:
    """A command; no shell splits it.

    Args:
        argv: Program and arguments.
        environments: Variables to add for each process to start: every rank, or the process that starts them.
        shown: The command for logs, which others may read: without prelude and container, which may hold
            secrets.
    """

    argv: tuple[str, ...]
    environments: tuple[dict[str, str], ...]
    shown: tuple[str, ...]


def build_launch(
    run: RunDefinition,
    site: Site,
    rank_words: Sequence[str],
    visible: Sequence[Path],
    *,
    once_a_node: bool = False,
) -> Launch:
    """Build the command that starts the ranks of a run.

    Args:
        run: Its launcher is srun (a task per device), popen (a process per device, on this machine) or
            torchrun (a process per node).
        site: Facts of the site.
        rank_words: Script and arguments of one rank; ``start_ranks.py``, which starts the ranks of a node, is
            in the same folder.
        visible: Folders that the ranks read and write, for the container.
        once_a_node: Start one process a node, with any launcher; the process starts its ranks.
    """
    shape, python = run.shape, interpreter(site)
    by_rank = run.launcher in {"srun", "popen"} and not once_a_node
    # -u: the output of a killed rank must be in the log
    program: tuple[str, ...] = (python, "-u", *rank_words)
    if run.launcher == "torchrun" and not once_a_node:
        # under Slurm, start_ranks.py starts torchrun and handles the signal before a job's end
        start_ranks = (python, str(Path(rank_words[0]).with_name("start_ranks.py")), *rank_words)
        program = start_ranks if site.slurm else torchrun_standalone(python, shape, rank_words)
    environments = [thread_environment(run.settings.cpus_per_device)]
    if run.launcher == "popen" and by_rank:
        ranks = range(shape.world_size)
        environments = [environments[0] | rank_environment(rank, shape) for rank in ranks]
    if (container := site.facts.container) is not None:
        environments = [keep_in_container(each, container.runtime) for each in environments]
    step = srun_step(run, by_rank=by_rank) if site.slurm else ()
    hidden = [f"[{key}]" for key in ("prelude", "container") if getattr(site.facts, key)]
    return Launch(
        (*step, *site_command(site, visible, program)), (*environments,), shown=(*step, *hidden, *program)
    )


def interpreter(site: Site) -> str:
    """Return the interpreter of a site's ranks: by default the one that runs now."""
    return site.facts.python or (sys.executable if site.facts.container is None else "python3")


def program_folders(program: ProgramSettings) -> list[Path]:
    """Return the folders that a program reads and runs in, for the container; each may be behind a link."""
    files = [*program_files(program), *map(Path, program.files)]
    runs_in = [Path(program.working_directory).absolute()] if program.working_directory else []
    return [*(path.resolve().parent for path in files), *runs_in]


def torchrun_standalone(python: str, shape: Shape, program: Sequence[str]) -> tuple[str, ...]:
    """Return the command that starts the ranks of one node by torchrun.

    ``--standalone`` lets the store choose a free port. Without ``--local-addr`` the rendezvous hangs if the
    host name does not resolve.
    """
    return (python, "-m", "torch.distributed.run", *standalone_options(shape.devices_per_node), *program)


def standalone_options(processes: int) -> tuple[str, ...]:
    """Return the options of torchrun for the ranks of one node."""
    return ("--standalone", "--local-addr=127.0.0.1", "--nnodes=1", f"--nproc-per-node={processes}")


def srun_step(run: RunDefinition, *, by_rank: bool) -> tuple[str, ...]:
    """Return the start of a command that runs a program as a job step: a task a rank, or one a node.

    All options are given: the executor removes Slurm's variables from the job's environment, and srun
    has not inherited ``--cpus-per-task`` since 22.05. Without ``--kill-on-bad-exit`` the peers of a
    dead rank would continue. ``--mpi=none``: the ranks find each other.
    """
    nodes, devices = run.shape.nodes, run.shape.devices_per_node
    tasks = devices if by_rank else 1
    return (
        *("srun", "--kill-on-bad-exit=1", "--mpi=none", "--input=none"),
        *(f"--nodes={nodes}", f"--ntasks={nodes * tasks}", f"--ntasks-per-node={tasks}"),
        f"--cpus-per-task={run.settings.cpus_per_device * devices // tasks}",
    )


def site_command(site: Site, visible: Sequence[Path], program: Sequence[str]) -> tuple[str, ...]:
    """Build the site's command for a program: prelude, container, the container's prelude, the program."""
    return with_prelude(site.facts.prelude, container_command(site, visible, program))


def container_command(site: Site, visible: Sequence[Path], program: Sequence[str]) -> tuple[str, ...]:
    """Build the command for a program in the site's container, if there is one.

    Args:
        site: Facts of the site.
        visible: Folders that are visible in the container, in addition to the working folder.
        program: The program and its arguments.
    """
    container = site.facts.container
    if container is None:
        return tuple(program)
    here = Path.cwd()
    folders = dict.fromkeys(str(path) for path in (here, *visible))
    binds = [f"--bind={folder}" for folder in (*folders, *container.binds)]
    return (
        *(container.runtime, "exec", *site.container_arguments, *binds, f"--pwd={here}"),
        *(container.image, *with_prelude(container.prelude, program, "container.prelude")),
    )


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
    word = re.findall(r"^\W*[\w./+-]*", line)[0]
    return word if word == line.rstrip() else f"{word} ..."


RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that identify a rank. torchrun sets them, and so do popen and spawn."""


def rank_environment(rank: int, shape: Shape) -> dict[str, str]:
    """Return the ``RANK_VARIABLES`` of a rank on one machine; ranks are counted from 0."""
    place = (rank, rank, shape.world_size, shape.devices_per_node)
    return {name: str(value) for name, value in zip(RANK_VARIABLES, place, strict=True)}


def keep_in_container(variables: dict[str, str], runtime: str) -> dict[str, str]:
    """Add copies of variables that a container's program gets although ``--cleanenv`` removes all others.

    Source: Apptainer's and Singularity's user guides, "Environment and Metadata".
    """
    prefix = f"{Path(runtime).name.upper()}ENV_"
    return variables | {f"{prefix}{name}": value for name, value in variables.items()}


def thread_environment(cpus_per_device: int) -> dict[str, str]:
    """Return the variables for the thread count of each rank, which libraries read when they are loaded."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(cpus_per_device))
