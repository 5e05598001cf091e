"""Speed and chosen device counts against targets: ``python benchmarks/run.py [name ...]``.

Prints a Markdown table for each benchmark, and with ``--write`` puts it into the page of docs that has a
place for it. The exit status is 1 if a target is missed or a benchmark fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "workflow" / "scripts")]

# ruff: noqa: E402  the path comes first
from benchmarks.measure import Row, machine_line, markdown

from scalewise.plan.launch import thread_environment

ON_GPU = ("gpu-wide-resnet", "gpu-loop", "gpu-loader", "gpu-resnet18", "gpu-transformer")
BENCHMARKS = ("loop", "loader", *ON_GPU, "plan", "design", "own-cost")
NAMED_ONLY = ("own-scripts", "allocation")
"""Take a quarter of an hour or more, and need packages that Scalewise does not need, or Slurm."""

TABLE_FORM = (
    "CSV with the columns devices, nodes (1 if it is missing), and a speed: samples_per_second (or another "
    "column that ends so), one row for each repeat, or step_seconds with batch_size_per_device (weak "
    "scaling) or global_batch_size (strong). All other columns set series apart, except for repeat, "
    "accumulation_steps and exposed_sync_seconds. Device counts that do not fill nodes are left out"
)


def main() -> int:
    """Run the benchmarks named, or all, and print their tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = (*BENCHMARKS, "gpu", *NAMED_ONLY)
    about = (
        f"of {', '.join(known)} (all that begin with gpu-); without a name all but {', '.join(NAMED_ONLY)}"
    )
    parser.add_argument("names", nargs="*", metavar="benchmark", help=about)
    parser.add_argument("--write", action="store_true", help="put the tables into the pages of docs")
    parser.add_argument(
        "--small",
        action="store_true",
        help="only see that they run: few rounds, no target, nothing written, and without a GPU on the CPU",
    )
    parser.add_argument(
        "--table", type=Path, help=f"design: published speeds, in place of benchmarks/published: {TABLE_FORM}"
    )
    parser.add_argument("--json", type=Path, help="design: file to write its figures and cases to")
    options = parser.parse_args()
    if options.small and options.write:
        parser.error("--small measures nothing that may be written")
    if unknown := set(options.names) - set(known):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    os.environ.update(thread_environment(1))
    # users' commands find the modules compiled
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    arguments = {name: (name,) for name in ON_GPU} | {"design": (options.table, options.json)}
    missed = []
    for name in options.names or BENCHMARKS:
        for each in ON_GPU if name == "gpu" else (name,):
            missed += measure(each, arguments.get(each, ()), small=options.small, write=options.write)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def measure(name: str, arguments: tuple[object, ...], *, small: bool, write: bool) -> list[str]:
    """Run a benchmark, print its table, and return the targets that it misses."""
    command = f"python benchmarks/run.py {name}"
    print(f"{command} ...", file=sys.stderr, flush=True)
    # a process each: one pins itself to a core, another must be small to weigh its children
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            rows, machine = pool.submit(rows_of, name, arguments, small).result()
        except Exception as error:  # noqa: BLE001  the others are measured
            traceback.print_exc()
            return [f"{name}: {type(error).__name__}"]
    table = f"{markdown(rows)}\n\n{machine}"
    print(f"\n{table}\n", flush=True)
    # what could not be measured here keeps the table that another machine has made
    if write and any(row.n for row in rows):
        write_table(command, table)
    return [
        f"{row.what}: {row.ours}, ratio {row.ratio or 'none'}; target {row.target}"
        for row in rows
        if not row.met and not small
    ]


def rows_of(name: str, arguments: tuple[object, ...], small: bool) -> tuple[list[Row], str]:
    """Return the lines of a benchmark, and the machine; small, its constants get the values of its SMALL."""
    module = "gpu" if name in ON_GPU else name.replace("-", "_")
    benchmark = import_module(f"benchmarks.bench_{module}")
    if small:
        vars(benchmark).update(benchmark.SMALL)
    rows: list[Row] = benchmark.rows(*arguments)
    return rows, machine_line()


def write_table(command: str, table: str) -> None:
    """Put a table in place of the one that its command made last, if a page has one."""
    begin, end = f"<!-- begin: made by {command} -->", f"<!-- end: made by {command} -->"
    for page in (ROOT / "docs").glob("*.md"):
        before, found, rest = page.read_text(encoding="utf-8").partition(begin)
        if found:
            after = rest.partition(end)[2]
            page.write_text(f"{before}{begin}\n\n{table}\n\n{end}{after}", encoding="utf-8")
            print(f"written into {page.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
