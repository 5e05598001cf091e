"""Runs small trainings, each in a process forked after torch was imported: a script that knows no probe.

python run_cases.py OUT CASE ...

It writes ``OUT/cases.json``: of each case the ranks' pids and exit statuses; what they print goes to
``OUT/CASE.RANK.txt``.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

# as transformers and accelerate do, before they import it
assert importlib.util.find_spec("torch") is not None

import cases  # type: ignore[import-not-found]  # noqa: E402  # in the same folder, where the script finds it

LIMIT_SECONDS = 240


def start(case: cases.Case, rank: int, out: Path) -> int:
    """The pid of a process that trains as this rank; the function returns in the parent alone."""
    pid = os.fork()
    if pid:
        return pid
    output = os.open(out / f"{case.name}.{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), LOCAL_RANK=str(rank))
    os.environ["CASE_FOLDER"] = str(out / case.name)
    end(train(case))
    return 0


def train(case: cases.Case) -> int:
    """The exit status that the interpreter would give."""
    try:
        case.train()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(status: int) -> None:
    """End as the interpreter would, but for the second in which it takes torch's modules apart."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait(pid: int) -> int:
    """The exit status of a child; one that hangs is killed."""
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(out: Path, names: list[str]) -> None:
    """Run the cases one after the other."""
    # what torch consists of is looked through by no case: it would take most of each
    gc.freeze()
    ended = {}
    for case in (cases.CASES[name] for name in names):
        (out / case.name).mkdir()
        pids = [start(case, rank, out) for rank in range(case.ranks)]
        ended[case.name] = {"pids": pids, "statuses": [wait(pid) for pid in pids]}
    (out / "cases.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
