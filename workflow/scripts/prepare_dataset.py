"""Decode a dataset once, on the machine that has the internet, into what every rank maps."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scalewise.training.datasets import DatasetError, prepare


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``prepare_dataset``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", required=True, help="name, or path of a .safetensors file")
    parser.add_argument("--output", required=True, type=Path, help="file to write")
    options = parser.parse_args(arguments)
    try:
        facts = prepare(options.dataset, options.output)
    except DatasetError as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {facts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
