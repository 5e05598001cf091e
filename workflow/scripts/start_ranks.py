"""Start the ranks of one node by torchrun and wait for them; started by srun, never by hand."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from scalewise.execution.rank_files import RankFiles

if __name__ == "__main__":
    # what a rank runs, and the folder of the attempt, with the ranks' rendezvous
    script, attempt = map(Path, sys.argv[1:])
    rank_files = RankFiles(attempt)
    # Slurm sends it before the end of a job's time, and it must not end the agent
    signal.signal(signal.SIGUSR1, lambda *_: rank_files.request_stop(signal.SIGUSR1.name))
    # now: with it comes torch, which takes seconds, and a signal may come in them
    from scalewise.ranks.distributed.node_launcher import start_ranks

    start_ranks(script, rank_files)
