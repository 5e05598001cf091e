"""Read the epochs that a program has written: epochs.csv in its folder, as train.py does."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path
from typing import Any

from scalewise.records import EPOCHS, EpochRecord

COLUMNS = [field.name for field in fields(EpochRecord)]


def read_epochs(folder: Path) -> list[EpochRecord]:
    """Return the epochs of a program, in their order; none if it wrote no such file.

    The column ``epoch`` counts from 1. The others are those of ``EpochRecord``: one that is missing or empty
    is unknown, and further ones are ignored.

    Args:
        folder: The program's.

    Raises:
        ValueError: The file cannot be read; the message names file, line and value.
    """
    path = folder / EPOCHS
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return [_epoch(path, number, row) for number, row in enumerate(rows, 1)]


def _epoch(path: Path, number: int, row: dict[str, Any]) -> EpochRecord:
    values: dict[str, Any] = {}
    for name in COLUMNS:
        text = (row.get(name) or "").strip()
        try:
            values[name] = float(text) if text else None
        except ValueError:
            raise ValueError(f"{path}, line {number + 1}: {name} is {text!r}, not a number") from None
    if values["epoch"] != number:
        raise ValueError(f"{path}, line {number + 1}: epoch is {row.get('epoch')!r}, not {number}")
    return EpochRecord(**values | {"epoch": number})
