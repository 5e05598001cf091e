"""A real Slurm cluster of several hosts on one machine, for the tests and for trying things by hand.

Four nodes of 16 CPUs and 4 GPUs, all of them pretended, and a head with slurmctld, slurmdbd and MariaDB.
Slurm, gloo and Snakemake see a cluster; a power cut is a killed process. Needs root on Linux.

    python tests/slurm/lab.py up
    python tests/slurm/lab.py run sbatch --wrap hostname
    python tests/slurm/lab.py run
    python tests/slurm/lab.py down
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template

if not __package__:  # as a program, from any folder
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.slurm.machines import CGROUPS, LabError, Machines, await_end, environment, kill, missing
from tests.slurm.records import SACCT, Job, parse_jobs
from tests.waiting import LIMIT_SECONDS, wait_until

FOLDER = Path(tempfile.gettempdir()) / "scalewise-slurm-lab"
GUARD = "guard"


@dataclass(frozen=True)
class Lab(Machines):
    """A running cluster: its folder, and what the names of its nodes begin with."""

    @classmethod
    def up(cls, folder: Path, prefix: str = "node", ends_with: int | None = None) -> Lab:
        """Start a cluster in a new folder; those of different folders and prefixes live side by side.

        Args:
            ends_with: a process whose end, by whatever signal, takes the cluster down.

        Raises:
            LabError: it cannot start here, or did not; then nothing of it is left.
        """
        lab = cls(folder.resolve(), prefix)
        if reason := missing():
            raise LabError(reason)
        try:
            lab.folder.mkdir(parents=True)
        except FileExistsError as error:
            raise LabError(
                f"{lab.folder} exists. Take that lab down first, or name another folder."
            ) from error
        try:
            lab._configure()
            if ends_with is not None:
                lab._start_guard(ends_with)
            lab.start_head()
            lab._start_munge()
            lab._start_database()
            lab.start_accounting()
            lab._create_accounts()
            lab._start_daemon("slurmctld", "-D")
            lab._await("slurmctld", "squeue")
            for node in lab.names:
                lab.start_node(node)
            lab.await_idle()
        except BaseException:
            lab.down()
            raise
        return lab

    @classmethod
    def at(cls, folder: Path) -> Lab:
        """The cluster that another process started in this folder."""
        try:
            prefix = (folder / "prefix").read_text()
        except FileNotFoundError as error:
            raise LabError(f"There is no lab in {folder}. Start one with up.") from error
        return cls(folder.resolve(), prefix)

    def down(self) -> None:
        """End every process of the cluster and remove all it made, also after a half-way failed `up`."""
        made_etc_slurm = (self.folder / "run" / "made-etc-slurm").exists()
        guard = self.pid(GUARD)
        self.stop()
        if made_etc_slurm:
            Path("/etc/slurm").rmdir()
        if guard not in (None, os.getpid()):
            kill(guard)

    # ---- nodes and daemons

    def power_on(self, node: str) -> None:
        """Start a node that was stopped, and wait until Slurm may use it; its network is not limited."""
        self.start_node(node)
        self.await_idle(node)

    def node_states(self) -> dict[str, str]:
        """Each node's state as sinfo shows it: idle, mixed, down, drained, or idle* if it does not answer."""
        # not sinfo --nodes: asked for one node, slurmctld may show what it was before the last job ended
        ask = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T"]
        return dict(line.split() for line in self.run(*ask, check=False).stdout.splitlines())

    def await_idle(self, *nodes: str) -> None:
        """Wait until these nodes, by default all, are up and nothing runs on them."""
        asked = nodes or self.names
        wait_until(
            lambda: {self.node_states().get(node) for node in asked} == {"idle"},
            lambda: f"the nodes are {self.node_states()}, not idle:\n{self.log(asked[0])}",
        )

    def start_accounting(self) -> None:
        """Start slurmdbd and wait until it answers."""
        self._start_daemon("slurmdbd", "-D", env={"MYSQL_UNIX_PORT": f"{self.folder}/run/mariadb.sock"})
        self._await("slurmdbd", "sacctmgr", "--noheader", "show", "cluster")

    def stop_accounting(self) -> None:
        """Stop slurmdbd: sacct fails, jobs go on, and their records come later."""
        pid = self.pid("slurmdbd")
        assert pid is not None, "it runs"
        kill(pid, signal.SIGTERM)

    # ---- jobs

    def queue(self) -> list[str]:
        """The jobs that have not ended, completing ones among them."""
        return self.ask("squeue", "--noheader", "--format=%i").split()

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints; asked again where a busy slurmctld does not answer in time."""
        answers: list[str] = []

        def answered() -> bool:
            with suppress(subprocess.CalledProcessError):
                answers.append(self.run(*command).stdout)
            return bool(answers)

        wait_until(answered, lambda: f"{shlex.join(command)} fails:\n{self.log('slurmctld')}")
        return answers[0]

    def wait_until_queue_is_empty(self) -> None:
        """A cancelled job stays in the queue, completing, until its nodes have cleaned up after it."""
        wait_until(lambda: not self.queue(), lambda: f"these are queued: {self.queue()}")

    def state(self, job_id: str) -> str:
        """A job's state as slurmctld has it, or an empty text once that has forgotten it."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job_id, check=False).stdout
        match = re.search(r"JobState=(\w+)", shown)
        return match[1] if match else ""

    def wait(self, job_id: str, *states: str) -> None:
        """Wait until a job is in one of these states."""
        wait_until(
            lambda: self.state(job_id) in states,
            lambda: f"job {job_id} is {self.state(job_id)}, not {' or '.join(states)}.",
        )

    def jobs(self) -> list[Job]:
        """All jobs so far as accounting has them."""
        return parse_jobs(self.run(*SACCT, "--allusers", "--starttime=2000-01-01").stdout)

    def accounting(self, job_id: str, limit: float = LIMIT_SECONDS) -> Job:
        """Accounting's record of a job that ends; waits until it is complete."""
        found: list[Job] = []

        def ended() -> bool:
            with suppress(subprocess.CalledProcessError):
                found[:] = parse_jobs(self.run(*SACCT, f"--jobs={job_id}").stdout)
            # the partition of a short job follows seconds later
            return bool(found) and found[-1].ended and found[-1].partition != ""

        wait_until(ended, lambda: f"accounting has no end of job {job_id}: {found}", limit)
        return found[-1]

    # ---- how it starts

    def _configure(self) -> None:
        (self.folder / "prefix").write_text(self.prefix)
        spools = [f"spool/{node}" for node in self.names]
        for name in ("etc", "run", "log", "state", "dev", "database", *spools):
            (self.folder / name).mkdir(parents=True)
        for number in range(4):
            # a regular file would do for counting, but Slurm sets CUDA_VISIBLE_DEVICES for devices only
            (self.folder / "dev" / f"nvidia{number}").symlink_to("/dev/null")
        if not Path("/etc/slurm").exists():  # host.sh mounts over it
            (self.folder / "run" / "made-etc-slurm").touch()
            Path("/etc/slurm").mkdir()

        tracking = (
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherParams=OverMemoryKill"
        )
        if tracks_by_cgroups():
            tracking = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup"
        template = Template(Path(__file__).with_name("slurm.conf").read_text())
        slurm = template.substitute(
            folder=self.folder,
            prefix=self.prefix,
            nodes=self.nodes,
            last_address=10 + self.nodes,
            tracking=tracking,
        )
        addresses = {"localhost": "127.0.0.1", "head": "10.99.0.1"}
        addresses |= {node: f"10.99.0.{10 + number}" for number, node in enumerate(self.names, 1)}
        etc = self.folder / "etc"
        (etc / "hosts").write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))
        (etc / "slurm.conf").write_text(slurm)
        (etc / "gres.conf").write_text(f"Name=gpu Type=h100 File={self.folder}/dev/nvidia[0-3]\n")
        # named even where nothing uses cgroups: where slurmd finds v2 itself, it asks systemd for a scope
        (etc / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainRAMSpace=yes\n"
        )
        (etc / "slurmdbd.conf").touch(0o600)  # or slurmdbd refuses it
        (etc / "slurmdbd.conf").write_text(
            f"AuthType=auth/munge\nAuthInfo={self.folder}/run/munge.sock\nDbdHost=head\nDbdAddr=10.99.0.1\n"
            f"SlurmUser=root\nPidFile={self.folder}/run/slurmdbd.own-pid\nDebugLevel=verbose\n"
            "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\n"
        )
        (etc / "munge.key").touch(0o600)
        (etc / "munge.key").write_bytes(secrets.token_bytes(128))

    def _start_guard(self, pid: int) -> None:
        """Start what takes the lab down once a process has ended; kill -9 leaves that process no time to."""
        words = ["down", "--folder", str(self.folder), "--after", str(pid)]
        # in another session, which neither Ctrl-C nor a closed terminal reaches
        self.spawn(GUARD, [sys.executable, str(Path(__file__).resolve()), *words])

    def _start_munge(self) -> None:
        run = self.folder / "run"
        files = [f"--key-file={self.folder}/etc/munge.key", f"--seed-file={run}/munge.seed"]
        files += [f"--pid-file={run}/munged.own-pid", f"--socket={run}/munge.sock"]
        self._start_daemon("munged", "--foreground", *files)
        self._await("munged", "munge", f"--socket={run}/munge.sock", "--no-input")

    def _start_database(self) -> None:
        common = ["--no-defaults", f"--datadir={self.folder}/database", "--user=root"]
        common += ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M"]
        # a server that starts removes what others have in the temporary folder that they share
        common += [f"--tmpdir={self.folder}/run"]
        trust = ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root"]
        self.run("mariadb-install-db", *common, *trust, "--skip-test-db")
        socket = f"--socket={self.folder}/run/mariadb.sock"
        quick = ["--skip-log-bin", "--performance-schema=off", "--innodb-flush-log-at-trx-commit=0"]
        # slurmdbd complains below 900
        own = ["--skip-networking", "--innodb-lock-wait-timeout=900"]
        self._start_daemon("mariadbd", *common, socket, *quick, *own)
        self._await("mariadbd", "mariadb", "--no-defaults", socket, "--user=root", "--execute=select 1")

    def _create_accounts(self) -> None:
        # before slurmctld starts: what is added while it reads its associations can pass it by
        for words in (
            "cluster lab",
            "qos short",
            "account lab Cluster=lab Description=lab Organization=lab QOS=normal,short DefaultQOS=normal",
            "user root Cluster=lab Account=lab DefaultAccount=lab",
        ):
            self.run("sacctmgr", "--immediate", "--quiet", "add", *words.split())

    def _start_daemon(self, program: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        if self.pid(program):
            raise LabError(f"{program} is running already.")
        self.spawn(program, self.command([program, *arguments], cwd=self.folder), env)

    def _await(self, program: str, *ask: str) -> None:
        def answered() -> bool:
            if self.pid(program) is None:
                raise LabError(f"{program} ended at its start:\n{self.log(program)}")
            return self.run(*ask, check=False).returncode == 0

        wait_until(answered, lambda: f"{program} does not answer:\n{self.log(program)}")


def main() -> int:
    """Start or end a cluster, or run a command on its head."""
    parser = argparse.ArgumentParser(description="A Slurm cluster of several hosts on this machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, about in {
        "up": "start the cluster",
        "run": "run a command on its head, or open a shell there",
        "down": "end it and remove all it made",
    }.items():
        added = verbs.add_parser(verb, help=about)
        added.add_argument("--folder", type=Path, default=FOLDER, help=f"where it lives ({FOLDER})")
        if verb == "run":
            added.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
        if verb == "down":
            added.add_argument("--after", type=int, metavar="PID", help="wait until this process has ended")
    chosen = parser.parse_args()
    try:
        if chosen.verb == "up":
            print(_usage(Lab.up(chosen.folder)))
            return 0
        lab = Lab.at(chosen.folder)
        if chosen.verb == "down":
            await_end(chosen.after)
            lab.down()
            return 0
        argv = lab.command(chosen.command or [os.environ.get("SHELL", "bash")])
    except (LabError, TimeoutError) as error:
        print(f"lab.py: {error}", file=sys.stderr)
        return 1
    # become the command, so that signals reach it
    return os.execvpe(argv[0], argv, environment())


def tracks_by_cgroups() -> bool:
    """Return whether Slurm can follow the processes of a step by control groups on this machine."""
    return all(os.access(CGROUPS / name / "tasks", os.W_OK) for name in ("freezer", "memory"))


def _usage(lab: Lab) -> str:
    program = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).resolve()))}"
    where = "" if lab.folder == FOLDER.resolve() else f" --folder {shlex.quote(str(lab.folder))}"
    return (
        f"Slurm is up: {lab.names[0]} to {lab.names[-1]}, each with 16 pretended CPUs and 4 pretended GPUs.\n"
        f"Its logs are in {lab.folder}/log. From any folder, as root:\n\n"
        f"run a command on it    {program} run{where} sbatch --wrap hostname\n"
        f"open a shell on it     {program} run{where}\n"
        f"take it down           {program} down{where}"
    )


if __name__ == "__main__":
    sys.exit(main())
