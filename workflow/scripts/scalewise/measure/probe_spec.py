"""The file that says what to measure, and where to leave what is found."""

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
        folder: All files of the probe go there.
        warmup_steps: First optimizer steps, which no figure counts.
        steps: Most measured steps, after which the training is ended; 0 lets it run to its own end.
        until_interval: Half width of the interval of the throughput, as a share of it, at which the training
            is ended earlier; 0 for never.
        check_after: Steps after which the record so far is written, for a look at whether it is right.
        not_imported: Folders with no modules of the user's, such as that of what the program writes.
        watched: Whether another process watches this one by files that it leaves, and the training is ended
            by SystemExit; if not, the training calls the probe and ends itself.
        from_step: Optimizer steps that the training had made before this process.
        sampled_communication: DDP times one exchange in so many, by the type of the device.
    """

    folder: Path
    warmup_steps: int = 0
    steps: int = 0
    until_interval: float = 0.0
    check_after: int = 3
    not_imported: Sequence[Path] = ()
    watched: bool = True
    from_step: int = 0
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
