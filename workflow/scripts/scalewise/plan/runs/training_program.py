"""The program of a run: the user's, or ``train.py`` with the run's settings as its options."""

from __future__ import annotations

from pathlib import Path

from scalewise.config.catalog.datasets import dataset_facts, prepared_path
from scalewise.config.program import ARGUMENT, FOLDER, ProgramSettings, Word
from scalewise.config.settings import Settings, SharedSettings
from scalewise.plan.runs.run_definition import RunDefinition

TRAIN = Path(__file__).resolve().parents[3] / "train.py"

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
