"""The program of a run: the user's, or ``train.py`` with the run's settings as its options."""

from __future__ import annotations

from pathlib import Path

from scalewise.config.catalog.datasets import dataset_facts, prepared_path
from scalewise.config.program import FOLDER, ProgramSettings, Word
from scalewise.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition

TRAIN = Path(__file__).resolve().parents[3] / "train.py"

NOT_OPTIONS = set(
    {
        *("dataset", "scaling", "global_batch_size", "batch_size_per_device", "steps"),
        *("compile", "cpus_per_device", "launcher", "rendezvous", "warmup_steps"),
    }
)
"""Keys of a built-in training that are no options of train.py under their own names."""

FEWEST_WARMUP_STEPS = 2
"""Steps of the warm-up from which on one of them can be counted."""


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
    compiled = "default" if settings.compile is True else settings.compile or None
    options = {
        "data": dataset or prepared_path(settings.dataset),
        "folder": f"{{{FOLDER}}}",
        "batch_size_per_device": run.batch_size_per_device,
        "steps": settings.last_step,
        "workers": settings.cpus_per_device if settings.loader == "workers" else None,
        "compile": compiled,
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
    return ProgramSettings.model_construct(
        program=str(TRAIN),
        arguments=words,
        scaling=settings.scaling,
        global_batch_size=settings.global_batch_size,
        batch_size_per_device=settings.batch_size_per_device,
        accumulation_steps=settings.accumulation_steps,
        count_flops=settings.warmup_steps >= FEWEST_WARMUP_STEPS,
        no_grad_passes="evaluation",
        steps=settings.steps,
        warmup_steps=settings.warmup_steps,
        starts="itself" if run.launcher == "spawn" else "ranks",
        resumes=settings.steps is None,
        cpus_per_device=settings.cpus_per_device,
        seed=settings.seed,
    )


def steps_per_epoch(run: RunDefinition) -> int | None:
    """Return the optimizer steps of an epoch of the built-in training; None for a user's program."""
    if not isinstance(run.settings, Settings):
        return None
    return dataset_facts(run.settings.dataset).train_samples // run.global_batch_size
