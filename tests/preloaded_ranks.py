"""A Python for ranks that has torch loaded already, for tests of what happens once they are at work.

Most of a tiny run's computing is the import of torch. Here a server does it once on each host, and a small
program, which a site may name as its ``python:``, has it fork a rank, or a program whose speeds are planted:
in its folder, on its CPUs, with its environment, output, command line and ignored signals, ended as it is
and ending as the rank does. Whatever else than a rank of one thread it is asked for, with other modules on
PYTHONPATH, or where no server sees the same file systems, it leaves to the real interpreter.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

SCRIPTS = Path(__file__).parents[1] / "workflow" / "scripts"
PLANTED = Path(__file__).with_name("planted_speeds.py")
ROOM = " " * 1000
"""Argument of a server, in whose place a rank's command line is written."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

PROGRAM = """\
#!{python} -IS
import array, ctypes, json, os, signal, socket, sys

words = sys.argv[2:] if sys.argv[1] == "-u" else sys.argv[1:]
if words[0].endswith("/workflow/scripts/program_rank.py"):
    os.execv({python!r}, [{python!r}, "-u", {quiet!r}, sys.argv[0], *words])
rank = words[0].endswith("/workflow/scripts/rank.py") and os.environ.get("PYTHONPATH") == {path!r}
server = socket.socket(socket.AF_UNIX)
try:
    if not (rank or words[0] == {planted!r}) or os.environ.get("OMP_NUM_THREADS") != "1":
        raise OSError
    server.connect(os.path.join({folder!r}, str(os.stat("/proc/self/ns/mnt").st_ino)))
except OSError:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with its parent, as a rank
heard = {{signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}}
ignored = [number for number in heard if signal.getsignal(number) is signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
request = [words, os.getcwd(), dict(os.environ), ignored, list(os.sched_getaffinity(0))]
server.sendall(json.dumps(request).encode() + b"\\n")
answers = server.makefile("r")
rank = int(answers.readline())
for number in heard - set(ignored):
    signal.signal(number, lambda number, _frame: os.kill(rank, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
code = os.waitstatus_to_exitcode(int(answers.readline()))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def preloaded_ranks(folder: Path, hosts: Sequence[Sequence[str]] = ((),)) -> Iterator[Path]:
    """The program, in a folder, while its servers are at work.

    Args:
        hosts: What a command begins with to run on a host, for each host on which ranks start.
    """
    # Linux takes 107 characters for the name of a socket
    sockets = Path(tempfile.mkdtemp(prefix="ranks-"))
    program = folder / "python"
    text = PROGRAM.format(
        python=sys.executable,
        quiet=str(Path(__file__).with_name("quiet_program_rank.py")),
        planted=str(PLANTED),
        path=os.environ.get("PYTHONPATH"),
        folder=str(sockets),
    )
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    # packages may have been brought in by PYTHONPATH
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, **dict.fromkeys(THREADS, "1")}
    command = [sys.executable, __file__, str(sockets), ROOM]
    servers = [subprocess.Popen([*host, *command], env=environment) for host in hosts]
    try:
        # this file is a program, too, which does not find tests
        from tests.waiting import ended_output, wait_until  # noqa: PLC0415

        for server in servers:
            wait_until(
                lambda: len(list(sockets.iterdir())) == len(servers),
                "a server of ranks does not listen",
                ended=partial(ended_output, server),
            )
        yield program
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        shutil.rmtree(sockets)


class Server:
    """Forks ranks for whoever asks, until the process that started it has gone."""

    def __init__(self, address: Path) -> None:
        self._parent = os.getppid()
        self._ranks: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(64)
        # a rank that ends wakes the server
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for listened in (self._listener, self._woken):
            self._selector.register(listened, selectors.EVENT_READ)

    def serve(self) -> None:
        while os.getppid() == self._parent:
            for key, _ in self._selector.select(timeout=1):
                if key.fileobj is self._listener:
                    self._fork(self._listener.accept()[0])
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                elif isinstance(asker := key.fileobj, socket.socket):
                    # it says no more: it has been killed, and so must its rank be
                    self._selector.unregister(asker)
                    os.kill(self._ranks[asker], signal.SIGKILL)
            self._tell_of_ends()

    def _fork(self, asker: socket.socket) -> None:
        _, streams, _, _ = socket.recv_fds(asker, 1, 3)
        with asker.makefile("r", encoding="utf-8") as lines:
            request = json.loads(lines.readline())
        if (rank := os.fork()) == 0:
            _become_rank(streams, *request)
        for stream in streams:
            os.close(stream)
        self._ranks[asker] = rank
        self._selector.register(asker, selectors.EVENT_READ)
        with suppress(OSError):
            asker.sendall(f"{rank}\n".encode())

    def _tell_of_ends(self) -> None:
        for asker, rank in list(self._ranks.items()):
            ended, status = os.waitpid(rank, os.WNOHANG)
            if ended:
                del self._ranks[asker]
                with suppress(KeyError):
                    self._selector.unregister(asker)
                with asker, suppress(OSError):
                    asker.sendall(f"{status}\n".encode())


def _become_rank(
    streams: list[int],
    words: list[str],
    folder: str,
    environment: dict[str, str],
    ignored: list[int],
    cpus: list[int],
) -> NoReturn:
    _show_as([sys.executable, *words])
    os.sched_setaffinity(0, cpus)
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
    # what a rank has printed is in the log at once
    for output in (sys.stdout, sys.stderr):
        assert isinstance(output, io.TextIOWrapper)
        output.reconfigure(write_through=True)
    sys.argv = words
    gc.enable()
    if words[0] == str(PLANTED):
        # the interpreter of a program begins with what comes first on its path: the probe
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        del sys.modules["sitecustomize"]
        import_module("sitecustomize")
    # an exception goes on to the end of the server's own script, as it would to that of the rank's
    runpy.run_path(words[0], run_name="__main__")
    sys.exit()


def _show_as(words: list[str]) -> None:
    """Write a command line over this process's own, for whoever looks for a rank among processes."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = "".join(f"{word}\0" for word in words).encode()[: end - start]
    ctypes.memmove(start, line.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    gc.disable()
    import torch._dynamo  # noqa: F401

    import scalewise.builtin.rank
    import scalewise.ranks.all_reduce
    import scalewise.ranks.results.write

    # as quiet_program_rank.py does
    vars(scalewise.ranks.results.write)["other_cpu_fraction"] = lambda _ranks: 0.0

    gc.freeze()
    Server(Path(sys.argv[1]) / str(Path("/proc/self/ns/mnt").stat().st_ino)).serve()
