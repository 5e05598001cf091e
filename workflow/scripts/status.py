"""Show the status of a study: `python workflow/scripts/status.py`, where snakemake runs."""

from __future__ import annotations

import sys

from cli import main

if __name__ == "__main__":
    sys.exit(main(["status", *sys.argv[1:]]))
