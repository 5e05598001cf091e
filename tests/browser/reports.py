"""The studies whose reports the tests look at: their configurations, their speeds and their unkind names."""

from __future__ import annotations

from pathlib import Path

from tests.planted_study import Law, PlantedStudy, experiments

from scalewise.plan.runs.run_definition import RunDefinition

UNKIND = "<b>not bold</b> & \"quoted\" 'twice' </script><script>alert(1)</script>"
"""A title that would break a page which takes it for markup."""


TWO_SERIES = experiments(
    unkind={
        "title": UNKIND,
        "devices": [1, 2],
        "repeats": 6,
        "sweep": {"gradient_as_bucket_view": [False, True]},
        "target": {"accuracy": 0.97},
        "decision": {"min_efficiency": 0.6},
    }
)

WEAK = {"scaling": "weak", "global_batch_size": None, "batch_size_per_device": 16}

SEVERAL = experiments(
    chosen={
        **WEAK,
        "title": "Which of up to 16 GPUs",
        "devices": {"up_to": 16},
        "epochs": None,
        "steps": 300,
        "decision": {"min_efficiency": 0.7},
    },
    nothing={**WEAK, "title": "All runs failed", "devices": [1, 2], "repeats": 1},
    listed={**WEAK, "title": "Three counts, of which one failed", "devices": [1, 2, 4]},
)

TWO_PARTITIONS = experiments(known={"title": "What is planted", "devices": [1, 2], "partitions": "all"})
SITE_OF_PARTITIONS: dict[str, object] = {
    "accelerator": "cuda",
    "cpus_per_node": 32,
    "devices_per_node": 4,
    "partitions": {"a100": {"price_per_device_hour": 1.5}, "h200": {"price_per_device_hour": 4.5}},
}


def two_series(folder: Path) -> Path:
    """Return the report on a study of the shipped one's shape, with names that are unkind to a page."""
    return PlantedStudy(folder, TWO_SERIES).finish()


def several(folder: Path) -> Path:
    """Return the report on what has finished of three experiments, of which one chooses its device counts.

    All runs of the second have failed, and of the third all on 4 devices and one on 2.
    """

    def speed(run: RunDefinition) -> float | None:
        lost = run.experiment == "listed" and (run.shape.world_size == 4 or run.run == "d2.r2")
        return None if lost or run.experiment == "nothing" else Law(serial=0.05).speed(run)

    study = PlantedStudy(folder, SEVERAL, speed)
    study.play()
    return study.write_partial()


def two_partitions(folder: Path) -> Path:
    """Return the report on an experiment on two partitions, each with an "@" in its name."""

    def speed(run: RunDefinition) -> float:
        return Law(rate=500.0 if run.partition == "h200" else 200.0).speed(run)

    return PlantedStudy(folder, TWO_PARTITIONS, speed, SITE_OF_PARTITIONS).finish()
