"""Speed and chosen device counts against targets: ``python benchmarks/run.py [name ...]``.

Prints a Markdown table for each benchmark, and with ``--write`` puts it into the page of docs that has a
place for it. The exit status is 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "workflow" / "scripts")]

# ruff: noqa: E402  the path comes first
from benchmarks.measure import Row, machine_line, markdown
from benchmarks.page import write_table
from benchmarks.replayed_studies import TABLE_FORM

from scalewise.plan.launch import thread_environment

BENCHMARKS = ("loop", "loader", "gpu", "plan", "design", "own-cost")

NAMED_ONLY = ("own-scripts", "allocation")
"""Not among all, a quarter of an hour or more each: allocation where Slurm is, own-scripts with packages that
Scalewise does not need."""

GPU_PARTS = ("wide-resnet", "loop", "loader", "resnet18", "transformer")
GPU_SECONDS = 3600.0


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks named, or all, and print their tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = (*BENCHMARKS, *NAMED_ONLY)
    about = f"of {', '.join(known)}; all but {', '.join(NAMED_ONLY)}, which take long"
    parser.add_argument("names", nargs="*", metavar="benchmark", help=about)
    parser.add_argument("--write", action="store_true", help="put the tables into the pages of docs")
    parser.add_argument(
        "--repositories", type=Path, help="own-scripts: folder of git repositories, owner+name"
    )
    parser.add_argument("--python", type=Path, help="own-scripts: interpreter that has the scripts' packages")
    parser.add_argument(
        "--only", action="append", default=[], help="own-scripts, gpu: one script or part, by its name"
    )
    parser.add_argument(
        "--accelerator", choices=["cuda", "cpu"], default="cuda", help="gpu: cpu rehearses it, made small"
    )
    parser.add_argument(
        "--table", type=Path, help=f"design: published speeds, in place of benchmarks/published. {TABLE_FORM}"
    )
    parser.add_argument("--json", type=Path, help="design: file to write its figures and cases to")
    parser.add_argument(
        "--limit-seconds",
        type=float,
        default=GPU_SECONDS,
        help="gpu: for all parts together; what has not ended then is cut off",
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="only see that they run, each in under a minute: few rounds, no target, nothing written",
    )
    options = parser.parse_args(arguments)
    if options.small and options.write:
        parser.error("--small measures nothing that may be written")
    if unknown := set(options.names) - set(known):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if unknown := set(options.only) - set(GPU_PARTS) if "gpu" in options.names else set():
        parser.error(f"gpu has no part named {', '.join(sorted(unknown))}; known: {', '.join(GPU_PARTS)}")
    os.environ.update(thread_environment(1))
    # users' commands find the modules compiled
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    missed = []
    for name, words in tables(options):
        command = f"python benchmarks/run.py {name}"
        print(f"{command} ...", file=sys.stderr, flush=True)
        # a process each: one pins itself to a core, another must be small to weigh its children
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            rows, machine = pool.submit(run, name.split()[0], options.small, *words).result()
        missed += [row for row in rows if not row.met and not options.small]
        table = f"{markdown(rows)}\n\n{machine}"
        print(f"\n{table}\n", flush=True)
        # what could not be measured here keeps the table that another machine has made
        measured = any(row.n for row in rows)
        if options.write and measured and (page := write_table(command, table)):
            print(f"written into {page.relative_to(ROOT)}", file=sys.stderr)
    for row in missed:
        figures = ", ratio ".join(filter(None, (row.ours, row.ratio)))
        print(f"missed: {row.what}: {figures}; target {row.target}", file=sys.stderr)
    return 1 if missed else 0


def tables(options: argparse.Namespace) -> Iterator[tuple[str, tuple[object, ...]]]:
    """The name of each table that is to be made, and what its benchmark is given."""
    for name in options.names or BENCHMARKS:
        if name == "own-scripts":
            yield name, (options.repositories, options.python, options.only)
        elif name == "gpu":
            deadline = time.monotonic() + options.limit_seconds
            for part in options.only or GPU_PARTS:
                yield f"gpu --only {part}", (part, options.accelerator, deadline)
        else:
            yield name, (options.table, options.json) if name == "design" else ()


def run(name: str, small: bool, *arguments: object) -> tuple[list[Row], str]:
    """The rows of one benchmark, and on which machine they were made.

    Args:
        name: The benchmark's.
        small: Its constants get the values of its ``SMALL``, if it has one.
        arguments: What else it is given.
    """
    benchmark = import_module(f"benchmarks.bench_{name.replace('-', '_')}")
    if small:
        vars(benchmark).update(getattr(benchmark, "SMALL", {}))
    rows: list[Row] = benchmark.rows(*arguments)
    return rows, machine_line()


if __name__ == "__main__":
    sys.exit(main())
