"""Writes docs/reliability.md from what tests have shown.

    python -m tests.reliability.write_table --into docs/reliability.md EVIDENCE

It ends with 1, after it has written the table, where a test failed or something is shown by no test.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.reliability.evidence import Evidence
from tests.reliability.table import page, problems


def main(arguments: Sequence[str]) -> int:
    """Writes the table and returns 0 where everything is shown, else 1 with a line for each gap on stderr.

    Args:
        arguments: As on the command line.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("evidence", type=Path, help="what `pytest --reliability` has written")
    parser.add_argument("--into", type=Path, required=True, help="the document to write")
    options = parser.parse_args(arguments)
    evidence = Evidence.read(options.evidence)
    options.into.write_text(page(evidence), encoding="utf-8")
    lines = problems(evidence)
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
