"""Run one rank of a user's program; only the launcher starts it."""

import time

PROCESS_STARTED = time.monotonic()

# ruff: noqa: E402  the imports are part of what is timed
import argparse
import signal
import sys
from pathlib import Path

# the default action would end this process; the program gets the signal when it runs
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
