"""One rank; started by the launcher, never by hand."""

import time

PROCESS_STARTED = time.monotonic()

# ruff: noqa: E402  the imports are part of what is timed
# ruff: noqa: PLC0415  a start is waited for in every run of a study: it loads nothing for the other works
from scalewise.execution.signals import Signals

# before the imports that take seconds
SIGNALS = Signals()

import argparse
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    import torch._dynamo  # noqa: F401  the first DDP model or optimizer imports it

    from scalewise.builtin.rank import run_rank
    from scalewise.execution.rank_files import RankFiles
    from scalewise.ranks.rank_process import run_and_report_errors


def train(rank_files: RankFiles) -> None:
    """Take part in a training."""
    run_rank(rank_files, PROCESS_STARTED, SIGNALS)


def preflight(rank_files: RankFiles) -> None:
    """Say what this rank sees."""
    from scalewise.ranks.preflight_rank import run_preflight_rank

    run_preflight_rank(rank_files)


def main(arguments: list[str] | None = None) -> int:
    """Entry of every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "attempt", type=Path, help="the attempt's folder, with the ranks' rendezvous and work"
    )
    options = parser.parse_args(arguments)
    rank_files = RankFiles.join(options.attempt)
    works = {"train": train, "hello": preflight}
    run_and_report_errors(rank_files, lambda: works[rank_files.rank_setup().work](rank_files))
    return 0


if __name__ == "__main__":
    quick_exit(main())
