"""Start the hello job's ranks where a training would start, and leave what they found."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scalewise.execution.preflight_job import run_hello_job
from scalewise.plan.plan_file import read_plan


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``hello``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("output", type=Path, help="file for what was found")
    options = parser.parse_args(arguments)
    run_hello_job(read_plan(os.environ), options.log, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
