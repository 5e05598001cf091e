"""Tables of measurements that others have published, and the columns that tell their kinds apart."""

from __future__ import annotations

from pathlib import Path

TABLES = Path(__file__).resolve().parent / "published"
T4_STEPS, V100_REPEATS = (TABLES / name for name in ("t4-steps.csv", "v100-repeats.csv"))

EXPOSED = "exposed_sync_seconds"
STEPS = {"nodes", "devices", "batch_size_per_device", "step_seconds"}
REPEATS = {"nodes", "devices", "repeat", "samples_per_second"}
