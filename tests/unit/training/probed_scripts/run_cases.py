"""Runs small trainings, each in a process forked after torch was imported: a script that knows no probe.

python run_cases.py OUT [CASE ...]

It writes ``OUT/cases.json``: of each case the ranks' pids and exit statuses; what they print goes to
``OUT/CASE.RANK.txt``.
"""

import atexit
import gc
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

# as transformers and accelerate do, before they import it
assert importlib.util.find_spec("torch") is not None

import cases  # type: ignore[import-not-found]  # noqa: E402  # in the same folder, where the script finds it

LIMIT_SECONDS = 240


def start(name: str, rank: int, out: Path) -> int:
    """Return the pid of a process that trains as this rank, in the parent only."""
    pid = os.fork()
    if pid:
        return pid
    # one that hangs is killed
    signal.alarm(LIMIT_SECONDS)
    train, ranks = cases.CASES[name]
    output = os.open(out / f"{name}.{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
    os.environ["CASE_FOLDER"] = str(out / name)
    status = 0
    try:
        train()
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        status = 1
    end(status)
    return 0


def end(status: int) -> None:
    """End as the interpreter would, but for the second in which it takes torch's modules apart."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(out: Path, names: list[str]) -> None:
    # what torch consists of is looked through by no case: it would take most of each
    gc.freeze()
    ended = {}
    for name in names:
        (out / name).mkdir()
        pids = [start(name, rank, out) for rank in range(cases.CASES[name][1])]
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        ended[name] = {"pids": pids, "statuses": statuses}
    (out / "cases.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    possible = [
        name for name in cases.CASES if not name.endswith("on_a_gpu") or cases.torch.cuda.is_available()
    ]
    main(Path(sys.argv[1]), sys.argv[2:] or possible)
