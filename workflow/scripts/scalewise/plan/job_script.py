"""Write a run as a job script that needs no study: a request to Slurm, and the command of its ranks."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.config.catalog.program_files import program_command, program_files
from scalewise.config.program import ARGUMENT, FOLDER, ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.shape import device_noun
from scalewise.config.templates import fill_in, names_in, parts
from scalewise.plan.launch import (
    SiteLaunch,
    site_command,
    srun_step,
    thread_environment,
    torchrun_standalone,
)
from scalewise.plan.plan_file import Job, Value
from scalewise.plan.runs.allocation import PLACE_RESOURCES
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import program_of

_OPTIONS = {
    "cpus_per_task": "cpus-per-task",
    "gres": "gres",
    "mem_mb": "mem",
}
"""Resources of a job as the executor plugin names them -> options of sbatch; also PLACE_RESOURCES."""

_PLAIN_LINE = re.compile(r"[\w$/.=,:+@%~ -]+")
"""A line of shell that ends where it seems to end: no quote, comment or continuation."""

_RANK_VALUES = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "node_rank": "NODE_RANK",
    "master_address": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
"""Names in braces whose values the job knows -> variables of the script."""


@dataclass(frozen=True)
class TimeLimit:
    """Time that a job requests.

    Args:
        minutes: The time.
        reason: The measurement that it follows from, as a clause.
    """

    minutes: int
    reason: str


def job_script(
    run: RunDefinition,
    job: Job,
    site: SiteLaunch,
    time_limit: TimeLimit,
    path: Path,
    title: str,
    *,
    whole_nodes: bool = True,
) -> str:
    """Return a script that trains a run outside a study: for sbatch, or for bash on a site without Slurm.

    Args:
        run: The run. The probe does not measure it.
        job: Requests of the run's job.
        site: Facts of the site.
        time_limit: Replaces the job's.
        path: The script's, from there.
        title: The first comment.
        whole_nodes: Keep a request for whole nodes, as the training is billed for them.
    """
    if isinstance(run.settings, Settings):  # to the end, with its weights
        settings = run.settings.model_copy(update={"steps": None, "save_model": True})
        run = run.model_copy(update={"settings": settings})
    folder, command = f"trained/{run.experiment}", "sbatch" if site.slurm else "bash"
    lines = [
        "#!/bin/bash",
        f"# {title}",
        f"#   {command} {path} [FOLDER]   writes to FOLDER, by default {folder}",
        *(_requests(run, job, time_limit, whole_nodes=whole_nodes) if site.slurm else ()),
        "",
        "# the folder in which the study was run",
        f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
        f'output=$(realpath -m -- "${{1:-{folder}}}")',
        'mkdir -p -- "$output" || exit 1',
        "export output",
        _export(thread_environment(run.settings.cpus_per_device)),
    ]
    lines += _program(run, program_of(run), site)
    return "\n".join(lines) + "\n"


MISSING_JOB_SCRIPT = """\
#!/bin/bash
echo 'No row is recommended that this configuration has measured, so there is no job to submit.' >&2
exit 1
"""
"""The script of an experiment without an answer."""


def _requests(run: RunDefinition, job: Job, limit: TimeLimit, *, whole_nodes: bool) -> Iterator[str]:
    """Yield the options of sbatch, as comments that sbatch reads."""
    resources, shape = job["resources"], run.shape
    options = {_OPTIONS[name]: value for name, value in resources.items() if value and name in _OPTIONS}
    place = {option: resources[name] for option, name in PLACE_RESOURCES.items() if name in resources}
    yield from _sbatch({"job-name": run.experiment, **place})
    noun = device_noun(run.accelerator)
    nodes = "1 node" if shape.nodes == 1 else f"{shape.nodes} nodes"
    on_each = "" if shape.nodes == 1 else ", the same number on each node"
    yield f"# {nodes}; one task for each {noun}{on_each}"
    yield from _sbatch({"nodes": shape.nodes})
    for word in shlex.split(str(resources.get("slurm_extra", ""))):
        # Slurm's signal ends a program that does not expect it
        if word.startswith("--signal="):
            continue
        if word == "--exclusive" and not whole_nodes:
            continue  # only so that nothing disturbed the measurement
        yield f"#SBATCH {shlex.quote(word)}"
    yield from _sbatch(options)
    yield f"# {limit.reason}"
    yield from _sbatch({"time": limit.minutes})


def _sbatch(options: Mapping[str, Value]) -> Iterator[str]:
    for name, value in options.items():
        yield f"#SBATCH {shlex.quote(f'--{name}={value}')}"


def _program(run: RunDefinition, settings: ProgramSettings, site: SiteLaunch) -> Iterator[str]:
    """Yield the lines that run its program as it is."""
    shape, once_a_node = run.shape, settings.starts == "itself"
    variables = {"PYTHONUNBUFFERED": "1"}
    if run.accelerator == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    elif not site.slurm:
        gpus = ",".join(map(str, range(shape.devices_per_node)))
        variables["CUDA_VISIBLE_DEVICES"] = _shell(f'"${{CUDA_VISIBLE_DEVICES:-{gpus}}}"')
    if site.network_interface is not None and shape.nodes > 1:
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        variables |= dict.fromkeys(names, site.network_interface)
    yield _export(variables)
    if site.slurm or once_a_node:
        yield ""
        yield "# the address at which the ranks find each other; each job has a port of its own"
        first_node = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        yield f"export MASTER_ADDR={first_node if shape.nodes > 1 else '127.0.0.1'}"
        yield "export MASTER_PORT=$((20000 + ${SLURM_JOB_ID:-$$} % 12000))"
    values = {
        "devices": shape.world_size,
        "devices_per_node": shape.devices_per_node,
        "nodes": shape.nodes,
        "batch_size_per_device": run.batch_size_per_device,
        "global_batch_size": run.global_batch_size,
        "accumulation_steps": settings.accumulation_steps,
        "seed": settings.seed,
        FOLDER: _shell('"$output"'),
        **{f"{ARGUMENT}{name}": value for name, value in settings.argument.items()},
    }
    arguments = [_fill_in(str(word), values) for word in settings.arguments]
    words = program_command(settings, _python(site), arguments)
    changes = [f"{name}={_fill_in(str(value), values)}" for name, value in settings.environment.items()]
    runs_in = None if settings.working_directory is None else Path(settings.working_directory).absolute()
    if runs_in is not None:
        changes.insert(0, f"--chdir={runs_in}")
    words = ["env", *changes, *words] if changes else words
    files = [*program_files(settings), *map(Path, settings.files)]
    folders = [path.resolve().parent for path in files] + ([] if runs_in is None else [runs_in])
    # as torchrun sets them
    place = ["export NODE_RANK=${SLURM_NODEID:-0}"]
    if site.slurm and not once_a_node:
        place += [
            "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS GROUP_RANK=$SLURM_NODEID",
            f"export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE={shape.devices_per_node}",
            # frameworks read it, to train as one of several ranks
            "export TORCHELASTIC_RUN_ID=$SLURM_JOB_ID",
        ]
    visible = [*folders, Path(_shell('"$output"'))]
    yield from _start(run, site, place, words, visible, once_a_node=once_a_node)


def _start(
    run: RunDefinition,
    site: SiteLaunch,
    place: Sequence[str],
    words: Sequence[str],
    visible: Sequence[Path],
    *,
    once_a_node: bool = False,
) -> Iterator[str]:
    """Yield the lines that start the ranks.

    Args:
        run: Has their number and their CPUs.
        site: Facts of the site.
        place: Lines before the command of a rank, which state its place among the ranks.
        words: The command of a rank.
        visible: Folders that ranks read and write, for the container.
        once_a_node: Start one process a node, which starts its ranks.
    """
    shape = run.shape
    tasks = 1 if once_a_node else shape.devices_per_node
    prelude = [f"{_line(line)} || exit 1" for line in site.prelude]
    outside = site.model_copy(update={"prelude": ()})
    start: tuple[str, ...] = ("bash", "-c", "rank")
    if site.slurm:
        in_rank = [*prelude, *place, f"exec {_quote(site_command(outside, visible, words))}"]
        cpus = run.settings.cpus_per_device * shape.devices_per_node // tasks
        start = (*srun_step(shape.nodes, tasks, cpus), *start)
    else:
        in_rank = [*place, f"exec {_quote(words)}"]
        if not once_a_node:
            start = torchrun_standalone(_python(site), tasks, ("--no-python", *start))
        start = site_command(outside, visible, start)
    yield ""
    yield f"# the command of each {'node' if once_a_node else 'rank'}"
    yield "rank() {"
    yield from (f"    {line}" for line in in_rank)
    yield "}"
    yield "export -f rank"
    yield ""
    if not site.slurm:
        yield from prelude
    yield _quote(start)


def _python(site: SiteLaunch) -> str:
    """Return the interpreter of the ranks."""
    return site.python or (sys.executable if site.container is None else "python3")


def _export(variables: Mapping[str, str]) -> str:
    """Return the line that sets variables for all commands after it."""
    return " ".join(["export", *(f"{name}={_quote([value])}" for name, value in variables.items())])


def _line(line: str) -> str:
    """Return a line of the site's shell so that a command can follow it."""
    return line if _PLAIN_LINE.fullmatch(line) else f"eval {shlex.quote(line)}"


_MARK = "\0"
"""Encloses the shell's own text in a word; no value of the configuration may hold it."""


def _shell(text: str) -> str:
    """Mark a part of a word that the shell must replace."""
    return f"{_MARK}{text}{_MARK}"


def _quote(words: Iterable[str]) -> str:
    """Join words so that the shell changes nothing in them but the parts that ``_shell`` has marked."""
    return " ".join(
        "".join(
            part if index % 2 else shlex.quote(part) for index, part in enumerate(word.split(_MARK)) if part
        )
        or "''"
        for word in words
    )


def _fill_in(template: str, values: Mapping[str, object]) -> str:
    """Fill in a template; the shell computes the values that only a job knows."""
    filled = []
    for text, inner in parts(template):
        if inner is None:
            filled.append(text)
        elif inner in _RANK_VALUES:
            filled.append(_shell(f'"${_RANK_VALUES[inner]}"'))
        elif not set(names := names_in(f"{{{inner}}}")) & set(_RANK_VALUES):
            filled.append(fill_in(f"{{{inner}}}", values))
        else:
            formula = inner
            for name in names:
                known = _RANK_VALUES.get(name) or str(values[name])
                formula = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", known, formula)
            filled.append(_shell(f'"$(({formula.replace("//", "/")}))"'))
    return "".join(filled)
