"""The probe's way into processes that a program starts, and what it leaves as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.ranks.program.environment import write_startup

SCRIPT = Path(__file__).parent / "probed_scripts" / "spawning.py"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The probe on PYTHONPATH, before a folder with the user's own sitecustomize."""
    (tmp_path / "left").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(
        "import os, pathlib\n(pathlib.Path(__file__).parent / f'{os.getpid()}.ran').touch()\n"
    )
    write_startup(tmp_path / "startup")
    (tmp_path / "spec.json").write_text(
        json.dumps({"folder": str(tmp_path / "left"), "warmup_steps": 1, "steps": 4})
    )
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "startup"), str(tmp_path / "own")]),
        "SCALEWISE_PROBE": str(tmp_path / "spec.json"),
        "OMP_NUM_THREADS": "1",
    }


def test_processes_that_a_program_spawns_are_measured_and_ended(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """It asks for torch's spec before it imports it, and sets PYTHONPATH for its children."""
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    said = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "left").glob("*.record.json"))]

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "parent").read_text() == "goes on"
    assert [(record["rank"], record["world_size"], len(record["seconds"])) for record in records] == [
        (0, 2, 5),
        (1, 2, 5),
    ]
    assert len({record["pid"] for record in records}) == 2
    assert all(record["ended"] == "steps" for record in records)
    assert said["sitecustomize"] == "own"
    assert str(tmp_path / "startup") not in said["path"].split()
    assert said["child"].split(os.pathsep) == [str(tmp_path / "startup"), "/given"]
    # in the parent alone, which took the user's folder from the path of all others
    assert len(list((tmp_path / "own").glob("*.ran"))) == 1


def test_a_process_without_torch_imports_nothing_of_ours(environment: dict[str, str]) -> None:
    def modules(variables: dict[str, str]) -> set[str]:
        told = subprocess.run(
            [sys.executable, "-c", "import sys; print(*sys.modules)"],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        )
        return set(told.stdout.split())

    own = environment | {"PYTHONPATH": environment["PYTHONPATH"].split(os.pathsep)[1]}

    assert modules(environment) - modules(own) <= {"__future__"}
