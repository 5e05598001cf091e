"""The file that says what to measure and where to write the records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FAULT = "probe: "
"""Begin of an event that is an error of the probe itself."""


@dataclass(frozen=True)
class ProbeSpec:
    """The file that ``SCALEWISE_PROBE`` names.

    Args:
        folder: All files of a user's program go there.
        warmup_steps: First optimizer steps, which no figure counts.
        steps: Measured steps, after which Scalewise ends the training; 0 lets it run to its own end.
        check_after: Steps after which the record so far is written, so that it can be checked.
        not_imported: Folders without modules of the user, such as the folder that the program writes to.
        optimizer: Class of the optimizer whose steps are the training's; None for the one with the most
            parameters.
        count_flops: Count the floating-point operations of a step of the warm-up.
        sampled_communication: DDP times one exchange in so many, by the type of the device.
    """

    folder: Path = Path()
    warmup_steps: int = 0
    steps: int = 0
    check_after: int = 3
    not_imported: Sequence[Path] = ()
    optimizer: str | None = None
    count_flops: bool = False
    sampled_communication: Mapping[str, int] = field(default_factory=lambda: {"cuda": 25, "cpu": 5})

    @property
    def last_step(self) -> int:
        """Number of the step that ends the training, from 1; 0 for none."""
        return self.warmup_steps + self.steps if self.steps else 0


def read_spec(path: Path) -> ProbeSpec:
    """Read the file, whose keys that are missing have the values above."""
    given = json.loads(path.read_text(encoding="utf-8"))
    known = {name: value for name, value in given.items() if name in ProbeSpec.__dataclass_fields__}
    not_imported = [Path(folder) for folder in given.get("not_imported", [])]
    return ProbeSpec(
        **{
            **known,
            "folder": Path(given["folder"]),
            "steps": given.get("steps") or 0,
            "not_imported": not_imported,
        }
    )
