"""Take part in the hello job of a preflight as one rank; started by the launcher, never by hand."""

import argparse
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.execution.rank_files import RankFiles
    from scalewise.ranks.preflight_rank import run_preflight_rank


def main(arguments: list[str] | None = None) -> int:
    """Entry of every rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attempt", type=Path, help="the attempt's folder, with the ranks' rendezvous")
    options = parser.parse_args(arguments)
    run_preflight_rank(RankFiles.join(options.attempt))
    return 0


if __name__ == "__main__":
    quick_exit(main())
