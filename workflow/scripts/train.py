"""Start the ranks of one run, watch them, and leave its records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.execution.train_job import TrainOptions, run_train_job
from scalewise.records import Definition


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="definition of the run, as JSON")
    parser.add_argument("--dataset", nargs="?", type=Path, help="the prepared file; none for a program")
    parser.add_argument("--weights", nargs="?", type=Path, help="to begin from; empty for random ones")
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("--limit-seconds", required=True, type=float, help="end the run then")
    parser.add_argument("--timeout-seconds", required=True, type=int, help="that a rank waits for another")
    parser.add_argument("--checkpoint-seconds", default=600.0, type=float, help="between two checkpoints")
    parser.add_argument("--keep-checkpoints", action="store_true", help="of a run that has completed")
    parser.add_argument(
        "--limit-over-tries", action="store_true", help="the limit is of all tries at the run together"
    )
    parser.add_argument("--attempt", default=1, type=int, help="which try of snakemake's at this run")
    parser.add_argument("summary", type=Path, help="summary.json to write, the others beside it")
    options = vars(parser.parse_args(arguments))
    definition = Definition.model_validate_json(options.pop("run"))
    return run_train_job(TrainOptions(definition=definition, **options))


if __name__ == "__main__":
    sys.exit(main())
