"""Tables of measurements that others have published, and the columns that tell their kinds apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

TABLES = Path(__file__).resolve().parent / "published"
T4_STEPS, A100_BERT, V100_REPEATS = (
    TABLES / name for name in ("t4-steps.csv", "a100-bert-strong.csv", "v100-repeats.csv")
)

EXPOSED = "exposed_sync_seconds"
STEPS = {"nodes", "devices", "batch_size_per_device", "step_seconds"}
REPEATS = {"nodes", "devices", "repeat", "samples_per_second"}


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, by the names of its columns."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def devices_per_node(row: Mapping[str, Any]) -> int:
    """Devices of a node of a row's training."""
    return int(row["devices"]) // int(row["nodes"])
