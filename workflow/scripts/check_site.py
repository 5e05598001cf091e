"""Ask the cluster whether the site's facts are right, before anything is sent to it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scalewise.plan.jobs.preflight import Lines, Preflight
from scalewise.plan.jobs.slurm_checks import check_site
from scalewise.plan.plan_file import read_plan
from scalewise.records import write_json


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``check_site``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, type=Path, help="file for what was found")
    options = parser.parse_args(arguments)
    found = []
    for line in check_site(Preflight.model_validate(read_plan(os.environ)["preflight"])):
        print(line, flush=True)
        found.append(line)
    lines = Lines(lines=found)
    if lines.bad:
        print("Nothing was sent to the cluster. Correct the site file and try again.", flush=True)
        return 1
    write_json(options.output, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
