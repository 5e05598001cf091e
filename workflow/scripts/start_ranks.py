"""Start the ranks of one node and wait for them; started by the launcher, never by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.execution.rank_files import RankFiles
from scalewise.execution.signals import forward_sigusr1


def main(arguments: list[str] | None = None) -> int:
    """Entry of every node, for the launchers that start ranks themselves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path, help="what a rank runs")
    parser.add_argument(
        "attempt", type=Path, help="the attempt's folder, with the ranks' rendezvous and work"
    )
    options = parser.parse_args(arguments)
    rank_files = RankFiles.join(options.attempt)
    forward_sigusr1(rank_files.request_stop)
    # now: with it comes torch, which takes seconds, and a signal may come in them
    from scalewise.ranks.distributed.node_launcher import start_ranks  # noqa: PLC0415

    start_ranks(options.script, rank_files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
