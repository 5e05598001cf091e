"""Report on whatever has finished, and list the rest with reasons."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scalewise.analysis.study import Analysed, compute, draw, write_report


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``partial_report``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", required=True, type=Path, help="JSON file with titles and definitions")
    parser.add_argument("--results", required=True, type=Path, help="folder of all experiments")
    options = parser.parse_args(arguments)
    partial = options.results / "partial"
    facts = json.loads(options.study.read_text(encoding="utf-8"))
    experiments = [Analysed.from_json(known["definition"]) for known in facts.values()]
    for experiment in experiments:
        folder = partial / experiment.name
        compute(experiment, options.results / experiment.name / "runs", folder, tolerant=True)
        draw(experiment, folder, predicted=facts[experiment.name]["predicted"])
    output = options.results / "partial_report.html"
    write_report([e.name for e in experiments], partial, facts, output, partial=True)
    for experiment in experiments:
        decision = json.loads((partial / experiment.name / "decision.json").read_text())
        print(f"{experiment.name}: {decision['sentence']}")
    print(f"Report on what has finished: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
