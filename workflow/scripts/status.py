"""Show the status of a study that another process runs or has run. Reads files only, and disturbs no run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from scalewise.watch.follow import follow_status, print_status


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="where snakemake runs; default: this folder"
    )
    parser.add_argument("--follow", action="store_true", help="show it until the study has ended")
    options = parser.parse_args(arguments)
    if options.follow:
        # end as after Ctrl-C, which restores the terminal
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return follow_status(options.folder, dict(os.environ))
    return print_status(options.folder)


if __name__ == "__main__":
    sys.exit(main())
