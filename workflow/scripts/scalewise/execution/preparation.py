"""Run the command that a user's program needs before any job, once, on a machine with internet access."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.config.catalog.program_files import command_for_folder
from scalewise.plan.launch import SiteLaunch, site_command
from scalewise.records import utc_now, write_text


def prepare_program(preparation: Mapping[str, Any], site: SiteLaunch, output: Path) -> int:
    """Run the command of a preparation; returns the exit code of the process.

    Args:
        preparation: ``Preparation`` as JSON.
        site: The commands and the container by which programs start on the site.
        output: File to write once it is done.
    """
    words: list[str] = preparation["words"]
    runs_in: str | None = preparation.get("working_directory")
    ranks_python = site.python or (sys.executable if site.container is None else "python3")
    python = command_for_folder(preparation["python"] or ranks_python, runs_in)
    words = [command_for_folder(words[0], runs_in), *words[1:]]
    argv = [python, *words] if words[0].endswith(".py") or words[0] == "-m" else words
    visible = []
    if runs_in is not None:
        visible = [Path(runs_in).absolute()]
        # by the shell, not by subprocess: paths in prelude and container are relative to this folder
        argv = ["sh", "-c", 'cd -- "$0" && exec "$@"', runs_in, *argv]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCALEWISE_")}
    environment |= preparation["environment"]
    try:
        ended = subprocess.run(
            site_command(site, visible, argv), env=environment, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        print(f"scalewise: prepare: {argv[0]} cannot be started ({error.strerror})", file=sys.stderr)
        return 1
    if ended.returncode:
        problem = f"{words[0]} ended with code {ended.returncode}; its output is above"
        print(f"scalewise: prepare: {problem}", file=sys.stderr)
        return 1
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, json.dumps({"words": words, "done_at": utc_now()}) + "\n")
    return 0
