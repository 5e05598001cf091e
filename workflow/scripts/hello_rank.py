"""One rank of the hello job; started by the launcher, never by hand."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.execution.rank_files import Attempt
    from scalewise.training.preflight_rank import say_hello
    from scalewise.training.rank import run_or_complain


def main(arguments: list[str] | None = None) -> int:
    """Entry of every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt", type=Path, help="folder where the ranks meet")
    options = parser.parse_args(arguments)
    attempt = Attempt.join(options.attempt)
    run_or_complain(attempt, lambda: say_hello(attempt))
    return 0


if __name__ == "__main__":
    quick_exit(main())
