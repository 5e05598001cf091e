"""Do what a user's program needs before any job, on the machine that has the internet, once."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from scalewise.plan.catalog.own_programs import for_folder
from scalewise.plan.jobs.launch import SiteLaunch, on_site
from scalewise.plan.plan_file import read_plan
from scalewise.records import utc_now, write_text


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``prepare_program``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preparation", required=True, help="its name in the plan")
    parser.add_argument("--output", required=True, type=Path, help="file to write once it is done")
    options = parser.parse_args(arguments)
    plan = read_plan(os.environ)
    preparation = json.loads(plan["preparations"][options.preparation])
    words: list[str] = preparation["words"]
    runs_in: str | None = preparation.get("working_directory")
    start = SiteLaunch.model_validate(plan["launch"])
    of_ranks = start.python or (sys.executable if start.container is None else "python3")
    python = for_folder(preparation["python"] or of_ranks, runs_in)
    words = [for_folder(words[0], runs_in), *words[1:]]
    argv = [python, *words] if words[0].endswith(".py") or words[0] == "-m" else words
    visible = []
    if runs_in is not None:
        visible = [Path(runs_in).absolute()]
        # here, not by subprocess: the paths of prelude and container are seen from this folder
        argv = ["sh", "-c", 'cd -- "$0" && exec "$@"', runs_in, *argv]
    command = on_site(start, visible, argv)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCALEWISE_")}
    environment |= preparation["environment"]
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        print(f"scalewise: prepare: {argv[0]} cannot be started ({error.strerror})", file=sys.stderr)
        return 1
    if done.returncode:
        told = f"{words[0]} ended with code {done.returncode}; its words stand above"
        print(f"scalewise: prepare: {told}", file=sys.stderr)
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.output, json.dumps({"words": words, "done_at": utc_now()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
