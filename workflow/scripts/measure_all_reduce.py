"""Measure all-reduce over one shape where a training would run; leave what was found, or why nothing was."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.execution.all_reduce_job import run_all_reduce_job


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``measure_all_reduce``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", required=True, help="nodes x devices per node")
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("--limit-seconds", required=True, type=float, help="end them then")
    parser.add_argument("--timeout-seconds", required=True, type=int, help="that a rank waits for another")
    parser.add_argument("output", type=Path, help="file for the measurement")
    return run_all_reduce_job(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
