"""Predict the steps of one experiment from its runs on one device and the site's all-reduce."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.analysis.prediction.table import Predicted, compute_prediction
    from scalewise.records import RecordError, read_collectives


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``compute_prediction``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True, help="definition of the experiment, as JSON")
    parser.add_argument("--collectives", required=True, nargs="*", type=Path, help="all-reduce of each shape")
    parser.add_argument("folder", type=Path, help="of the experiment, with runs/ in it")
    options = parser.parse_args(arguments)
    try:
        compute_prediction(
            Predicted.from_json(options.experiment),
            [read_collectives(path) for path in options.collectives],
            options.folder / "runs",
            options.folder,
        )
    except RecordError as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    quick_exit(main())
