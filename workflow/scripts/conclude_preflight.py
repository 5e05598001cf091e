"""Say what the hello job found, and whether the study may start."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.plan.jobs.preflight import Lines


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``preflight``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("found", nargs="+", type=Path, help="files of check_site.py and hello.py")
    options = parser.parse_args(arguments)
    bad = False
    for path in options.found:
        lines = Lines.model_validate_json(path.read_text(encoding="utf-8"))
        bad = bad or lines.bad
        print(lines)
    print("Something is not ok: see above." if bad else "All is ok: the study can start.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
