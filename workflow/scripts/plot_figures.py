"""Draw the figures of one experiment from its tables."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.analysis.study import Analysed, draw


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``plot_figures``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True, help="definition of the experiment, as JSON")
    parser.add_argument("--labels", required=True, help="whether predictions are shown, as JSON")
    parser.add_argument("folder", type=Path, help="of the experiment, with its tables in it")
    options = parser.parse_args(arguments)
    experiment = Analysed.from_json(options.experiment)
    draw(experiment, options.folder, predicted=json.loads(options.labels)[experiment.name]["predicted"])
    return 0


if __name__ == "__main__":
    quick_exit(main())
