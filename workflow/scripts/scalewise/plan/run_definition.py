"""The definition of a run, one form from the plan, through the job and its ranks, to the records."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from scalewise.config.catalog import dataset_facts, prepared_path
from scalewise.config.program import ARGUMENT, FOLDER, AnySettings, ProgramSettings, Word
from scalewise.config.settings import LauncherName, Settings, SharedSettings
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


# --- the program that trains it --------------------------------------------------------------------------

TRAIN = Path(__file__).resolve().parents[2] / "train.py"

NOT_OPTIONS = {
    *("dataset", "scaling", "global_batch_size", "batch_size_per_device", "steps"),
    *("compile", "cpus_per_device", "launcher", "rendezvous", "warmup_steps"),
}
"""Keys of a built-in training that are no options of train.py under their own names."""


def program_of(
    run: RunDefinition,
    *,
    dataset: Path | None = None,
    rendezvous: Path | None = None,
    timeout_seconds: int | None = None,
) -> ProgramSettings:
    """Return the settings of the program that trains a run.

    Args:
        run: The run.
        dataset: The prepared file; None for the place where the pipeline puts it.
        rendezvous: The file by which ranks find each other, if the run asks for one.
        timeout_seconds: A rank waits this long for another; None for train.py's default.
    """
    settings = run.settings
    if isinstance(settings, ProgramSettings):
        return settings
    options = {
        "data": dataset or prepared_path(settings.dataset),
        "folder": f"{{{FOLDER}}}",
        "batch_size_per_device": run.batch_size_per_device,
        "steps": settings.last_step,
        "workers": settings.cpus_per_device if settings.loader == "workers" else None,
        "compile": "default" if settings.compile is True else settings.compile or None,
        "device": run.accelerator,
        "timeout_seconds": timeout_seconds,
        "init_method": f"file://{rendezvous}" if settings.rendezvous == "file" and rendezvous else None,
        "spawn": run.shape.devices_per_node if run.launcher == "spawn" else None,
        "nodes": run.shape.nodes if run.launcher == "spawn" else None,
        # train.py has the same defaults
        **settings.model_dump(exclude=NOT_OPTIONS, exclude_defaults=True),
    }
    words: list[Word] = []
    for key, value in options.items():
        option = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            text = str(value)
            words += [f"--{option}", text if key == "folder" else text.replace("{", "{{").replace("}", "}}")]
    shared = {key: getattr(settings, key) for key in SharedSettings.model_fields}
    return ProgramSettings.model_construct(
        **shared,
        program=str(TRAIN),
        arguments=words,
        # one step of the warm-up is counted, after the first
        count_flops=settings.warmup_steps > 1,
        no_grad_passes="evaluation",
        starts="itself" if run.launcher == "spawn" else "ranks",
        resumes=settings.steps is None,
    )


def run_values(run: RunDefinition, program: ProgramSettings) -> dict[str, object]:
    """Return the values of the names in braces that are known before a run starts."""
    return {
        "devices": run.shape.world_size,
        "devices_per_node": run.shape.devices_per_node,
        "nodes": run.shape.nodes,
        "batch_size_per_device": run.batch_size_per_device,
        "global_batch_size": run.global_batch_size,
        "accumulation_steps": program.accumulation_steps,
        "seed": program.seed,
        **{f"{ARGUMENT}{name}": value for name, value in program.argument.items()},
    }


def steps_per_epoch(run: RunDefinition) -> int | None:
    """Return the optimizer steps of an epoch of the built-in training; None for a user's program."""
    if not isinstance(run.settings, Settings):
        return None
    return dataset_facts(run.settings.dataset).train_samples // run.global_batch_size
