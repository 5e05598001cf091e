"""One rank; started by the launcher, never by hand."""

import time

PROCESS_STARTED = time.monotonic()

# ruff: noqa: E402  the imports are part of what is timed
from scalewise.execution.signals import Signals

# before the imports that take seconds
SIGNALS = Signals()

import argparse
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    import torch._dynamo  # noqa: F401  the first DDP model or optimizer imports it

    from scalewise.execution.rank_files import Attempt
    from scalewise.training.all_reduce import measure_collectives
    from scalewise.training.preflight_rank import say_hello
    from scalewise.training.rank import run_or_complain, run_rank


def main(arguments: list[str] | None = None) -> int:
    """Entry of every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt", type=Path, help="folder that says how the ranks meet and what they do")
    options = parser.parse_args(arguments)
    attempt = Attempt.join(options.attempt)
    works = {
        "train": lambda: run_rank(attempt, PROCESS_STARTED, SIGNALS),
        "hello": lambda: say_hello(attempt),
        "all-reduce": lambda: measure_collectives(attempt),
    }
    run_or_complain(attempt, works[attempt.muster().work])
    return 0


if __name__ == "__main__":
    quick_exit(main())
