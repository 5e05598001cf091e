"""Start the ranks of one run, watch them, and leave its records."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scalewise.execution.train_job import TrainOptions, run_train_job
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.plan_file import read_plan


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument(
        "--attempt", default=1, type=int, help="number of Snakemake's try at this run, from 1"
    )
    parser.add_argument("experiment", help="name of the experiment")
    parser.add_argument("run", help="name of the run in it")
    parser.add_argument("summary", type=Path, help="summary.json to write; the other records lie next to it")
    options = parser.parse_args(arguments)
    plan = read_plan(os.environ)
    job = plan["runs"][options.experiment][options.run]
    launch = SiteLaunch.model_validate(plan["launch"])
    return run_train_job(TrainOptions.of(job, options.log, options.summary, options.attempt), launch)


if __name__ == "__main__":
    sys.exit(main())
