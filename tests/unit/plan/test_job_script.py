"""The job script of an answer: what it requests, and that every word reaches the program unchanged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.golden import compare

from scalewise.plan.jobs.job_script import TimeLimit, job_script
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.study import load_study

GOLDEN = Path(__file__).with_name("job_scripts.txt")
ROOT = Path(__file__).parents[3]

SLURM: dict[str, Any] = {
    "accelerator": "cuda",
    "devices_per_node": 4,
    "cpus_per_node": 64,
    "memory_gb_per_node": 240,
    "max_nodes": 2,
    "python": "/opt/python",
    "prelude": ["module load cuda", "source '/my env/activate' # mine"],
    "network_interface": "ib0",
    "slurm": {"account": "p1", "partition": "gpu", "gpu_type": "h100", "constraint": "a&b"},
}
IN_CONTAINER = {key: value for key, value in SLURM.items() if key != "python"} | {
    "container": {"image": "/im age.sif"}
}
LOCAL = {"accelerator": "cuda", "devices_per_node": 2, "cpus_per_node": 8, "python": "/opt/python"}
BUILT_IN = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "repeats": 1}
PROGRAM: dict[str, Any] = {
    "program": "train.py",
    "scaling": "weak",
    "batch_size_per_device": 16,
    "repeats": 1,
    "arguments": ["--out", "{folder}/x", "--batch", "{batch_size_per_device}", "it's; $(x) `y` \\ *"],
    "environment": {"PORT": "{master_port + 1}", "PLACE": "{rank * 2 + devices}", "TEXT": "a  b"},
}


def script(tmp_path: Path, experiment: dict[str, Any], site: dict[str, Any], run: str) -> str:
    (tmp_path / "site.json").write_text(json.dumps(site))
    (tmp_path / "train.py").write_text("import torch\n")
    study = load_study({"experiments": {"e": experiment}}, site_file=tmp_path / "site.json")
    plan = make_plan(study)
    return job_script(
        study.runs["e", run],
        plan["runs"]["e"][run],
        SiteLaunch.model_validate(plan["sites"][""]["launch"]),
        TimeLimit(25, "measured"),
        Path("results/e/runs") / run,
        Path("results/e/proposal/job.sh"),
        "e, as recommended",
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_kind_of_job_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {
        "a program over two nodes": script(folder, PROGRAM | {"devices": [8]}, SLURM, "d8.r1"),
        "the built-in training": script(folder, BUILT_IN | {"devices": [2]}, SLURM, "d2.r1"),
        "a program that starts its ranks, in a container": script(
            folder,
            PROGRAM | {"devices": [2], "starts": "itself", "environment": {}, "working_directory": "."},
            IN_CONTAINER,
            "d2.r1",
        ),
        "a program on one machine": script(folder, PROGRAM | {"devices": [2]}, LOCAL, "d2.r1"),
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
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    stand_ins = {
        "srun": 'while [ "$1" != bash ]; do shift; done\nSLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 '
        'SLURM_NODEID=1 exec "$@"',
        "scontrol": "echo node1; echo node2",
        "module": "true",
    }
    for name, lines in stand_ins.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{lines}\n")
        (bin_folder / name).chmod(0o755)
    (folder / "my env").mkdir()
    (folder / "my env" / "activate").write_text("export PRELUDE='a  b'\n")
    prelude = ["module load cuda", f"source '{folder}/my env/activate' # mine"]
    site = SLURM | {"python": sys.executable, "prelude": prelude}
    text = script(folder, PROGRAM | {"devices": [8]}, site, "d8.r1")
    (folder / "train.py").write_text(echo)
    (folder / "job.sh").write_text(text)

    environment = {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    run = subprocess.run(
        ["bash", "job.sh", "out put"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    arguments, variables = json.loads(run.stdout)
    assert arguments == ["--out", f"{folder}/out put/x", "--batch", "16", "it's; $(x) `y` \\ *"]
    expected = {"MASTER_ADDR": "node1", "MASTER_PORT": "20007", "PORT": "20008", "PLACE": "18"}
    expected |= {"TEXT": "a  b", "PRELUDE": "a  b", "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
    assert expected.items() <= variables.items()


@pytest.mark.parametrize(
    ("gpus", "environment", "visible"),
    [
        pytest.param([5, 3], {}, "5", id="the site's"),
        pytest.param([5, 3], {"CUDA_VISIBLE_DEVICES": "0"}, "5", id="the site's, not the shell's"),
        pytest.param(None, {"CUDA_VISIBLE_DEVICES": "7"}, "7", id="the shell's"),
        pytest.param(None, {}, "0", id="the first"),
    ],
)
def test_a_job_of_a_machine_takes_the_gpus_of_its_site(
    gpus: list[int] | None, environment: dict[str, str], visible: str, folder: Path
) -> None:
    site = {"accelerator": "cuda", "devices_per_node": 2, "cpus_per_node": 8, "python": sys.executable}
    site |= {"visible_devices": gpus} if gpus else {}
    program = PROGRAM | {"devices": [1], "starts": "itself", "environment": {}, "arguments": ["{folder}"]}
    (folder / "job.sh").write_text(script(folder, program, site, "d1.r1"))
    (folder / "train.py").write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n")

    run = subprocess.run(
        ["bash", "job.sh"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout == f"{visible}\n"
