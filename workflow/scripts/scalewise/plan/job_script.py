"""Write a run as a job script that needs no study: a request to Slurm, and the command of its ranks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from scalewise.config.program import FOLDER, ProgramSettings, program_command
from scalewise.config.settings import Settings
from scalewise.config.site import Site
from scalewise.config.templates import parts
from scalewise.plan.allocation import sbatch_options
from scalewise.plan.launch import (
    container_command,
    interpreter,
    program_folders,
    srun_step,
    thread_environment,
    torchrun_standalone,
)
from scalewise.plan.plan_file import TrainJob
from scalewise.plan.run_definition import RunDefinition, program_of, run_values

_VARIABLES = {FOLDER: "output", "master_address": "MASTER_ADDR"}
"""Variables of the script with the values that only the job has, by names in braces; others are the names."""


def job_script(
    job: TrainJob,
    site: Site,
    time_limit: tuple[int, str],
    path: Path,
    title: str,
    *,
    whole_nodes: bool = True,
) -> str:
    """Return a script that trains a run outside a study: for sbatch, or for bash on a site without Slurm.

    Args:
        job: The run's job in the study. The probe does not measure it here.
        site: Facts of the site.
        time_limit: Minutes that the job requests, and the measurement that they follow from, as a clause.
        path: The script's, from there.
        title: The first comment.
        whole_nodes: Keep a request for whole nodes, as the training is billed for them.
    """
    run = RunDefinition.model_validate_json(job["definition"])
    if isinstance(run.settings, Settings):  # to the end, with its weights
        settings = run.settings.model_copy(update={"steps": None, "save_model": True})
        run = run.model_copy(update={"settings": settings})
    folder, program = f"trained/{run.experiment}", program_of(run)
    requests = []
    if site.slurm:
        # the signal ends a program that does not expect it; whole nodes may serve the measurement only
        dropped = ("--signal=", "--time=", *(() if whole_nodes else ("--exclusive",)))
        options = [word for word in sbatch_options(job["resources"]) if not word.startswith(dropped)]
        requests = [f"#SBATCH {shlex.quote(word)}" for word in (f"--job-name={run.experiment}", *options)]
        requests += [f"# {time_limit[1]}", f"#SBATCH --time={time_limit[0]}"]
    lines = [
        "#!/bin/bash",
        f"# {title}",
        f"#   {'sbatch' if site.slurm else 'bash'} {path} [FOLDER]   writes to FOLDER, by default {folder}",
        *requests,
        "",
        "# the folder in which the study was run",
        f"cd {shlex.quote(str(Path.cwd()))} || exit 1",
        f'export output=$(realpath -m -- "${{1:-{folder}}}")',
        'mkdir -p -- "$output" || exit 1',
        *(f"export {name}={text}" for name, text in _variables(run, program, site).items()),
        *_start(run, program, site),
    ]
    return "\n".join(lines) + "\n"


def _variables(run: RunDefinition, program: ProgramSettings, site: Site) -> dict[str, str]:
    """Return the variables of the ranks, as text of the shell."""
    shape = run.shape
    variables = thread_environment(run.settings.cpus_per_device) | {"PYTHONUNBUFFERED": "1"}
    if run.accelerator == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    elif not site.slurm:
        gpus = ",".join(map(str, range(shape.devices_per_node)))
        variables["CUDA_VISIBLE_DEVICES"] = f"${{CUDA_VISIBLE_DEVICES:-{gpus}}}"
    if site.facts.network_interface is not None and shape.nodes > 1:
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        variables |= dict.fromkeys(names, shlex.quote(site.facts.network_interface))
    if site.facts.container is not None:
        variables |= {f"{name}_BIND": '"$output"' for name in ("APPTAINER", "SINGULARITY")}
    if site.slurm or program.starts == "itself":
        first_node = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        variables["MASTER_ADDR"] = first_node if shape.nodes > 1 else "127.0.0.1"
        # each job has its own port
        variables["MASTER_PORT"] = "$((20000 + ${SLURM_JOB_ID:-$$} % 12000))"
    return variables


def _start(run: RunDefinition, program: ProgramSettings, site: Site) -> Iterator[str]:
    """Yield the lines that start the ranks, or one process a node if the program starts its ranks."""
    by_rank, python = program.starts != "itself", interpreter(site)
    visible = program_folders(program)
    prelude = [f"eval {shlex.quote(line)} || exit 1" for line in site.facts.prelude]
    start: tuple[str, ...] = ("bash", "-c", "rank")
    command = _command(run, program, python)
    # as torchrun sets them
    place = ["export NODE_RANK=${SLURM_NODEID:-0}"]
    if site.slurm:
        if by_rank:
            place += [
                "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS GROUP_RANK=$SLURM_NODEID",
                f"export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE={run.shape.devices_per_node}",
                # frameworks read it, to train as one of several ranks
                "export TORCHELASTIC_RUN_ID=$SLURM_JOB_ID",
            ]
        place, prelude = [*prelude, *place], []
        command = f"{shlex.join(container_command(site, visible, ()))} {command}".lstrip()
        start = (*srun_step(run, by_rank=by_rank), *start)
    else:
        if by_rank:
            start = torchrun_standalone(python, run.shape, ("--no-python", *start))
        start = container_command(site, visible, start)
    yield from ("", f"# the command of each {'rank' if by_rank else 'node'}", "rank() {")
    yield from (f"    {line}" for line in (*place, f"exec {command}"))
    yield from ("}", "export -f rank", "", *prelude, shlex.join(start))


def _command(run: RunDefinition, program: ProgramSettings, python: str) -> str:
    """Return the program's command as text of the shell."""
    values, folder = run_values(run, program), program.working_directory
    changes = [f"--chdir={shlex.quote(str(Path(folder).absolute()))}"] if folder is not None else []
    changes += [f"{name}={_shell_word(str(text), values)}" for name, text in program.environment.items()]
    words = [shlex.join(program_command(program, python, ()))]
    words += [_shell_word(str(word), values) for word in program.arguments]
    return " ".join(["env", *changes, *words] if changes else words)


def _shell_word(template: str, values: Mapping[str, object]) -> str:
    """Return a word as text of the shell, which adds the values that only the job has."""
    text = ""
    for plain, name in parts(template):
        text += shlex.quote(plain) if plain else ""
        if name is not None:
            variable = f'"${_VARIABLES.get(name, name.upper())}"'
            text += shlex.quote(str(values[name])) if name in values else variable
    return text or "''"
