"""The file that says what to measure, and where to leave what is found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


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
        written: Folders that the program writes, whose files are no modules of the user's.
        sampled_communication: DDP times one exchange in so many, by the type of the device.
    """

    folder: Path
    warmup_steps: int = 0
    steps: int = 0
    until_interval: float = 0.0
    check_after: int = 3
    written: Sequence[Path] = ()
    sampled_communication: Mapping[str, int] = field(default_factory=lambda: {"cuda": 25, "cpu": 5})

    @property
    def last_step(self) -> int:
        """Number of the step that ends the training, from 1; 0 for none."""
        return self.warmup_steps + self.steps if self.steps else 0


def read_spec(path: Path) -> ProbeSpec:
    """Read the file, whose keys that are missing have the values above."""
    given = json.loads(path.read_text(encoding="utf-8"))
    known = {name: value for name, value in given.items() if name in ProbeSpec.__dataclass_fields__}
    written = [Path(folder) for folder in given.get("written", [])]
    return ProbeSpec(
        **{**known, "folder": Path(given["folder"]), "steps": given.get("steps") or 0, "written": written}
    )
