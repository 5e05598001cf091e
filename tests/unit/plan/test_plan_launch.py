"""The command that starts the ranks of a run, on one machine, on a cluster, in a container; and job scripts.

launches.txt and job_scripts.txt have the words; what a shell makes of a site's lines and of a script is run.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.golden import compare
from tests.paths import ROOT
from tests.small_runs import definition, site_of
from tests.stand_ins import stand_ins

from scalewise.config.settings import LauncherName
from scalewise.config.shape import Shape
from scalewise.config.site import Container, SiteFile, resolve_site
from scalewise.config.slurm import Slurm
from scalewise.plan.job_script import job_script
from scalewise.plan.launch import build_launch, with_prelude
from scalewise.plan.planned_study import make_plan
from scalewise.plan.study import load_study

HERE, NODES = Shape(1, 2), Shape(2, 4)
OF_SLURM: dict[str, Any] = {"slurm": Slurm()}
FOLDERS = (Path("/cache/scripts"), Path("/data sets"), Path.cwd())
IMAGE = Container(
    image="/images/py torch.sif", arguments=["--env", "KEY=hf_secret"], prelude=["source /env.sh"]
)
LAUNCHES: dict[str, tuple[LauncherName, Shape, dict[str, Any]]] = {
    "popen on this machine": ("popen", HERE, {}),
    "torchrun on this machine": ("torchrun", HERE, {}),
    "spawn on this machine": ("spawn", HERE, {}),
    "popen in a container": ("popen", HERE, {"container": Container(image="a.sif")}),
    "srun on 2 x 4 devices of Slurm": ("srun", NODES, OF_SLURM),
    "torchrun on 2 x 4 devices of Slurm": ("torchrun", NODES, OF_SLURM),
    "spawn on 2 x 4 devices of Slurm": ("spawn", NODES, OF_SLURM),
    "srun by its site's python": ("srun", NODES, OF_SLURM | {"python": "/opt/a b/python"}),
    "srun in a container of GPUs": (
        "srun",
        NODES,
        OF_SLURM
        | {"container": Container(image="a.sif", binds=["/scratch", "/data:/mnt"], runtime="singularity")}
        | {"accelerator": "cuda"},
    ),
    "srun after lines of shell, in a container with others": (
        "srun",
        NODES,
        OF_SLURM | {"prelude": ["export HF_TOKEN=hf_secret"], "container": IMAGE},
    ),
}
WORDS = Path(__file__).with_name("launches.txt")


def test_commands_are_as_they_are_kept_and_a_log_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for name, (launcher, shape, facts) in LAUNCHES.items():
        run = definition(cpus_per_device=3).model_copy(update={"shape": shape, "launcher": launcher})
        words = ("program_rank.py", "an attempt; $(x)")
        launch = build_launch(run, site_of(**facts), words, FOLDERS, once_a_node=launcher == "spawn")
        assert "hf_secret" not in " ".join(launch.shown)
        variables = (
            shlex.join(f"{key}={value}" for key, value in each.items()) for each in launch.environments
        )
        shown = [f"shown: {shlex.join(launch.shown)}"] if launch.shown != launch.argv else []
        parts.append("\n".join([f"# {name}", shlex.join(launch.argv), *shown, *variables, ""]))
    text = "\n".join(parts).replace(sys.executable, "PYTHON").replace(str(Path.cwd()), "HERE")
    compare(WORDS, text, __file__, capsys)


@pytest.mark.parametrize(
    ("accelerator", "arguments", "options"),
    [("cuda", None, ["--nv"]), ("cpu", None, []), ("cuda", [], []), ("cuda", ["--rocm"], ["--rocm"])],
)
def test_a_container_gets_the_gpus_of_a_site_that_has_them_unless_configured_otherwise(
    accelerator: Any, arguments: list[str] | None, options: list[str]
) -> None:
    container = Container(image="a.sif", arguments=arguments)
    facts = SiteFile(accelerator=accelerator, devices_per_node=4, cpus_per_node=8, container=container)

    assert resolve_site(facts).container_arguments == options


SAY = (sys.executable, "-c", "import os, sys; print(sys.argv[1:], os.environ.get('GREETING'))")


def run(lines: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The prelude in front of a program that says what arrived."""
    return subprocess.run(
        with_prelude(lines, (*SAY, *arguments)), capture_output=True, text=True, check=False, timeout=60
    )


def test_what_the_lines_set_is_there_and_arguments_arrive_as_they_were_given(tmp_path: Path) -> None:
    arguments = [
        "a b",
        "$(touch hacked)",
        "`x`",
        "a;b",
        "'",
        '"',
        "a\nb",
        "",
        "*",
        "$HOME",
        "\\",
        "-c",
        "--",
        "ä",
    ]
    greet = 'greet() { export GREETING="hello, $1"; }'
    done = run([f"cd {tmp_path}", greet, "greet you"], *arguments)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{arguments} hello, you\n", "")
    assert list(tmp_path.iterdir()) == []


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
        pytest.param(["set -e", "false"], "false (line 2 of 2)", id="after set -e"),
        pytest.param(["true", "exit 0"], "exit ... (line 2 of 2)", id="an end without an error"),
        pytest.param(["echo 'x"], "echo ... (line 1 of 1)", id="an open quote"),
        pytest.param(["export A=hf_secret; false"], "export ... (line 1 of 1)", id="a secret"),
        pytest.param(["  A=hf_secret;false"], "  A ... (line 1 of 1)", id="a secret and no space"),
    ],
)
def test_a_line_that_fails_is_named_and_the_program_never_starts(lines: list[str], named: str) -> None:
    done = run(lines)

    assert done.returncode != 0
    assert done.stdout == ""
    assert f"scalewise: this line of prelude failed: {named}\n" in done.stderr
    assert "hf_secret" not in done.stderr


def test_the_end_of_the_program_is_the_end_of_the_whole_and_a_line_of_the_container_has_its_key() -> None:
    argv = with_prelude(["true"], (sys.executable, "-c", "raise SystemExit(7)"))
    assert subprocess.run(argv, check=False, timeout=600).returncode == 7

    argv = with_prelude(["source /no/such/env.sh"], SAY, "container.prelude")
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this line of container.prelude failed: source ... (line 1 of 1)\n" in done.stderr


GOLDEN = Path(__file__).with_name("job_scripts.txt")

SLURM: dict[str, Any] = {
    "accelerator": "cuda",
    "devices_per_node": 4,
    "cpus_per_node": 64,
    "memory_gb_per_node": 240,
    "max_nodes": 2,
    "python": "/opt/python",
    "prelude": ["module load cuda", "source '/my env/activate' # mine"],
    "network_interface": "ib0",
    "slurm": {"account": "p1", "partition": "gpu", "gpu_type": "h100", "extra": ["--constraint=a&b"]},
}
IN_CONTAINER = {key: value for key, value in SLURM.items() if key != "python"} | {
    "container": {"image": "/im age.sif"}
}
LOCAL = {"accelerator": "cuda", "devices_per_node": 2, "cpus_per_node": 8, "python": "/opt/python"}
BUILT_IN: dict[str, Any] = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "repeats": 1}
BUILT_IN |= {"loader": "workers", "cpus_per_device": 3}
PROGRAM: dict[str, Any] = {
    "program": "train.py",
    "scaling": "weak",
    "batch_size_per_device": 16,
    "repeats": 1,
    "arguments": ["--out", "{folder}/x", "--batch", "{batch_size_per_device}", "it's; $(x) `y` \\ *"],
    "environment": {"PORT": "{master_port}", "PLACE": "{rank} of {devices}", "TEXT": "a  b"},
}


def script(
    tmp_path: Path, experiment: dict[str, Any], site: dict[str, Any], run: str, *, whole_nodes: bool = False
) -> str:
    (tmp_path / "site.json").write_text(json.dumps(site))
    (tmp_path / "train.py").write_text("import torch\n")
    study = load_study({"experiments": {"e": experiment}}, site_file=tmp_path / "site.json")
    job, path = make_plan(study)["runs"]["e"][run], Path("results/e/proposal/job.sh")
    return job_script(job, study.site, (25, "measured"), path, "e, as recommended", whole_nodes=whole_nodes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_kind_of_job_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {
        "a program over two nodes": script(folder, PROGRAM | {"devices": [8]}, SLURM, "d8.r1"),
        "a program that starts its ranks, in a container": script(
            folder,
            PROGRAM | {"devices": [2], "starts": "itself", "environment": {}, "working_directory": "."},
            IN_CONTAINER,
            "d2.r1",
            whole_nodes=True,
        ),
        "the built-in training on one machine": script(folder, BUILT_IN | {"devices": [2]}, LOCAL, "d2.r1"),
    }
    text = "\n".join(f"== {kind}\n{text}" for kind, text in kinds.items())
    # the environment first: it may lie in the clone
    # pip names the interpreter of its scripts python or python3
    python = Path(sys.executable)
    for place, name in (
        (folder, "STUDY"),
        (python, "BIN/python"),
        (python.parent, "BIN"),
        (ROOT, "SCALEWISE"),
    ):
        text = text.replace(str(place), name)
    compare(GOLDEN, text, __file__, capsys)


def test_every_word_reaches_the_program_unchanged(folder: Path) -> None:
    """By a stand-in for srun that runs one of the tasks."""
    echo = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    programs = {
        "srun": 'while [ "$1" != bash ]; do shift; done\nSLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 '
        'SLURM_NODEID=1 exec "$@"',
        "scontrol": "echo node1; echo node2",
        "module": "true",
    }
    stand_ins(folder / "bin", programs, "/bin/bash")
    (folder / "my env").mkdir()
    (folder / "my env" / "activate").write_text("export PRELUDE='a  b'\n")
    prelude = ["module load cuda", f"source '{folder}/my env/activate' # mine"]
    site = SLURM | {"python": sys.executable, "prelude": prelude}
    text = script(folder, PROGRAM | {"devices": [8]}, site, "d8.r1")
    (folder / "train.py").write_text(echo)
    (folder / "job.sh").write_text(text)

    environment = {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    run = subprocess.run(
        ["bash", "job.sh", "out put"], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )

    arguments, variables = json.loads(run.stdout)
    assert arguments == ["--out", f"{folder}/out put/x", "--batch", "16", "it's; $(x) `y` \\ *"]
    expected = {"MASTER_ADDR": "node1", "MASTER_PORT": "20007", "PORT": "20007", "PLACE": "5 of 8"}
    expected |= {"TEXT": "a  b", "PRELUDE": "a  b", "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert expected.items() <= variables.items()


def test_a_job_of_a_machine_takes_the_gpus_of_the_shell_or_the_first(folder: Path) -> None:
    program = PROGRAM | {"devices": [1], "starts": "itself", "environment": {}, "arguments": ["{folder}"]}
    (folder / "job.sh").write_text(script(folder, program, LOCAL | {"python": sys.executable}, "d1.r1"))
    (folder / "train.py").write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")

    for chosen, visible in (({"CUDA_VISIBLE_DEVICES": "7"}, "7"), ({}, "0")):
        environment = {"PATH": "/usr/bin:/bin", **chosen}
        assert subprocess.check_output(["bash", "job.sh"], env=environment, text=True) == f"{visible}\n"
