"""Print the decisions of a study and where its report stands."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.plan.terminal.final_message import decisions


def main(arguments: list[str] | None = None) -> int:
    """Called by ``make run``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"))
    options = parser.parse_args(arguments)
    print(decisions(options.results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
