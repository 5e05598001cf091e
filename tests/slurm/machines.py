"""Several hosts on one machine: a head and nodes, each in its own Linux namespaces, on one switch.

A host has its own name, network card, /etc/hosts, shared memory and, for a node, process numbers. Nothing
here knows about Slurm but for the first process of a node, host.sh, which starts slurmd.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import LIMIT_SECONDS, wait_until

NAMESPACES = ["unshare", "--net", "--uts", "--mount", "--ipc"]
NODE_NAMESPACES = [*NAMESPACES, "--pid", "--fork", "--kill-child", "--mount-proc"]
CGROUPS = Path("/sys/fs/cgroup")
FORK_SERVER = "preloading.py"
PROGRAMS = ["slurmctld", "slurmd", "slurmdbd", "sbatch", "munged", "mariadbd", "mariadb", "ip", "unshare"]
INSTALL = (
    "apt-get install --no-install-recommends slurmctld slurmd slurmdbd slurm-client slurm-wlm-mysql-plugin "
    "munge mariadb-server-core mariadb-client-core iproute2"
)


class LabError(RuntimeError):
    """The lab, or something in it, did not come to the state that was asked for."""


def environment() -> dict[str, str]:
    """The caller's environment, without the traces of a cluster it may itself run on."""
    clients = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SACCT_", "SQUEUE_", "SINFO_", "SCANCEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(clients)}
    # daemons and network tools are not always on the path
    return kept | {"PATH": f"{kept.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def output(
    argv: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = LIMIT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is; with the caller's environment and `env` on top."""
    return subprocess.run(
        argv,
        env=environment() | dict(env or {}),
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def missing() -> str | None:
    """Why no lab can run on this machine, in one sentence, or None."""
    if sys.platform != "linux":
        return "The Slurm lab needs Linux."
    if os.geteuid() != 0:
        return "The Slurm lab needs root, to make hosts and a network."
    path = environment()["PATH"]
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if not any(Path("/usr/lib").glob("**/slurm*/accounting_storage_mysql.so")):
        absent.append("accounting_storage_mysql.so")
    if absent:
        return f"The Slurm lab does not find {', '.join(absent)}. Install with: {INSTALL}"
    probe = "ip link add cable type veth && ip link add switch type bridge && mount -t tmpfs tmpfs /dev/shm"
    attempt = output([*NODE_NAMESPACES, "sh", "-c", probe])
    if attempt.returncode:
        return f"The Slurm lab may not make hosts and a network here: {attempt.stderr.strip()}"
    return None


@dataclass(frozen=True)
class Machines:
    """Hosts that share a folder, in which `run` remembers their processes and `log` what these say."""

    folder: Path
    prefix: str
    nodes: int = 4

    @property
    def names(self) -> list[str]:
        """The names of the nodes."""
        return [f"{self.prefix}{number}" for number in range(1, self.nodes + 1)]

    def command(self, argv: Sequence[str | Path], host: str = "head", cwd: Path | None = None) -> list[str]:
        """The command line that runs this one on a host, in this folder or that of the caller.

        On the head it becomes the command itself, which can so be signalled. A node has process numbers of
        its own: there it waits for the command, which dies when it does.
        """
        pid = self.pid(host)
        if pid is None:
            raise LabError(f"{host} is not running.")
        enter = ["nsenter", "--target", str(pid), "--net", "--uts", "--mount", "--ipc"]
        if host != "head":
            enter += ["--pid", "setpriv", "--pdeathsig", "KILL"]
        # not nsenter's --wdns, which Ubuntu 22.04 does not have
        place = ["env", "--chdir", str(cwd or Path.cwd()), f"SLURM_CONF={self.folder}/etc/slurm.conf"]
        return [*enter, *place, *map(str, argv)]

    def run(
        self,
        *argv: str | Path,
        host: str = "head",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = LIMIT_SECONDS,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host; `env` comes on top of the caller's environment."""
        command = self.command(argv, host, cwd)
        done = output(command, env, timeout)
        if check and done.returncode:
            error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
            error.add_note(done.stdout + done.stderr)
            raise error
        return done

    def start(
        self,
        *argv: str | Path,
        host: str = "head",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command on a host, its output and errors in one pipe; `env` as for `run`."""
        return subprocess.Popen(
            self.command(argv, host, cwd),
            env=environment() | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # read when it has ended: as much must fit as a long study says
            pipesize=1 << 20,
        )

    def hosts(self) -> list[int]:
        """Return a process of the head and of each node that runs."""
        return [pid for pid in map(self.pid, ["head", *self.names]) if pid is not None]

    def processes(self, host: str) -> dict[int, str]:
        """Process number, as seen from outside, and command line of all that runs on a host.

        Without what makes it a host: its first process, slurmd, the server of forks, and the daemons of the
        head. The slurmstepd of a job is there.
        """
        own = {self.pid(path.stem) for path in (self.folder / "run").glob("*.pid")}
        found = {}
        for pid in self._inside(host):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if line and pid not in own and not line.startswith("slurmd ") and FORK_SERVER not in line:
                    found[pid] = line.strip()
        return found

    def unlimit_network(self) -> None:
        """Lift what limits a node's network card, if anything does."""
        for node in self.names:
            self.run("tc", "qdisc", "del", "dev", "eth0", "root", host=node, check=False)

    def start_head(self) -> None:
        """Start the head, and in its network the switch."""
        self.spawn("head", [*NAMESPACES, "bash", str(_HOST), "head", str(self.folder)])
        ready = self.folder / "run" / "head.ready"
        wait_until(ready.exists, lambda: f"the head has not started:\n{self.log('head')}")

    def start_node(self, node: str) -> None:
        """Start a node and plug it into the switch."""
        launcher = self.spawn(node, [*NODE_NAMESPACES, "bash", str(_HOST), node, str(self.folder)])
        children = Path(f"/proc/{launcher}/task/{launcher}/children")

        def born() -> list[str]:
            with suppress(OSError):
                return children.read_text().split()
            return []

        wait_until(lambda: bool(born()), lambda: f"{node} has not started:\n{self.log(node)}")
        pid = int(born()[0])
        self._remember(node, pid)
        number = self.names.index(node) + 1
        # both ends of a cable vanish with their node, but not at once
        cable = f"cable{number}"
        self.run("ip", "link", "del", cable, check=False)
        self.run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.run("ip", "link", "set", cable, "master", "br0", "up")
        self.run("ip", "addr", "add", f"10.99.0.{10 + number}/24", "dev", "eth0", host=node)
        self.run("ip", "link", "set", "eth0", "up", host=node)

    def stop_node(self, node: str) -> None:
        """End a node with all of its processes, if it runs."""
        if pid := self.pid(node):
            kill(pid)
        wait_until(lambda: _without_cgroups(node), lambda: f"the cgroups of {node} are in use.")

    def stop(self) -> None:
        """End every process on every host and remove the folder."""
        head = self.pid("head")
        if head and _namespace("self", "net") == _namespace(head, "net"):
            raise LabError("This is a shell inside the lab. Leave it first.")

        def empty() -> bool:
            # whatever is in the head's network was started there: daemons, and clients that tests left
            found = [pid for pid in self._inside("head") if pid != head]
            for pid in found:
                kill(pid)
            return not found

        for pid in filter(None, map(self.pid, self.names)):
            kill(pid)
        if head:
            wait_until(empty, lambda: f"processes go on on the head: {self.processes('head')}")
            kill(head)
        shutil.rmtree(self.folder, ignore_errors=True)
        for node in self.names:
            self.stop_node(node)

    def spawn(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Start a process that outlives this one, its output in a log, and remember it."""
        log = str(self.folder / "log" / f"{name}.log")
        # not Popen, which insists on waiting for what it started
        pid = os.posix_spawnp(
            argv[0],
            list(argv),
            environment() | dict(env or {}),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._remember(name, pid)
        return pid

    def pid(self, name: str) -> int | None:
        """A remembered process, unless it has ended; its number may be a stranger's by now."""
        try:
            pid, started = (self.folder / "run" / f"{name}.pid").read_text().split()
        except FileNotFoundError:
            return None
        return int(pid) if _start_time(int(pid)) == started else None

    def log(self, name: str, lines: int = 15) -> str:
        """The end of what a remembered process said."""
        path = self.folder / "log" / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def _remember(self, name: str, pid: int) -> None:
        (self.folder / "run" / f"{name}.pid").write_text(f"{pid} {_start_time(pid)}")

    def _inside(self, host: str) -> Iterator[int]:
        """The processes of a host: by their numbers, or on the head, without such, by network."""
        kind = "net" if host == "head" else "pid"
        pid = self.pid(host)
        if pid is None:
            return
        here = _namespace(pid, kind)
        for process in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
            with suppress(OSError):
                if _namespace(process, kind) == here:
                    yield process


_HOST = Path(__file__).with_name("host.sh")


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """End a process and wait until it is gone."""
    with suppress(ProcessLookupError, FileNotFoundError):
        parent = re.search(r"^PPid:\t(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        os.kill(pid, number)
        wait_until(lambda: _start_time(pid) is None, lambda: f"process {pid} ignores {number.name}")
        # if we started it, or the unshare that started it, leave no zombie
        for child in (pid, int(parent[1]) if parent else 0):
            with suppress(ChildProcessError):
                os.waitpid(child, 0)


def await_end(pid: int | None) -> None:
    """Wait until a process has ended, also one that is no child of this process."""
    if pid is None:
        return
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        select.select([descriptor], [], [])
        os.close(descriptor)


def _start_time(pid: int) -> str | None:
    """When a process started, in ticks since boot; None once it has ended, even as a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]


def _namespace(pid: int | str, kind: str) -> Path:
    return Path(f"/proc/{pid}/ns/{kind}").readlink()


def _without_cgroups(node: str) -> bool:
    """Remove the cgroups that a node's slurmd made; the kernel may hold on to them for a moment."""
    for root in CGROUPS.glob(f"*/slurm_{node}"):
        for folder, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
    return not any(CGROUPS.glob(f"*/slurm_{node}"))
