"""Paths of this checkout."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "workflow" / "scripts"
SNAKEFILE = ROOT / "workflow" / "Snakefile"
CLI = SCRIPTS / "cli.py"
