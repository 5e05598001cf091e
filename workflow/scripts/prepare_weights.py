"""Fetch published weights, on the machine that has the internet, into what every rank reads."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path

from scalewise.training.data.datasets import DatasetError
from scalewise.training.data.download import Mirror
from scalewise.training.data.pretrained import prepare_weights
from scalewise.training.data.published_files import WEIGHTS


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``prepare_weights``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, choices=sorted(WEIGHTS), help="name")
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    options = parser.parse_args(arguments)
    try:
        count = prepare_weights(
            options.model,
            options.output,
            mirror=Mirror.of_environment(os.environ),
            notify=functools.partial(print, flush=True),
        )
    except DatasetError as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {count} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
