"""Measure all-reduce over one shape where a training would run; leave what was found, or why nothing was."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scalewise.execution.all_reduce_job import run_all_reduce_job
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.plan_file import read_plan


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``measure_all_reduce``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", required=True, help="nodes x devices per node")
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("output", type=Path, help="file for the measurement")
    options = parser.parse_args(arguments)
    plan = read_plan(os.environ)
    job, launch = plan["all_reduces"][options.shape], SiteLaunch.model_validate(plan["launch"])
    return run_all_reduce_job(job, launch, options.log, options.output)


if __name__ == "__main__":
    sys.exit(main())
