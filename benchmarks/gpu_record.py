"""What was run on a GPU, as one JSON file: tests marked `gpu`, and parts of `benchmarks/run.py gpu`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from .measure import Row

SNAKEFILE = Path(__file__).resolve().parents[1] / "workflow" / "Snakefile"

Outcome = Literal["passed", "failed", "skipped", "not run"]


@dataclass(frozen=True)
class Check:
    """A test that is marked `gpu`.

    Args:
        test: its name as pytest has it.
        words: what it shows.
        outcome: ``not run`` until it has ended.
        reason: why it was skipped, or how it failed.
        figures: what it measured.
        seconds: it took, without its fixtures.
    """

    test: str
    words: str
    outcome: Outcome = "not run"
    reason: str = ""
    figures: Sequence[str] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Args:
        name: as ``--only`` takes it.
        seconds: it took.
        rows: of its table, as far as they were measured.
        missing: why the others were not; empty where none is missing.
    """

    name: str
    seconds: float
    rows: Sequence[Row] = ()
    missing: str = ""


@dataclass(frozen=True)
class GpuRecord:
    """All that is known from one machine.

    Args:
        machine: GPU, driver, versions and the like, by name.
        checks: by their tests' names, in their order.
        parts: in the order of their measurement.
    """

    machine: dict[str, str] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    parts: Sequence[Part] = ()

    @classmethod
    def read(cls, file: Path) -> GpuRecord:
        """Read a record; an empty one where there is no file."""
        if not file.exists():
            return cls()
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return cls(
            machine=values["machine"],
            checks=[Check(**check) for check in values["checks"]],
            parts=[Part(**part | {"rows": [Row(**row) for row in part["rows"]]}) for part in values["parts"]],
        )

    def write(self, file: Path) -> None:
        """Write the record in place of an earlier one, whole or not at all."""
        from scalewise.records import write_text  # noqa: PLC0415  who only reads need not have its packages

        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(asdict(self), indent=1) + "\n")

    def with_part(self, part: Part) -> GpuRecord:
        """Add a part, in place of an earlier one of its name."""
        return replace(self, parts=[*(each for each in self.parts if each.name != part.name), part])


def gpu_missing() -> str:
    """Say why no GPU can be used; empty where one can."""
    import torch  # noqa: PLC0415  what only plans does not wait for it

    if torch.cuda.is_available():
        return ""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    return f"no GPU: torch {torch.__version__}, {built}, sees none (CUDA_VISIBLE_DEVICES={visible})"


def describe_machine(accelerator: Literal["cpu", "cuda"]) -> dict[str, str]:
    """GPU, driver, versions and CPU of this machine, by name, as a run's records have them."""
    import torch  # noqa: PLC0415  as above

    from scalewise.measure.origins import versions  # noqa: PLC0415
    from scalewise.plan.config.site import cpu_model  # noqa: PLC0415
    from scalewise.ranks.monitoring.environments import source_version  # noqa: PLC0415
    from scalewise.ranks.monitoring.sensors import driver_version, gpu_limits  # noqa: PLC0415

    found = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": source_version(SNAKEFILE.parent / "scripts") or "unknown",
    }
    if accelerator == "cuda":
        torch.cuda.init()
        device = torch.device("cuda", 0)
        properties = torch.cuda.get_device_properties(device)
        found["GPU"] = torch.cuda.get_device_name(device)
        found["GPUs"] = str(torch.cuda.device_count())
        found["GPU memory"] = f"{properties.total_memory / 2**30:.0f} GiB"
        if (limits := gpu_limits(str(properties.uuid))) is not None:
            found |= limits.named()
        if torch.backends.cudnn.is_available():
            found["cudnn"] = str(torch.backends.cudnn.version())
    else:
        found["GPU"] = "none: a rehearsal on the CPU"
    found["CPU"] = f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores"
    found["system"] = f"{platform.system()} {platform.release()}"
    driver = driver_version() if accelerator == "cuda" else None
    return found | versions(accelerator == "cuda") | ({} if driver is None else {"driver": driver})
