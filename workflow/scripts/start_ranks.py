"""Start the ranks of one node and wait for them; started by the launcher, never by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.training.ranks.nodes import start_ranks
from scalewise.training.supervision.attempt import Attempt


def main(arguments: list[str] | None = None) -> int:
    """Entry of every node, for the launchers that start ranks themselves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path, help="what a rank runs")
    parser.add_argument("attempt", type=Path, help="folder with the assignment of the ranks")
    options = parser.parse_args(arguments)
    start_ranks(options.script, Attempt(options.attempt))
    return 0


if __name__ == "__main__":
    sys.exit(main())
