"""A Python that has torch and Snakemake loaded already, for tests of what happens once programs are at work.

Most of a tiny study's computing is imports. Here a server imports once and enters each host, and a small
program that takes the place of Python has it fork Snakemake, a command of Scalewise, a rank, torchrun, or a
program of the tests that trains: in its folder, with its environment, output, command line, CPUs, limits,
umask, control groups and ignored signals. The fork is ended when the small program is, and the small program
ends as the fork does. All other programs, torchrun on a cluster, ranks of several threads, other modules on
PYTHONPATH, and file systems without a server get the real interpreter.
"""

import atexit
import ctypes
import gc
import io
import json
import os
import platform
import resource
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "workflow" / "scripts"
SNAKEFILE = ROOT / "workflow" / "Snakefile"
PLANTED = Path(__file__).with_name("planted_speeds.py")
PROGRAMS = [
    str(PLANTED),
    str(SCRIPTS / "train.py"),
    *(str(Path(__file__).parent / "distributed" / name) for name in ("own_program.py", "trainer_program.py")),
]
"""Programs that train: those of the tests, and the one of the pipeline."""

COUNTS_OTHERS = "COUNTS_OTHERS"
"""Variable of ranks that record how much of the CPUs other programs took."""

PROMPT = Path(__file__).parent / "slurm" / "prompt_snakemake.py"
ROOM = " " * 1000
"""Argument of a server, in whose place a fork's command line is written."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CGROUPS = Path("/sys/fs/cgroup")
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: a signal when the parent ends."""

PROGRAM = """\
#!{python} -IS
import array, contextlib, ctypes, json, os, signal, socket, sys

unbuffered = sys.argv[1:2] == ["-u"]
words = sys.argv[1 + unbuffered:] or [""]
folder, _, script = os.path.abspath(words[0]).rpartition("/workflow/scripts/")
if folder and script == "program_rank.py":
    os.execv({python!r}, [{python!r}, "-u", {quiet!r}, sys.argv[0], *words])
snakemake = words[:2] == ["-m", "snakemake"] or words[0] == {prompt!r}
rank = folder and script == "hello.py"
torchrun = {torchrun!r} and words[:2] == ["-m", "torch.distributed.run"]
scalewise = snakemake or (folder and script in ("hello.py", "cli.py", "status.py"))
program = words[0] in {programs!r}
known = program or torchrun or (scalewise and os.environ.get("PYTHONPATH") == {path!r})
computes = rank or program
server = socket.socket(socket.AF_UNIX)
try:
    if not known or (computes and os.environ.get("OMP_NUM_THREADS") != "1"):
        raise OSError
    server.connect(os.path.join({folder!r}, str(os.stat("/proc/self/ns/mnt").st_ino)))
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
if computes:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with its parent, as a rank
heard = {{signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2}}
ignored = [number for number in heard if signal.getsignal(number) is signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
cpus, umask = list(os.sched_getaffinity(0)), os.umask(0)
os.umask(umask)
request = [sys.argv[0], unbuffered, words, os.getcwd(), dict(os.environ), ignored, cpus, umask]
server.sendall(json.dumps(request).encode() + b"\\n")
answers = server.makefile("r")
fork = int(answers.readline())


def forward(number, _frame):
    # Ctrl-C is for all that the fork has started, too, once it is a group
    for send in (os.killpg, os.kill) if number == signal.SIGINT else (os.kill,):
        with contextlib.suppress(ProcessLookupError):
            return send(fork, number)


for number in heard - set(ignored):
    signal.signal(number, forward)
signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
code = os.waitstatus_to_exitcode(int(answers.readline()))
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def preloaded(folder: Path, hosts: Sequence[int] = ()) -> Iterator[Path]:
    """Yield the program while its servers are at work, in a folder that also has a ``snakemake``, for PATH.

    Args:
        hosts: A process of each host on which programs start; this machine if there is none.
    """
    # Linux takes 107 characters for the name of a socket
    sockets = Path(tempfile.mkdtemp(prefix="forks-"))
    program = folder / "python"
    text = PROGRAM.format(
        python=sys.executable,
        quiet=str(Path(__file__).with_name("quiet_program_rank.py")),
        programs=PROGRAMS,
        # Slurm signals all processes of a job, and ends the job's torchrun as for users
        torchrun=not hosts,
        prompt=str(PROMPT),
        path=os.environ.get("PYTHONPATH"),
        folder=str(sockets),
    )
    snakemake = f'#!/bin/sh\nexec {shlex.quote(str(program))} -m snakemake "$@"\n'
    for file, script in ((program, text), (program.with_name("snakemake"), snakemake)):
        file.write_text(script, encoding="utf-8")
        file.chmod(0o755)
    # packages may have been brought in by PYTHONPATH
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, **dict.fromkeys(THREADS, "1")}
    command = [sys.executable, __file__, str(sockets), *map(str, hosts), ROOM]
    server = subprocess.Popen(command, env=environment)
    try:
        # this file is a program, too, which does not find tests
        from tests.waiting import ended_output, wait_until  # noqa: PLC0415

        wait_until(
            lambda: len(list(sockets.iterdir())) == max(len(hosts), 1),
            "a server of forks does not listen",
            ended=partial(ended_output, server),
        )
        yield program
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(sockets)


class Server:
    """Forks for each program that connects, until it is ended."""

    def __init__(self, sockets: Path) -> None:
        self._forks: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        # programs that see the same file systems
        self._listener.bind(str(sockets / str(Path("/proc/self/ns/mnt").stat().st_ino)))
        self._listener.listen(64)
        # a fork that ends wakes the server
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for listened in (self._listener, self._woken):
            self._selector.register(listened, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._fork(self._listener.accept()[0])
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif isinstance(client := key.fileobj, socket.socket):
                    # it sends nothing more: it has been killed, and so must its fork be
                    self._selector.unregister(client)
                    os.kill(self._forks[client], signal.SIGKILL)
            self._report_ends()

    def _fork(self, client: socket.socket) -> None:
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile("r", encoding="utf-8") as lines:
            request = json.loads(lines.readline())
        (pid, _, _) = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if (fork := os.fork()) == 0:
            _become(pid, streams, *request)
        for stream in streams:
            os.close(stream)
        self._forks[client] = fork
        self._selector.register(client, selectors.EVENT_READ)
        with suppress(OSError):
            client.sendall(f"{fork}\n".encode())

    def _report_ends(self) -> None:
        for client, fork in list(self._forks.items()):
            ended, status = os.waitpid(fork, os.WNOHANG)
            if ended:
                del self._forks[client]
                with suppress(KeyError):
                    self._selector.unregister(client)
                with client, suppress(OSError):
                    client.sendall(f"{status}\n".encode())


def _become(
    client: int,
    streams: list[int],
    program: str,
    unbuffered: bool,
    words: list[str],
    folder: str,
    environment: dict[str, str],
    ignored: list[int],
    cpus: list[int],
    umask: int,
) -> NoReturn:
    """Run the words of a client in this process, which is new."""
    _show_as([program, *words])
    _join_cgroups(client)
    for limit in (value for name, value in vars(resource).items() if name.startswith("RLIMIT_")):
        resource.setrlimit(limit, resource.prlimit(client, limit))
    os.sched_setaffinity(0, cpus)
    os.umask(umask)
    # a signal to its group is not one to the server
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for output in (sys.stdout, sys.stderr):
        assert isinstance(output, io.TextIOWrapper)
        output.reconfigure(write_through=unbuffered, line_buffering=output is sys.stderr or output.isatty())
    gc.enable()
    _become_interpreter(program, words, environment)
    code = 0
    try:
        if words[0] == "-m":
            sys.path[0], sys.argv = folder, words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0], sys.argv = str(Path(words[0]).parent), words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else end.code is not None
    except BaseException:  # noqa: BLE001  as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    # the interpreter would first take torch apart, which costs half a second
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _become_interpreter(program: str, words: list[str], environment: dict[str, str]) -> None:
    """Have the modules that the words import, and the interpreter that starts what they start."""
    if words[0] in PROGRAMS:
        # the interpreter of a program begins with what comes first on its path: the probe
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        del sys.modules["sitecustomize"]
        import_module("sitecustomize")
        return
    if str(SNAKEFILE) not in words and Path(words[0]).parent != SCRIPTS:
        # a copy of the checkout has modules, too
        sys.path.remove(str(SCRIPTS))
        for name in [name for name in sys.modules if name.partition(".")[0] == "scalewise"]:
            del sys.modules[name]
    if not words[0].endswith("hello.py"):
        # what they start is forked, too
        sys.executable = program


def _join_cgroups(pid: int) -> None:
    """Join those control groups of a process that are not this process's: Slurm ends a step by its group."""
    mine, theirs = (Path(f"/proc/{each}/cgroup").read_text(encoding="utf-8") for each in ("self", pid))
    for line in set(theirs.splitlines()) - set(mine.splitlines()):
        _, controllers, path = line.split(":", 2)
        (CGROUPS / controllers.removeprefix("name=") / path[1:] / "cgroup.procs").write_text("0")


def _show_as(words: list[str]) -> None:
    """Write a command line over this process's own, for tests that look for a rank among processes."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = "".join(f"{word}\0" for word in words).encode()[: end - start]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


def _enter(host: int) -> None:
    """Become a process of the host of another process, which ends with this one."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "uts", "ipc", "pid", "mnt"):
        namespace = os.open(f"/proc/{host}/ns/{kind}", os.O_RDONLY)
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), f"setns: {kind}")
        os.close(namespace)
    # the name of the host before
    vars(platform)["_uname_cache"] = None
    # its process numbers are those of processes that start from now on
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(1)
    _end_with_parent()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(sockets: Path, hosts: Sequence[int]) -> NoReturn:
    """Serve this machine, or each host by a fork."""
    _end_with_parent()
    if not hosts:
        Server(sockets).serve()
    for host in hosts:
        if os.fork() == 0:
            _end_with_parent()
            _enter(host)
            Server(sockets).serve()
    while True:
        signal.pause()


if __name__ == "__main__":
    # ruff: noqa: F401  forks find them loaded
    gc.disable()
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg
    import pandas
    import snakemake.cli
    import snakemake_executor_plugin_slurm
    import snakemake_executor_plugin_slurm_jobstep  # type: ignore[import-untyped]
    import torch._dynamo

    import scalewise.analysis.judge_round
    import scalewise.analysis.study
    import scalewise.report.finished
    import scalewise.report.page
    import scalewise.report.proposal
    import scalewise.training.checkpoints
    import scalewise.training.data
    import scalewise.training.models
    import scalewise.training.options

    gc.freeze()
    serve(Path(sys.argv[1]), [int(word) for word in sys.argv[2:-1]])
