"""Everything that only a GPU can show, in under fourteen minutes: ``make gpu``.

    python -m benchmarks.on_gpu                                the tests marked gpu, then the benchmark
    python -m benchmarks.on_gpu --accelerator cpu              a rehearsal where there is no GPU
    pytest -m gpu --gpu-page docs/gpu.md                       the tests alone
    python benchmarks/run.py gpu --write                       the benchmark alone

It needs what is installed, no network and no Slurm. Both write their tables into docs/gpu.md, after every
test and every part. The exit status is 1 where a test failed or a target
was missed, and 0, with 0 tests run, where there is no GPU.
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
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu.md"

ALL_SECONDS = 800.0
"""Of tests and benchmark together: what is cut off then may take two graces more, of fourteen minutes."""

MOST_TEST_SECONDS = 400.0
"""Of these, for the tests: the benchmark is to get the other half."""

NEEDED = ("torch", "torchvision", "snakemake", "pydantic", "pytest", "pytest_timeout", "xdist")
"""Packages that a machine with a GPU is likeliest to lack."""

FOLDERS = ("tests/gpu", "tests/distributed", "tests/unit/training")
"""With tests marked gpu: the others may need what a machine with a GPU lacks."""

GRACE_SECONDS = 15.0
"""For what is interrupted to end in order."""

STREAMS = 6
"""Tests that run at once: they wait for processes to start, and none is about speed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run tests and benchmark, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/gpu.md")
    parser.add_argument("--accelerator", choices=["cuda", "cpu"], default="cuda", help="cpu: a rehearsal")
    options = parser.parse_args(arguments)
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        print(
            f"{sys.executable} lacks {', '.join(missing)}. `make lint` sets up what is "
            "needed; without a network, use a Python that has it: make gpu PYTHON=...",
            file=sys.stderr,
        )
        return 1
    # Scalewise is not installed
    sys.path.insert(0, str(ROOT / "workflow" / "scripts"))
    from .gpu_training import gpu_missing  # noqa: PLC0415  it needs them

    if options.accelerator == "cuda" and (why := gpu_missing()):
        print(
            f"{why}. 0 tests run; `python -m benchmarks.on_gpu --accelerator cpu` rehearses them on the CPU."
        )
        return 0
    began = time.monotonic()
    chosen = ["--accelerator", options.accelerator]
    # what is needed may have been brought in by PYTHONPATH
    folders = [str(ROOT / "workflow" / "scripts"), str(ROOT), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
    side_by_side = ["--numprocesses", str(STREAMS), "--no-loadscope-reorder"]
    page = ["--gpu-page", str(PAGE)] if options.write else []
    tests = ["-m", "pytest", *FOLDERS, "-m", "gpu", "--quiet", *side_by_side, *page, *chosen]
    statuses = [run(tests, environment, MOST_TEST_SECONDS)]
    left = max(ALL_SECONDS - (time.monotonic() - began), 1.0)
    write = ["--write"] if options.write else []
    bench = ["benchmarks/run.py", "gpu", "--limit-seconds", f"{left:.0f}", *write, *chosen]
    statuses.append(run(bench, environment, left + GRACE_SECONDS))
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if any(statuses) else 0


def run(words: Sequence[str], environment: Mapping[str, str], limit_seconds: float) -> int:
    """Run a Python program in a group of its own, end it at the limit, and return its exit status."""
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, start_new_session=True)
    try:
        return process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        print(f"cut off after {limit_seconds:.0f} s: {' '.join(words)}", file=sys.stderr)
    finally:
        end(process)
    return process.returncode or 1


def end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs of a program and of what it has started, first as Ctrl-C does."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
