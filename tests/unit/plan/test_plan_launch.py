"""The command that starts the ranks of a run: on one machine, on a cluster, in a container."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalewise.plan.config.settings import LauncherName
from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Container, SiteFile, resolve_site
from scalewise.plan.jobs.launch import Launch, RankLaunch, SiteLaunch, build_launch, with_prelude

ATTEMPT = "an attempt; $(x)"
OF_RANK = ("rank.py", ATTEMPT)
OF_NODE = ("start_ranks.py", *OF_RANK)
RANK = ("/usr/bin/python3", *OF_RANK)
NODE = ("/usr/bin/python3", *OF_NODE)


def launch(
    launcher: LauncherName,
    nodes: int,
    devices: int,
    cpus: int = 3,
    visible: tuple[Path, ...] = (),
    **start: Any,
) -> Launch:
    ranks = RankLaunch(
        shape=Shape(nodes, devices),
        accelerator="cpu",
        cpus_per_device=cpus,
        launcher=launcher,
        rendezvous="tcp",
    )
    return build_launch(ranks, SiteLaunch(**start), OF_RANK, "/usr/bin/python3", visible)


def srun(nodes: int, tasks: int, tasks_per_node: int, cpus: int) -> tuple[str, ...]:
    return (
        *("srun", "--kill-on-bad-exit=1", "--mpi=none", "--input=none", f"--nodes={nodes}"),
        *(f"--ntasks={tasks}", f"--ntasks-per-node={tasks_per_node}", f"--cpus-per-task={cpus}"),
    )


def test_torchrun_starts_one_rank_a_device_with_its_threads() -> None:
    started = launch("torchrun", 1, 2)

    assert started.name == "torchrun"
    assert started.argv == (
        *("/usr/bin/python3", "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *("--nnodes=1", "--nproc-per-node=2", *OF_RANK),
    )
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    assert started.environment == dict.fromkeys(threads, "3")


@pytest.mark.parametrize(
    ("launcher", "shape", "argv"),
    [
        pytest.param("srun", (1, 1), (*srun(1, 1, 1, 3), *RANK), id="srun on a device"),
        pytest.param("srun", (1, 4), (*srun(1, 4, 4, 3), *RANK), id="srun on a node"),
        pytest.param("srun", (2, 4), (*srun(2, 8, 4, 3), *RANK), id="srun on two nodes"),
        pytest.param("torchrun", (1, 1), (*srun(1, 1, 1, 3), *NODE), id="torchrun on a device"),
        pytest.param("torchrun", (1, 4), (*srun(1, 1, 1, 12), *NODE), id="torchrun on a node"),
        pytest.param("torchrun", (2, 4), (*srun(2, 2, 1, 12), *NODE), id="torchrun on two nodes"),
        pytest.param("spawn", (1, 4), (*srun(1, 1, 1, 12), *NODE), id="spawn on a node"),
        pytest.param("spawn", (2, 4), (*srun(2, 2, 1, 12), *NODE), id="spawn on two nodes"),
    ],
)
def test_on_slurm_every_launcher_is_a_step_with_the_same_tasks_on_each_node(
    launcher: LauncherName, shape: tuple[int, int], argv: tuple[str, ...]
) -> None:
    started = launch(launcher, *shape, slurm=True)

    assert started.name == launcher
    assert started.argv == argv
    assert started.environment["OMP_NUM_THREADS"] == "3"


def test_popen_starts_every_rank_and_tells_it_who_it_is_also_in_a_clean_environment() -> None:
    started = launch("popen", 1, 2)

    assert started.argv == ("/usr/bin/python3", "-u", *OF_RANK)
    assert started.environment["OMP_NUM_THREADS"] == "3"
    assert started.process_environments == (
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
    )
    _, second = launch("popen", 1, 2, container=Container(image="a.sif")).process_environments
    assert second["RANK"] == second["APPTAINERENV_RANK"] == second["SINGULARITYENV_RANK"] == "1"
    assert len(second) == 3 * 4


def test_every_rank_sees_the_gpus_that_the_site_names() -> None:
    for name in ("popen", "torchrun"):
        started = launch(name, 1, 2, visible_devices=(3, 1, 0))

        assert started.environment["CUDA_VISIBLE_DEVICES"] == "3,1"
        assert started.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_launchers_that_start_the_ranks_are_one_process() -> None:
    assert [launch(name, 1, 2).process_environments for name in ("torchrun", "spawn")] == [({},), ({},)]
    assert launch("spawn", 1, 2).argv == NODE


@pytest.mark.parametrize("launcher", ["popen", "torchrun", "spawn"])
def test_one_device_is_started_as_many_are(launcher: LauncherName) -> None:
    one, two = (launch(launcher, 1, devices, cpus=1) for devices in (1, 2))

    assert set(one.argv) ^ set(two.argv) <= {"--nproc-per-node=1", "--nproc-per-node=2"}
    assert len(one.argv) == len(two.argv)
    assert one.environment == two.environment


@pytest.mark.parametrize(
    ("launcher", "nodes", "slurm", "refusal"),
    [
        *((name, 2, False, "2 nodes need a cluster") for name in ("srun", "popen", "torchrun", "spawn")),
        ("srun", 1, False, "launcher srun needs Slurm"),
        ("popen", 1, True, "launcher popen starts ranks on one machine"),
    ],
)
def test_what_a_launcher_cannot_start_is_refused(
    launcher: LauncherName, nodes: int, slurm: bool, refusal: str
) -> None:
    with pytest.raises(ValueError, match=refusal):
        launch(launcher, nodes, 2, slurm=slurm)


IMAGE = Container(image="/images/py torch.sif")


@pytest.mark.parametrize(
    ("start", "python"),
    [
        pytest.param({}, "/usr/bin/python3", id="the one that runs snakemake"),
        pytest.param({"python": "/opt/a b/python"}, "/opt/a b/python", id="the site's"),
        pytest.param({"container": IMAGE}, "python3", id="the container's own"),
        pytest.param({"container": IMAGE, "python": "/opt/python"}, "/opt/python", id="the site's inside"),
    ],
)
@pytest.mark.parametrize("launcher", ["srun", "torchrun", "spawn"])
def test_every_rank_runs_the_python_of_the_site(
    launcher: LauncherName, start: dict[str, Any], python: str
) -> None:
    argv = launch(launcher, 1, 2, slurm=True, **start).argv

    script = next(index for index, word in enumerate(argv) if word in {"rank.py", "start_ranks.py", "-m"})
    assert argv[script - 1] == python


def test_a_container_sees_the_working_folder_and_all_that_ranks_read() -> None:
    container = Container(image="a.sif", binds=["/scratch", "/data:/mnt"], runtime="singularity")
    visible = (Path("/cache/scripts"), Path("/data sets"), Path.cwd())
    start: dict[str, Any] = {"container_arguments": ("--nv",), "srun_extra": ("--cpu-bind=cores", "--label")}

    argv = launch("srun", 1, 2, slurm=True, container=container, visible=visible, **start).argv

    assert argv == (
        *(*srun(1, 2, 2, 3), "--cpu-bind=cores", "--label"),
        *("singularity", "exec", "--nv", f"--bind={Path.cwd()}"),
        *("--bind=/cache/scripts", "--bind=/data sets", "--bind=/scratch", "--bind=/data:/mnt"),
        *(f"--pwd={Path.cwd()}", "a.sif", "python3", *OF_RANK),
    )


@pytest.mark.parametrize(
    ("accelerator", "arguments", "options"),
    [
        ("cuda", None, ("--nv",)),
        ("cpu", None, ()),
        ("cuda", [], ()),
        ("cuda", ["--rocm"], ("--rocm",)),
        ("cpu", ["--writable-tmpfs"], ("--writable-tmpfs",)),
    ],
)
def test_a_container_gets_the_gpus_of_a_site_that_has_them_unless_told_otherwise(
    accelerator: Any, arguments: list[str] | None, options: tuple[str, ...]
) -> None:
    container = Container(image="a.sif", arguments=arguments)
    facts = SiteFile(accelerator=accelerator, devices_per_node=4, cpus_per_node=8, container=container)

    assert SiteLaunch.of(resolve_site(facts)).container_arguments == options


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="runs real lines of shell: needs bash")
SAY = (sys.executable, "-c", "import os, sys; print(sys.argv[1:], os.environ.get('GREETING'))")


def run(lines: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The prelude in front of a program that says what arrived."""
    return subprocess.run(
        with_prelude(lines, (*SAY, *arguments)), capture_output=True, text=True, check=False, timeout=60
    )


def test_without_lines_there_is_no_shell() -> None:
    assert with_prelude((), SAY) == SAY


@needs_bash
def test_what_the_lines_set_is_there_in_the_program() -> None:
    done = run(["export GREETING=hello", 'greet() { export GREETING="$GREETING, $1"; }', "greet you"])

    assert (done.returncode, done.stdout, done.stderr) == (0, "[] hello, you\n", "")


@needs_bash
@pytest.mark.parametrize(
    "argument",
    ["a b", "$(touch hacked)", "`x`", "a;b", "'", '"', "a\nb", "", "*", "$HOME", "\\", "-c", "--", "ä"],
)
def test_arguments_arrive_as_they_were_given(argument: str, tmp_path: Path) -> None:
    done = run([f"cd {tmp_path}"], argument, "last")

    assert done.stdout == f"{[argument, 'last']} None\n"
    assert list(tmp_path.iterdir()) == []


@needs_bash
@pytest.mark.parametrize(
    ("lines", "named"),
    [
        pytest.param(["true", "false"], "false (line 2 of 2)", id="last"),
        pytest.param(["false", "true"], "false (line 1 of 2)", id="first"),
        pytest.param(["false  # module load cuda"], "false ... (line 1 of 1)", id="a trailing comment"),
        pytest.param(
            ["true", "(exit 3) # why", "true"], "(exit ... (line 2 of 3)", id="a comment in the middle"
        ),
        pytest.param(["no-such-command --x"], "no-such-command ... (line 1 of 1)", id="unknown command"),
        pytest.param(["true && false"], "true ... (line 1 of 1)", id="and"),
        pytest.param(["test 'a b' = \"$GREETING;x\""], "test ... (line 1 of 1)", id="quotes"),
        pytest.param(["set -e", "false"], "false (line 2 of 2)", id="after set -e"),
        pytest.param(["true", "exit 0"], "exit ... (line 2 of 2)", id="an end without an error"),
        pytest.param(["ls /no/such/folder | grep x"], "ls ... (line 1 of 1)", id="pipe"),
        pytest.param(["false \\"], "false ... (line 1 of 1)", id="a backslash at the end"),
        pytest.param(["false &&"], "false ... (line 1 of 1)", id="an unfinished line"),
        pytest.param(["echo 'x"], "echo ... (line 1 of 1)", id="an open quote"),
        pytest.param(["export A=hf_secret; false"], "export ... (line 1 of 1)", id="a secret"),
        pytest.param(["A=hf_secret false"], "A ... (line 1 of 1)", id="a secret for one command"),
        pytest.param(["  A=hf_secret;false"], "  A ... (line 1 of 1)", id="a secret and no space"),
        pytest.param(["false<<<hf_secret"], "false ... (line 1 of 1)", id="a secret to read"),
    ],
)
def test_a_line_that_fails_is_named_and_the_program_never_starts(lines: list[str], named: str) -> None:
    done = run(lines)

    assert done.returncode != 0
    assert done.stdout == ""
    assert f"scalewise: this line of prelude failed: {named}\n" in done.stderr
    assert "hf_secret" not in done.stderr


@needs_bash
def test_a_comment_alone_and_a_line_that_succeeds_with_one_are_no_failure() -> None:
    assert run(["# why", "true # || exit 1"], "x").stdout == "['x'] None\n"


@needs_bash
def test_the_end_of_the_program_is_the_end_of_the_whole() -> None:
    argv = with_prelude(["true"], (sys.executable, "-c", "raise SystemExit(7)"))

    assert subprocess.run(argv, check=False, timeout=600).returncode == 7


def test_a_log_shows_a_command_without_prelude_and_container_which_may_hold_secrets() -> None:
    def shown(**start: Any) -> tuple[str, ...]:
        return launch("srun", 2, 4, slurm=True, srun_extra=("--label",), **start).shown

    step = (*srun(2, 8, 4, 3), "--label")
    inside = ("python3", *OF_RANK)
    prelude = ("export HF_TOKEN=hf_secret",)
    options = ("--env", "KEY=hf_secret")

    assert shown() == (*step, *RANK)
    assert shown(prelude=prelude) == (*step, "[prelude]", *RANK)
    assert shown(container=IMAGE, container_arguments=options) == (*step, "[container]", *inside)
    both = shown(container=IMAGE.model_copy(update={"prelude": list(prelude)}), prelude=prelude)
    assert both == (*step, "[prelude]", "[container]", *inside)


@pytest.mark.parametrize(
    ("launcher", "program"), [("srun", OF_RANK), ("torchrun", OF_NODE), ("spawn", OF_NODE)]
)
def test_lines_run_on_every_node_outside_of_the_container_and_its_own_inside(
    launcher: LauncherName, program: tuple[str, ...]
) -> None:
    lines = ["source /ext3/env.sh"]
    container = IMAGE.model_copy(update={"prelude": lines})
    argv = launch(launcher, 2, 4, slurm=True, prelude=("module load cuda",), container=container).argv

    assert argv[0] == "srun"
    assert argv.index("bash") == len(srun(2, 8, 4, 3))
    assert argv.index("bash") < argv.index("apptainer") < argv.index(IMAGE.image)
    inside = with_prelude(lines, ("python3", *program), "container.prelude")
    assert argv[argv.index(IMAGE.image) + 1 :] == inside


@needs_bash
def test_a_line_of_the_container_that_fails_is_named_by_its_key() -> None:
    argv = with_prelude(["true", "source /no/such/env.sh"], SAY, "container.prelude")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (1, "")
    assert "this line of container.prelude failed: source ... (line 2 of 2)\n" in done.stderr
