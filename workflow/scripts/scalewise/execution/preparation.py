"""Run what a user's program needs before any job, once, on the machine that has the internet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.plan.catalog.program_files import command_for_folder
from scalewise.plan.jobs.launch import SiteLaunch, on_site
from scalewise.records import utc_now, write_text


def prepare_program(preparation: Mapping[str, Any], start: SiteLaunch, output: Path) -> int:
    """Run the command of a preparation; returns the exit code of the process.

    Args:
        preparation: ``Preparation`` as JSON.
        start: The site's way to start programs.
        output: File to write once it is done.
    """
    words: list[str] = preparation["words"]
    runs_in: str | None = preparation.get("working_directory")
    of_ranks = start.python or (sys.executable if start.container is None else "python3")
    python = command_for_folder(preparation["python"] or of_ranks, runs_in)
    words = [command_for_folder(words[0], runs_in), *words[1:]]
    argv = [python, *words] if words[0].endswith(".py") or words[0] == "-m" else words
    visible = []
    if runs_in is not None:
        visible = [Path(runs_in).absolute()]
        # here, not by subprocess: the paths of prelude and container are seen from this folder
        argv = ["sh", "-c", 'cd -- "$0" && exec "$@"', runs_in, *argv]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCALEWISE_")}
    environment |= preparation["environment"]
    try:
        done = subprocess.run(
            on_site(start, visible, argv), env=environment, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        print(f"scalewise: prepare: {argv[0]} cannot be started ({error.strerror})", file=sys.stderr)
        return 1
    if done.returncode:
        problem = f"{words[0]} ended with code {done.returncode}; its output is above"
        print(f"scalewise: prepare: {problem}", file=sys.stderr)
        return 1
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, json.dumps({"words": words, "done_at": utc_now()}) + "\n")
    return 0
