"""Start the hello job's ranks where a training would start, and leave what they found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.execution.preflight_job import run_hello_job


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``hello``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("--limit-seconds", required=True, type=float, help="end them then")
    parser.add_argument("--timeout-seconds", required=True, type=int, help="that a rank waits for another")
    parser.add_argument("output", type=Path, help="file for what was found")
    run_hello_job(**vars(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
