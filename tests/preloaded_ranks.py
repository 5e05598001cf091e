"""A Python for ranks that has torch loaded already, for tests of what happens once they are at work.

Most of a tiny run's computing is the import of torch. Here a server does it once, and a small program, which
a site may name as its ``python:``, has it fork a rank: in its folder, with its environment, output and
ignored signals, ended as it is and ending as the rank does. Whatever else than a rank of one thread it is
asked for, or where another file system is mounted, it leaves to the real interpreter.
"""

from __future__ import annotations

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

SCRIPTS = Path(__file__).parents[1] / "workflow" / "scripts"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

PROGRAM = """\
#!{python} -IS
import array, ctypes, json, os, signal, socket, sys

words = sys.argv[1:]
script = len(words) == 3 and words[0] == "-u"
rank = script and words[1].endswith("/workflow/scripts/rank.py")
if script and words[1].endswith("/workflow/scripts/program_rank.py"):
    os.execv({python!r}, [{python!r}, "-u", {quiet!r}, *words[1:]])
if not rank or os.environ.get("OMP_NUM_THREADS") != "1" or os.stat("/proc/self/ns/mnt").st_ino != {mounts}:
    os.execv({python!r}, [{python!r}, *words])
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with its parent, as a rank
heard = {{signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}}
ignored = [number for number in heard if signal.getsignal(number) is signal.SIG_IGN]
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
server.sendall(json.dumps([words[1:], os.getcwd(), dict(os.environ), ignored]).encode() + b"\\n")
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
def preloaded_ranks(folder: Path) -> Iterator[Path]:
    """The program, in a folder, while its server is at work."""
    # Linux takes 107 characters for the name of a socket
    address = Path(tempfile.mkdtemp(prefix="ranks-")) / "socket"
    program = folder / "python"
    text = PROGRAM.format(
        python=sys.executable,
        quiet=str(Path(__file__).with_name("quiet_program_rank.py")),
        mounts=Path("/proc/self/ns/mnt").stat().st_ino,
        address=str(address),
    )
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    # packages may have been brought in by PYTHONPATH
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, **dict.fromkeys(THREADS, "1")}
    server = subprocess.Popen([sys.executable, __file__, str(address)], env=environment)
    try:
        # this file is a program, too, which does not find tests
        from tests.waiting import ended_output, wait_until  # noqa: PLC0415

        wait_until(address.exists, "the server of ranks does not listen", ended=lambda: ended_output(server))
        yield program
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(address.parent)


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
    streams: list[int], words: list[str], folder: str, environment: dict[str, str], ignored: list[int]
) -> NoReturn:
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
    # an exception goes on to the end of the server's own script, as it would to that of the rank's
    runpy.run_path(words[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    gc.disable()
    import torch._dynamo  # noqa: F401

    import scalewise.builtin.rank
    import scalewise.ranks.all_reduce
    import scalewise.ranks.results.write

    # as quiet_program_rank.py does
    vars(scalewise.ranks.results.write)["other_cpu_fraction"] = lambda _ranks: 0.0

    gc.freeze()
    Server(Path(sys.argv[1])).serve()
