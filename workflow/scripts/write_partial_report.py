"""Report on whatever has finished, and list the rest with reasons."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.analysis.study import Analysed, compute, draw, write_report


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``partial_report``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", required=True, help="titles and descriptions, as JSON")
    parser.add_argument("--results", required=True, type=Path, help="folder of all experiments")
    parser.add_argument("experiments", nargs="+", help="definitions of the experiments, as JSON")
    options = parser.parse_args(arguments)
    partial = options.results / "partial"
    labels = json.loads(options.labels)
    experiments = [Analysed.from_json(text) for text in options.experiments]
    for experiment in experiments:
        folder = partial / experiment.name
        compute(experiment, options.results / experiment.name / "runs", folder, tolerant=True)
        draw(experiment, folder, predicted=labels[experiment.name]["predicted"])
    output = options.results / "partial_report.html"
    write_report([e.name for e in experiments], partial, labels, output, partial=True)
    for experiment in experiments:
        decision = json.loads((partial / experiment.name / "decision.json").read_text())
        print(f"{experiment.name}: {decision['sentence']}")
    print(f"Report on what has finished: {output}")
    return 0


if __name__ == "__main__":
    quick_exit(main())
