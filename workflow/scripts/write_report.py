"""Write the report on one experiment or on several."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scalewise.analysis.study import gather_decisions, write_report


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rules ``write_report`` and ``write_overall_report``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True, type=Path, help="JSON file with titles and definitions")
    parser.add_argument("--output", required=True, type=Path, help="HTML file to write")
    parser.add_argument("--decisions", type=Path, help="JSON file to write, with all decisions")
    parser.add_argument("results", type=Path, help="folder of all experiments")
    parser.add_argument("experiments", nargs="*", help="names, in order; all by default")
    options = parser.parse_args(arguments)
    facts = json.loads(options.study.read_text(encoding="utf-8"))
    names = options.experiments or list(facts)
    if options.decisions:
        gather_decisions(names, options.results, options.decisions)
    write_report(names, options.results, facts, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
