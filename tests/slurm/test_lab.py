"""The cluster that other tests rely on: what no study of theirs shows of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.paths import ROOT
from tests.slurm.lab import Lab
from tests.slurm.machines import CGROUPS, LabError
from tests.waiting import LIMIT_SECONDS, wait_until


def traces(prefix: str) -> list[str]:
    """Files, cgroups, mounts and processes that bear a lab's prefix."""
    found = [str(path) for path in Path(tempfile.gettempdir()).glob(f"*{prefix}*")]
    found += [str(path) for path in CGROUPS.glob(f"**/*{prefix}*")]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if prefix in line]
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            # daemons do not all name their folder, but all were started in it
            if prefix.encode() in line or prefix in str((process / "cwd").readlink()):
                found.append(f"{process.name}: {line.decode(errors='replace')[:200]}")
    return found


HELD = """
import time

def test_that_takes_long(lab):
    time.sleep(1200)
"""


@pytest.mark.parametrize("ending", ["a closed terminal", "a killed worker"])
def test_a_cluster_ends_with_its_tests_however_they_end_and_harms_no_other(
    lab: Lab, tmp_path: Path, ending: str
) -> None:
    held, printed = tmp_path / "test_held.py", tmp_path / "output.txt"
    held.write_text(HELD)
    command = [sys.executable, "-m", "pytest", "--rootdir", str(ROOT), "-c", "pyproject.toml"]
    command += ["-p", "tests.conftest", "-p", "tests.slurm.conftest", "-p", "no:cacheprovider"]
    command += ["--numprocesses", "1", "--max-worker-restart", "0", "--basetemp", str(tmp_path / "held")]
    with printed.open("w") as output:
        process = subprocess.Popen(
            [*command, str(held)], cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )
    tests = psutil.Process(process.pid)

    def folder(worker: psutil.Process) -> Path:
        return Path(tempfile.gettempdir()) / f"scalewise-t{worker.pid}n"

    def up() -> list[psutil.Process]:
        children = tests.children()
        return [child for child in children if (folder(child) / "run" / "slurmctld.pid").exists()]

    (worker,) = wait_until(up, lambda: f"a cluster has not started: {printed.read_text()}")
    prefix = f"t{worker.pid}n"
    assert len(traces(prefix)) > 5
    with pytest.raises(LabError, match="exists"):
        Lab.up(folder(worker), prefix)
    if ending == "a killed worker":
        worker.kill()
    else:
        os.killpg(tests.pid, signal.SIGHUP)
    process.communicate(timeout=LIMIT_SECONDS)
    wait_until(lambda: not traces(prefix), lambda: f"{ending} leaves {traces(prefix)}")
    lab.run("srun", "--nodes=4", "true")


def test_failed_start_says_why_and_leaves_no_trace(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = lab.prefix.removesuffix("n") + "f"

    def broken(lab: Lab) -> None:
        """As `Lab._configure`, but slurmctld does not understand the outcome."""
        configure(lab)
        with (lab.folder / "etc" / "slurm.conf").open("a") as conf:
            conf.write("PartitionName=lost Nodes=nowhere\n")

    configure = Lab._configure
    monkeypatch.setattr(Lab, "_configure", broken)
    with pytest.raises(LabError, match="nowhere"):
        Lab.up(Path(tempfile.gettempdir()) / f"scalewise-{prefix}", prefix)

    assert traces(prefix) == []
