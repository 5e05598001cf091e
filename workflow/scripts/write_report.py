"""Write the report on one experiment or on several."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.analysis.study import gather_decisions, write_report


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rules ``write_report`` and ``write_overall_report``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", required=True, help="titles and descriptions, as JSON")
    parser.add_argument("--output", required=True, type=Path, help="HTML file to write")
    parser.add_argument("--decisions", type=Path, help="JSON file to write, with all decisions")
    parser.add_argument("results", type=Path, help="folder of all experiments")
    parser.add_argument("experiments", nargs="+", help="names, in order")
    options = parser.parse_args(arguments)
    if options.decisions:
        gather_decisions(options.experiments, options.results, options.decisions)
    write_report(options.experiments, options.results, json.loads(options.labels), options.output)
    return 0


if __name__ == "__main__":
    quick_exit(main())
