"""Judge which points of an experiment need more repeats."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.analysis.adaptive_repeats import judge, round_lines
    from scalewise.analysis.tables import collect
    from scalewise.plan.config.experiment import Experiment, Repeats
    from scalewise.plan.runs.repeats import asked_for, known_rounds, round_file
    from scalewise.records import RecordError, write_json


def main(arguments: list[str] | None = None) -> int:
    """Entry of the checkpoint ``judge_repeats``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", required=True, help="definition of the experiment, as JSON")
    parser.add_argument("--round", required=True, type=int, help="number of the round, from 1")
    parser.add_argument("folder", type=Path, help="of the experiment, with runs/ in it")
    options = parser.parse_args(arguments)
    definition = json.loads(options.experiment)
    name, spec = definition["name"], Experiment.model_validate(definition["spec"])
    repeats, folder = spec.repeats, options.folder
    if not isinstance(repeats, Repeats):
        parser.error(f"{name} has {repeats} repeats of every point: there is nothing to judge")
    earlier = known_rounds(repeats, folder)[: options.round - 1]
    try:
        asked = asked_for(repeats, earlier)
        tables = collect(name, spec, folder / "runs", asked=asked)
    except RecordError as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    judged = judge(name, options.round, tables.runs, repeats)
    path = round_file(folder, options.round)
    path.parent.mkdir(exist_ok=True)
    write_json(path, judged)
    # in one piece, so that lines of two experiments do not mix in the terminal
    sys.stdout.write("".join(f"{line}\n" for line in round_lines(judged)))
    return 0


if __name__ == "__main__":
    quick_exit(main())
