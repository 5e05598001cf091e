"""Everything that only a GPU can show, in under fourteen minutes: ``make gpu``.

    python -m benchmarks.on_gpu                                the tests marked gpu, then the benchmark
    python -m benchmarks.on_gpu --accelerator cpu              a rehearsal where there is no GPU
    pytest -m gpu --gpu-page docs/gpu.md                       the tests alone
    python benchmarks/run.py gpu --write                       the benchmark alone

It needs what is installed, no network and no Slurm. Both write their tables into docs/gpu.md, after every
test and every part. The exit status is 1 if a test failed or a target was missed, and 0, with 0 tests run,
if there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]

ALL_SECONDS = 800
"""Of tests and benchmark together: what is cut off then may take two graces more, of fourteen minutes."""

MOST_TEST_SECONDS = 400
"""Of these, for the tests: the benchmark is to get the other half."""

GRACE_SECONDS = 15
"""For what is interrupted to end in order."""

FOLDERS = ("tests/gpu", "tests/distributed", "tests/unit/training")
"""With tests marked gpu: the others may need what a machine with a GPU lacks."""

STREAMS = 6
"""Tests that run at once: they wait for processes to start, and none is about speed."""


def main() -> int:
    """Run tests and benchmark, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/gpu.md")
    parser.add_argument("--accelerator", choices=["cuda", "cpu"], default="cuda", help="cpu: a rehearsal")
    options = parser.parse_args()
    rehearsed = options.accelerator == "cpu"
    if not rehearsed and not torch.cuda.is_available():
        rehearsal = "python -m benchmarks.on_gpu --accelerator cpu"
        print(f"no GPU that torch sees. 0 tests run; `{rehearsal}` rehearses them on the CPU.")
        return 0
    began = time.monotonic()
    # Scalewise is not installed, and what it needs may have been brought in by PYTHONPATH
    folders = [str(ROOT / "workflow" / "scripts"), str(ROOT), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    if rehearsed:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    at_once = ["--numprocesses", str(STREAMS), "--no-loadscope-reorder"]
    page = ["--gpu-page", "docs/gpu.md"] if options.write else []
    tests = ["-m", "pytest", *FOLDERS, "-m", "gpu", "--quiet", "--accelerator", options.accelerator]
    failed = run([*tests, *at_once, *page], environment, MOST_TEST_SECONDS)
    how = ["--small"] if rehearsed else ["--write"] if options.write else []
    left = ALL_SECONDS - (time.monotonic() - began)
    missed = run(["benchmarks/run.py", "gpu", *how], environment, left)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if failed or missed else 0


def run(words: Sequence[str], environment: Mapping[str, str], limit_seconds: float) -> int:
    """Run a Python program, end it at the limit, and return its exit status."""
    # in a session, so that what it has started can be ended with it
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        print(f"cut off after {limit_seconds:.0f} s: {' '.join(words)}", file=sys.stderr)
        return 1
    finally:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
            process.wait(GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
