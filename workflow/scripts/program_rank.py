"""One rank of a user's own program; started by the launcher, never by hand."""

import time

PROCESS_STARTED = time.monotonic()

# ruff: noqa: E402  the imports are part of what is timed
import argparse
import signal
import sys
from pathlib import Path

# left to itself, it ends a process; the program gets it once it is there
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.program.rank import run_program_rank


def main(arguments: list[str] | None = None) -> int:
    """Entry of every rank of a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "attempt", type=Path, help="the attempt's folder, with the ranks' rendezvous and work"
    )
    options = parser.parse_args(arguments)
    return run_program_rank(RankFiles.join(options.attempt), PROCESS_STARTED)


if __name__ == "__main__":
    sys.exit(main())
