"""Speed and memory against targets: ``python benchmarks/run.py [name ...]``.

Prints a Markdown table; exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "workflow" / "scripts")]

# ruff: noqa: E402  the path comes first
from benchmarks.measure import Row, TableError, machine_line, markdown

from scalewise.plan.jobs.launch import thread_environment

BENCHMARKS = (*("loop", "loader", "training", "gpu", "plan", "published", "design", "own-cost"),)

GPU_PARTS = ("wide-resnet", "loop", "loader", "resnet18", "transformer")

NAMED_ONLY = ("study", "truth", "own-scripts", "allocation")
"""Not among all, a quarter of an hour or more each: study on a machine that does nothing else, allocation as
root with Slurm, truth on all cores, own-scripts with packages that Scalewise does not need."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks named, or all, and print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = (*BENCHMARKS, *NAMED_ONLY)
    about = f"of {', '.join(known)}; all but {', '.join(NAMED_ONLY)}, which take long"
    parser.add_argument("names", nargs="*", metavar="benchmark", help=about)
    parser.add_argument(
        "--table",
        type=Path,
        action="append",
        default=[],
        help="published, design: CSV file in place of the default ones",
    )
    parser.add_argument(
        "--json", type=Path, help="published, design, gpu: file that receives every point, case or part"
    )
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
        "--limit-seconds", type=float, help="gpu: for all parts together; what has not ended then is cut off"
    )
    options = parser.parse_args(arguments)
    names = options.names or list(BENCHMARKS)
    if unknown := set(names) - set(known):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if options.table and names not in (["published"], ["design"]):
        parser.error("--table is for published alone, or design alone")
    if options.json and names not in (["published"], ["design"], ["gpu"]):
        parser.error("--json is for published alone, design alone, or gpu alone")
    if missing := [str(path) for path in options.table if not path.is_file()]:
        parser.error(f"there is no file {', '.join(missing)}")
    if (options.repositories or options.python) and names != ["own-scripts"]:
        parser.error("--repositories and --python are for own-scripts alone")
    if options.only and names not in (["own-scripts"], ["gpu"]):
        parser.error("--only is for own-scripts alone, or gpu alone")
    if (options.accelerator == "cpu" or options.limit_seconds is not None) and names != ["gpu"]:
        parser.error("--accelerator and --limit-seconds are for gpu alone")
    if "gpu" in names and (unknown := set(options.only) - set(GPU_PARTS)):
        parser.error(f"gpu has no part named {', '.join(sorted(unknown))}; known: {', '.join(GPU_PARTS)}")
    arguments_of = {
        "gpu": (options.only, options.json, options.accelerator, options.limit_seconds),
        "published": (options.table, options.json),
        "design": (options.table, options.json),
        "own-scripts": (options.repositories, options.python, options.only),
    }
    os.environ.update(thread_environment(1))
    print(machine_line(), flush=True)
    rows: list[Row] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        # a process each: one pins itself to a core, another must be small to weigh its children
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            try:
                rows += pool.submit(run, name, *arguments_of.get(name, ())).result()
            except TableError as error:
                parser.error(str(error))
    print(f"\n{markdown(rows)}")
    missed = [row for row in rows if not row.met]
    for row in missed:
        figures = ", ratio ".join(filter(None, (row.ours, row.ratio)))
        print(f"missed: {row.what}: {figures}; target {row.target}", file=sys.stderr)
    return 1 if missed else 0


def run(name: str, *arguments: object) -> list[Row]:
    """The rows of one benchmark."""
    rows: list[Row] = import_module(f"benchmarks.bench_{name.replace('-', '_')}").rows(*arguments)
    return rows


if __name__ == "__main__":
    sys.exit(main())
