"""Start the ranks of one node by torchrun and wait for them; started by srun, never by hand."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from scalewise.execution.rank_files import RankFiles


def main(arguments: list[str] | None = None) -> int:
    """Entry of every node, for torchrun under Slurm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path, help="what a rank runs")
    parser.add_argument("attempt", type=Path, help="the folder of the ranks' files, with their rendezvous")
    options = parser.parse_args(arguments)
    rank_files = RankFiles.join(options.attempt)
    # Slurm sends it before the end of a job's time, and it must not end the agent
    signal.signal(signal.SIGUSR1, lambda *_: rank_files.request_stop(signal.SIGUSR1.name))
    # now: with it comes torch, which takes seconds, and a signal may come in them
    from scalewise.ranks.distributed.node_launcher import start_ranks  # noqa: PLC0415

    start_ranks(options.script, rank_files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
