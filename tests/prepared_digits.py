"""The handwritten digits, prepared once for all tests that train on them and ask no more of them."""

import atexit
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from scalewise.config.catalog import prepared_path
from scalewise.training.prepare import prepare


@cache
def _prepared() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="scalewise-digits-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    prepare("digits", folder / "dataset.safetensors")
    return folder / "dataset.safetensors"


def place_digits(path: Path) -> Path:
    """Puts the prepared file where one is asked for, as a link where the disk is the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return path
    with suppress(OSError):
        os.link(_prepared(), path)
        return path
    shutil.copyfile(_prepared(), path)
    return path


def place_digits_of_study(folder: Path) -> None:
    """Spares a study in this folder its preparation: Snakemake finds it done."""
    place_digits(folder / prepared_path("digits"))
