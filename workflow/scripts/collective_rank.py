"""One rank of the all-reduce measurement; started by the launcher, never by hand."""

from __future__ import annotations

import argparse
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.execution.rank_files import Attempt
    from scalewise.training.all_reduce import measure_collectives
    from scalewise.training.rank import run_or_complain


def main(arguments: list[str] | None = None) -> int:
    """Entry of every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt", type=Path, help="folder where the ranks meet")
    options = parser.parse_args(arguments)
    attempt = Attempt.join(options.attempt)
    run_or_complain(attempt, lambda: measure_collectives(attempt))
    return 0


if __name__ == "__main__":
    quick_exit(main())
