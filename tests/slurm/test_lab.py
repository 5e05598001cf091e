"""The cluster that other tests rely on: what they may expect of it, shown once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.slurm.lab import Lab
from tests.slurm.machines import CGROUPS, LabError
from tests.waiting import LIMIT_SECONDS, wait_until

ROOT = Path(__file__).parents[2]

# The receiver prints the rate at which 10 MB came in, in Mbit/s.
RECEIVER = """
import socket, time
with socket.create_server(("", 5000)) as server:
    print("ready", flush=True)
    connection = server.accept()[0]
    received, began = len(connection.recv(1 << 16)), time.monotonic()
    while part := connection.recv(1 << 16):
        received += len(part)
print(8e-6 * received / (time.monotonic() - began))
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes(10_000_000))
"""


def submit(lab: Lab, folder: Path, *arguments: str) -> str:
    return lab.run("sbatch", "--parsable", "--output=%j.out", *arguments, cwd=folder).stdout.strip()


def megabits_per_second(lab: Lab) -> float:
    sender, receiver = lab.names[:2]
    with lab.start(sys.executable, "-c", RECEIVER, host=receiver) as receiving:
        assert receiving.stdout
        assert receiving.stdout.readline() == "ready\n"
        lab.run(sys.executable, "-c", SENDER, receiver, host=sender)
        return float(receiving.stdout.read())


def test_job_on_two_nodes_has_a_task_per_gpu_and_is_accounted(lab: Lab, tmp_path: Path) -> None:
    say = "echo $(hostname) $SLURM_PROCID $CUDA_VISIBLE_DEVICES"
    shape = ["--nodes=2", "--ntasks-per-node=2", "--gres=gpu:2", "--comment=rule_train|1"]
    job_id = submit(lab, tmp_path, *shape, "--wrap", f"srun bash -c '{say}'")

    job = lab.accounting(job_id)

    assert (job.state, job.exit_code, job.account, job.partition) == ("COMPLETED", 0, "lab", "main")
    assert (job.nodes, job.gpus, job.cpus, job.memory_mb, job.tasks) == (2, 4, 4, 8000, 4)
    assert job.comment == "rule_train|1"
    assert [step.name for step in job.steps if step.tasks == 4] == ["0"]
    assert job in lab.jobs()
    first, second = lab.names[:2]
    assert sorted((tmp_path / f"{job_id}.out").read_text().splitlines()) == sorted(
        [f"{first} 0 0,1", f"{first} 1 0,1", f"{second} 2 0,1", f"{second} 3 0,1"]
    )


def test_power_cut_fails_the_job_and_the_node_comes_back(lab: Lab, tmp_path: Path) -> None:
    node = lab.names[-1]
    job_id = submit(lab, tmp_path, "--no-requeue", f"--nodelist={node}", "--wrap", "srun sleep 600")
    lab.wait(job_id, "RUNNING")

    lab.power_off(node)
    assert lab.processes(node) == {}
    job = lab.accounting(job_id)
    lab.power_on(node)

    assert job.state == "NODE_FAIL"
    assert (
        lab.accounting(submit(lab, tmp_path, f"--nodelist={node}", "--wrap", "srun true")).state
        == "COMPLETED"
    )


def test_cancelled_job_leaves_no_process(lab: Lab, tmp_path: Path) -> None:
    node = lab.names[0]
    job_id = submit(lab, tmp_path, f"--nodelist={node}", "--wrap", "srun sleep 600")
    lab.wait(job_id, "RUNNING")

    # Slurm calls a job running before its node has started anything
    wait_until(
        lambda: is_running(lab, node, job_id),
        lambda: f"nothing of job {job_id} runs on {node}",
    )
    lab.run("scancel", job_id)
    job = lab.accounting(job_id)

    assert job.state == "CANCELLED"
    lab.await_idle(node)
    wait_until(lambda: not lab.processes(node), lambda: f"these are left: {lab.processes(node)}")


def is_running(lab: Lab, node: str, job_id: str) -> bool:
    return any(line.startswith(f"slurmstepd: [{job_id}.") for line in lab.processes(node).values())


def test_network_is_as_slow_as_asked(lab: Lab) -> None:
    lab.limit_network("100mbit")
    try:
        limited = megabits_per_second(lab)
    finally:
        lab.unlimit_network()

    assert limited < 130
    assert megabits_per_second(lab) > limited


def test_jobs_outlive_the_daemons_of_the_head(lab: Lab, tmp_path: Path) -> None:
    job_id = submit(lab, tmp_path, "--wrap", "sleep 4")
    lab.wait(job_id, "RUNNING")

    lab.stop_controller()
    lab.stop_accounting()
    with pytest.raises(subprocess.CalledProcessError):
        lab.jobs()
    lab.start_accounting()
    lab.start_controller()

    assert lab.accounting(job_id).state == "COMPLETED"


@pytest.mark.parametrize("words", [["--account=other"], ["--qos=other"], ["--partition=brief", "--time=61"]])
def test_what_a_computing_centre_would_refuse_is_refused(lab: Lab, tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        submit(lab, tmp_path, *words, "--wrap", "true")


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


def test_second_cluster_lives_beside_the_first_and_leaves_no_trace(lab: Lab, tmp_path: Path) -> None:
    prefix = lab.prefix.removesuffix("n") + "m"
    folder = Path(tempfile.gettempdir()) / f"scalewise-{prefix}"
    second = Lab.up(folder, prefix, nodes=2)
    try:
        job_id = submit(second, tmp_path, "--nodes=2", "--wrap", "srun sleep 600")
        second.wait(job_id, "RUNNING")
        assert len(traces(prefix)) > 10
        assert Lab.at(folder) == second
        with pytest.raises(LabError, match="exists"):
            Lab.up(folder, prefix)
    finally:
        second.down()

    assert traces(prefix) == []
    assert lab.accounting(submit(lab, tmp_path, "--nodes=4", "--wrap", "srun true")).state == "COMPLETED"


def ended_by_ctrl_c(tests: psutil.Process, _worker: psutil.Process) -> None:
    os.killpg(tests.pid, signal.SIGINT)


def ended_by_a_closed_terminal(tests: psutil.Process, _worker: psutil.Process) -> None:
    os.killpg(tests.pid, signal.SIGHUP)


def ended_by_sigterm(tests: psutil.Process, _worker: psutil.Process) -> None:
    tests.terminate()


def ended_by_a_killed_worker(_tests: psutil.Process, worker: psutil.Process) -> None:
    worker.kill()


Ending = Callable[[psutil.Process, psutil.Process], None]
ENDINGS: tuple[Ending, ...] = (
    ended_by_ctrl_c,
    ended_by_a_closed_terminal,
    ended_by_sigterm,
    ended_by_a_killed_worker,
)


HELD = """
import time

def test_that_takes_long(lab):
    time.sleep(1200)
"""


def test_whatever_ends_the_tests_their_cluster_ends_with_them(lab: Lab, tmp_path: Path) -> None:
    """Once `make test` has been cut off, nothing of its cluster is left, however that was."""
    held = tmp_path / "test_held.py"
    held.write_text(HELD)
    shared = ["-p", "tests.conftest", "-p", "tests.slurm.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "--rootdir", str(ROOT), "-c", "pyproject.toml", *shared]
    started = {}
    for end in ENDINGS:
        folder = tmp_path / end.__name__
        ends = ["--numprocesses", "1", "--max-worker-restart", "0", "--basetemp", str(folder)]
        with folder.with_suffix(".txt").open("w") as said:
            started[end] = subprocess.Popen(
                [*command, *ends, str(held)], cwd=ROOT, stdout=said, stderr=said, start_new_session=True
            )
    left = {}
    for end, tests in started.items():
        words = (tmp_path / end.__name__).with_suffix(".txt")
        worker = await_cluster(psutil.Process(tests.pid), words)
        left[end] = lab_of(worker).name.removeprefix("scalewise-")
        assert len(traces(left[end])) > 5
        end(psutil.Process(tests.pid), worker)
    for end, prefix in left.items():
        started[end].communicate(timeout=LIMIT_SECONDS)
        await_no_trace(prefix, end.__name__)


def await_cluster(tests: psutil.Process, words: Path) -> psutil.Process:
    """The process that runs `tests`, so soon as Slurm is up for them, or nearly."""

    def up() -> list[psutil.Process]:
        return [child for child in tests.children() if (lab_of(child) / "run" / "slurmctld.pid").exists()]

    wait_until(lambda: bool(up()), lambda: f"a cluster has not started: {words.read_text()}")
    (worker,) = up()
    return worker


def await_no_trace(prefix: str, ending: str) -> None:
    wait_until(lambda: not traces(prefix), lambda: f"{ending} leaves {traces(prefix)}")


def lab_of(worker: psutil.Process) -> Path:
    """Where the cluster of a process that runs tests lies."""
    return Path(tempfile.gettempdir()) / f"scalewise-t{worker.pid}n"


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


def test_folder_too_long_for_sockets_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=re.escape("bytes too long for Unix sockets")):
        Lab.up(tmp_path / ("long" * 20))
