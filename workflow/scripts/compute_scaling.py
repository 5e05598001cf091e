"""Make the tables and the decision of one experiment from the records of its runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.analysis.study import Analysed, compute
    from scalewise.records import RecordError


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``compute_scaling``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True, help="definition of the experiment, as JSON")
    parser.add_argument("folder", type=Path, help="of the experiment, with runs/ in it")
    options = parser.parse_args(arguments)
    try:
        compute(Analysed.from_json(options.experiment), options.folder / "runs", options.folder)
    except RecordError as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    quick_exit(main())
