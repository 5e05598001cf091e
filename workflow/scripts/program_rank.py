"""Run one rank of a user's program; only the launcher starts it."""

import time

PROCESS_STARTED = time.monotonic()

# ruff: noqa: E402  the imports are part of what is timed
import signal
import sys
from pathlib import Path

# the default action would end this process; the program gets the signal when it runs
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.program.rank import run_program_rank

if __name__ == "__main__":
    # the folder of the attempt, with the ranks' rendezvous and work
    sys.exit(run_program_rank(RankFiles(Path(sys.argv[1])), PROCESS_STARTED))
