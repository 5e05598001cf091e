"""Draw the figures of one experiment from its tables."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scalewise.analysis.study import Analysed, draw


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``plot_figures``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True, help="definition of the experiment, as JSON")
    parser.add_argument("--study", required=True, type=Path, help="JSON file with titles and definitions")
    parser.add_argument("folder", type=Path, help="of the experiment, with its tables in it")
    options = parser.parse_args(arguments)
    experiment = Analysed.from_json(options.experiment)
    facts = json.loads(options.study.read_text(encoding="utf-8"))[experiment.name]
    draw(experiment, options.folder, predicted=facts["predicted"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
