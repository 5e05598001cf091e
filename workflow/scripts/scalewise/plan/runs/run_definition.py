"""The definition of a run: one form from the plan, through the job and its ranks, to the records."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from scalewise.config.program import AnySettings
from scalewise.config.settings import LauncherName
from scalewise.config.shape import ShapeText

NO_OPTIONS = "all runs"
"""The series of an experiment without a sweep."""


class RunDefinition(BaseModel):
    """All that defines a run: one job of one point, as the plan makes it and every record keeps it.

    Args:
        run: Name under its experiment, ``d2.bucket-view-on.r1``.
        partition: Its partition, if the experiment compares several; else empty.
        shape: Nodes and devices per node, written as ``2x4``.
        repeat: Counted from 1.
        options: Swept keys with their values, which distinguish its series from the others.
        launcher: The program that starts its ranks: two launchers are two measurements.
        settings: Settings of its training, with the seed of this repeat and without the launcher.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    experiment: str
    run: str
    partition: str = ""
    shape: ShapeText
    batch_size_per_device: int
    global_batch_size: int
    repeat: int
    options: dict[str, Any]
    accelerator: Literal["cpu", "cuda"]
    launcher: LauncherName
    settings: AnySettings

    @property
    def label(self) -> str:
        """The run as messages name it."""
        return f"{self.experiment}/{self.run}"

    @property
    def point(self) -> str:
        """The name without the repeat, ``d2.bucket-view-on``."""
        return parse_run_name(self.run)[0]

    @property
    def values(self) -> dict[str, Any]:
        """All values by key: the settings, some of them replaced by the run's batch sizes and place."""
        return self.settings.model_dump() | self.model_dump(exclude={"settings"})

    def as_json(self) -> str:
        """Return canonical JSON, which changes if and only if the run has to be made again.

        Settings equal to their default are omitted, so that a later version with more keys reruns nothing.
        """
        return canonical_json(self.model_dump(exclude_defaults=True))


def parse_run_name(name: str) -> tuple[str, int]:
    """Split ``d2.bucket-view-on.r1`` into its point and its repeat: ``("d2.bucket-view-on", 1)``."""
    point, _, repeat = name.rpartition(".r")
    return point, int(repeat)


def canonical_json(value: object) -> str:
    """Return JSON that does not depend on the order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(text: str) -> str:
    """Return a short hash of a text, for names of files and for comparisons."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
