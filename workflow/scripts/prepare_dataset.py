"""Decode a dataset once, on the machine that has the internet, into what every rank maps."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path

from scalewise.interpreter import imports_uncollected, quick_exit

with imports_uncollected():
    from scalewise.training.data.datasets import DatasetError, prepare
    from scalewise.training.data.download import Mirror


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``prepare_dataset``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True, help="its name")
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    options = parser.parse_args(arguments)
    try:
        mirror = Mirror.of_environment(os.environ)
        facts = prepare(
            options.dataset,
            options.output,
            mirror=mirror,
            # seen while it happens, through the pipe to the log
            notify=functools.partial(print, flush=True),
        )
    except DatasetError as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {facts}")
    return 0


if __name__ == "__main__":
    quick_exit(main())
