"""Records of programs' runs in the shape that the wrapper leaves, with planted step times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.plan.config.experiment import ProgramExperiment
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.runs import global_batch, repeat_settings, settings_of
from scalewise.records import (
    EPOCHS,
    RANKS,
    SUMMARY,
    EpochRecord,
    Measurements,
    ProgramMeasurements,
    Provenance,
    RankRecord,
    RunRecord,
    Startup,
    Window,
    write_json,
    write_rows,
)

DDP = ["DistributedDataParallel"]
UNKNOWN = {
    "test accuracy": "the program does not tell it",
    "parts of the start-up": "process group, data and model are made in the program",
}
NO_LOADER = {"loader wait": "no DataLoader of PyTorch feeds the training"}
STEPS = 20
WARMUP = 2


def experiment(**changed: Any) -> ProgramExperiment:
    """A study of ``train.py`` on 1 and 2 devices, ended after some steps, with weak scaling."""
    values: dict[str, Any] = {
        "program": "train.py",
        "arguments": ["--batch-size", "{batch_size_per_device}", "--out", "{folder}"],
        "scaling": "weak",
        "batch_size_per_device": 16,
        "devices": [1, 2],
        "repeats": 3,
        "steps": STEPS,
        "warmup_steps": WARMUP,
    }
    return ProgramExperiment.model_validate(values | changed)


def write_program_run(
    runs_folder: Path,
    run: str,
    spec: ProgramExperiment,
    step_seconds: float,
    *,
    shape: str | None = None,
    options: Mapping[str, Any] | None = None,
    exposed: float | None = None,
    loader_wait: float | None = 0.0,
    program: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> Path:
    """Leave the records of a run that completed.

    Args:
        runs_folder: Holds a folder for each run.
        run: Its name, ``d2.r1``.
        spec: The study.
        step_seconds: Mean measured step.
        shape: Nodes x devices per node; by default as many devices as the name says, on one node.
        options: Swept values.
        exposed: Seconds of a step that DDP counts as exposed; None where nothing counts them.
        loader_wait: Seconds of a step that every rank waits for data; None where that is not known.
        program: Replaces parts of what was found of the program.
        origin: Replaces parts of the provenance.
    """
    point, repeat = run.rsplit(".r", 1)
    place = Shape.parse(shape or f"1x{point.split('.')[0].removeprefix('d')}")
    devices = place.world_size
    settings = settings_of(spec, tuple((options or {}).items()))
    samples = global_batch(settings, devices)
    definition = RunDefinition(
        experiment="study",
        run=run,
        shape=str(place),
        batch_size_per_device=samples // devices,
        global_batch_size=samples,
        repeat=int(repeat),
        options=dict(options or {}),
        accelerator="cpu",
        launcher="torchrun",
        settings=repeat_settings(settings, int(repeat)),
    )
    windows = [
        Window(first_step=0, steps=WARMUP, samples=WARMUP * samples, seconds=9.0, warmup=True),
        *(
            Window(
                first_step=WARMUP + 5 * index,
                steps=5,
                samples=5 * samples,
                seconds=5 * step_seconds,
                warmup=False,
            )
            for index in range(STEPS // 5)
        ),
    ]
    unknown = UNKNOWN | ({} if loader_wait is not None else NO_LOADER)
    if exposed is None:
        unknown |= {"communication": "it is counted by DistributedDataParallel, and none was seen"}
    found: dict[str, Any] = {
        "command": ["python", "train.py", "--batch-size", str(samples // devices), "--out", f"out/{run}"],
        "ended": "steps" if settings.steps else "itself",
        "samples_from": "loader" if loader_wait is not None else "forward",
        "samples_seen": float(samples),
        "optimizers": ["AdamW"],
        "parallelism": DDP if devices > 1 else [],
        "precision": "bfloat16 by autocast, parameters float32",
        "gradient_bytes": 40_000_000,
        "losses": [(step, 2.0 - 0.05 * step) for step in range(0, STEPS, 4)],
        "imported_files": {"model.py": "a" * 64},
        "unknown": unknown,
    }
    measured = Measurements(
        parameters=10_000_000,
        epochs_completed=0,
        throughput_samples_per_second=samples / step_seconds,
        windows=windows,
        train_seconds=sum(window.seconds for window in windows),
        evaluation_seconds=None,
        final_accuracy=None,
        best_accuracy=None,
        peak_memory_bytes=600_000_000,
        peak_memory_kind="process peak RSS",
        loader_wait_fraction=None if loader_wait is None else loader_wait / step_seconds,
        communication_fraction=None if exposed is None else exposed / step_seconds,
        loader="program",
        excluded_steps={"evaluation": 1},
        startup=Startup(
            imports_seconds=2.0,
            process_group_seconds=None,
            data_seconds=None,
            model_seconds=None,
            first_step_seconds=0.5,
            launch_seconds=1.0,
            preparation_seconds=3.0,
        ),
        program=ProgramMeasurements.model_validate(found | dict(program or {})),
    )
    ranks = [
        RankRecord(
            rank=rank,
            local_rank=rank % place.devices_per_node,
            host=f"node-{rank // place.devices_per_node}",
            device="CPU process",
            visible_devices="",
            threads=1,
            cpu_affinity="0",
            train_samples=samples // devices,
            test_samples=None,
            step_seconds_p05=step_seconds,
            step_seconds_p50=step_seconds,
            step_seconds_p95=step_seconds,
            step_seconds_max=step_seconds,
            loader_wait_seconds=None if loader_wait is None else STEPS * loader_wait,
            peak_memory_bytes=600_000_000,
            imports_seconds=2.0,
            process_group_seconds=None,
            data_seconds=None,
            model_seconds=None,
            first_step_seconds=0.5,
            communication_seconds_per_step=exposed,
            waiting_seconds_per_step=None if exposed is None else 0.0,
            preparation_seconds=3.0,
        )
        for rank in range(devices)
    ]
    met: dict[str, Any] = {
        "commit": "abc123",
        "versions": {"torch": "2.15.0", "python": "3.11.7"},
        "hosts": [f"node-{node}" for node in range(place.nodes)],
        "devices": ["CPU process"] * devices,
        "cpu_model": "A CPU",
        "operating_system": "Linux",
        "launcher": "torchrun",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:30+00:00",
        "slurm_job_id": None,
        "restart_count": 0,
        "inputs": {"program": "b" * 64},
        "gpu_limits": [],
    }
    met |= origin or {}
    environment = {key: met[key] for key in ("hosts", "cpu_model", "operating_system", "versions")}
    folder = runs_folder / run
    folder.mkdir(parents=True)
    write_rows(folder / EPOCHS, EpochRecord, [])
    write_rows(folder / RANKS, RankRecord, ranks)
    summary = RunRecord(
        definition=definition,
        outcome="completed",
        reason="",
        measurements=measured,
        provenance=Provenance.model_validate({"environments": [environment]} | met),
    )
    write_json(folder / SUMMARY, summary)
    return folder
