"""Files of the probe, written whole or not at all, in JSON without NaN."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record under a temporary name, then rename it; values that are not finite become None."""
    write_text(path, json.dumps(_finite(record), allow_nan=False))


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
