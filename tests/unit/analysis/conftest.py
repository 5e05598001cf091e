"""Hand-made tables and run folders, in the shapes that the training leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.small_runs import leave_failure

from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import (
    EPOCHS,
    RANKS,
    SUMMARY,
    EpochRecord,
    Measurements,
    Provenance,
    RankRecord,
    RunRecord,
    Startup,
    Window,
    write_json,
    write_rows,
)

Point = tuple[str, int]
"""Series and devices."""


def _runs(points: Mapping[Point, Sequence[float | str]], **columns: Any) -> pd.DataFrame:
    rows = []
    for (series, devices), results in points.items():
        for repeat, result in enumerate(results, start=1):
            done = not isinstance(result, str)
            rows.append(
                {
                    "experiment": "study",
                    "run": f"d{devices}.{series}.r{repeat}",
                    "series": series,
                    "devices": devices,
                    "nodes": 1.0 if done else None,
                    "repeat": repeat,
                    "cpus_per_device": 1,
                    "outcome": "completed" if done else result,
                    "reason": "" if done else f"why it is {result}",
                    "throughput_samples_per_second": float(result) if done else None,
                    "train_seconds": 2.0 if done else None,
                    "time_to_accuracy_seconds": 1.0 if done else None,
                    "epochs_to_accuracy": 3.0 if done else None,
                    "final_accuracy": 0.98 if done else None,
                    "best_accuracy": 0.99 if done else None,
                    "peak_memory_bytes": 700e6 if done else None,
                    "peak_memory_kind": "process peak RSS" if done else None,
                    "loader": "resident" if done else None,
                    "loader_wait_fraction": 0.01 if done else None,
                    "communication_fraction": 0.1 if done else None,
                    "mean_utilization": 0.9 if done else None,
                    "throttled": None,
                    "energy_joules": 5000.0 if done else None,
                    "samples_per_joule": 20.0 if done else None,
                    "monitor_note": "" if done else None,
                    "imports_seconds": 2.0 if done else None,
                    "process_group_seconds": 0.1 if done else None,
                    "data_seconds": 0.1 if done else None,
                    "model_seconds": 1.5 if done else None,
                    "first_step_seconds": 0.3 if done else None,
                    "device_hours": 0.01 * devices if done else None,
                }
            )
    return pd.DataFrame(rows).assign(**columns)


@pytest.fixture(scope="session")
def make_runs() -> Callable[..., pd.DataFrame]:
    """``{(series, devices): [samples/s of each repeat, or the outcome of one that has none]}``."""
    return _runs


def _curves(runs: pd.DataFrame, count: int = 4) -> pd.DataFrame:
    rows = [
        {key: run[key] for key in ("run", "series", "devices", "repeat", "cpus_per_device")}
        | {
            "epoch": epoch,
            "elapsed_train_seconds": 256.0 * epoch / run["throughput_samples_per_second"],
            "train_loss": 2.0 / epoch + 0.01 * run["repeat"],
            "test_loss": 2.2 / epoch + 0.01 * run["repeat"],
            "test_accuracy": 1 - 0.5 / epoch,
        }
        for _, run in runs.iterrows()
        if run["outcome"] == "completed"
        for epoch in range(1, count + 1)
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["run"])


@pytest.fixture(scope="session")
def make_epochs() -> Callable[..., pd.DataFrame]:
    """Curves of the runs that completed."""
    return _curves


WINDOW = Window(first_step=0, steps=1, samples=256, seconds=0.25, warmup=False)


def _definition(
    run: str, devices: int, repeat: int, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> RunDefinition:
    return RunDefinition(
        experiment="study",
        run=run,
        shape=f"1x{devices}",
        batch_size_per_device=256 // devices,
        global_batch_size=256,
        repeat=repeat,
        options=dict(options),
        accelerator="cpu",
        launcher="torchrun",
        settings=Settings(dataset="digits", model="linear", global_batch_size=256).model_dump()
        | {"seed": repeat}
        | dict(options)
        | dict(settings),
    )


def _rank(rank: int) -> RankRecord:
    """A rank of which nobody has watched the steps."""
    return RankRecord(
        rank=rank,
        local_rank=rank,
        host="node-a",
        device="CPU process",
        visible_devices="",
        threads=1,
        cpu_affinity="0",
        train_samples=256,
        test_samples=None,
        step_seconds_p05=0.2,
        step_seconds_p50=0.25,
        step_seconds_p95=0.3,
        step_seconds_max=0.3,
        loader_wait_seconds=None,
        peak_memory_bytes=700_000_000,
        imports_seconds=None,
        process_group_seconds=None,
        data_seconds=None,
        model_seconds=None,
        first_step_seconds=None,
    )


def _write_run(
    runs_folder: Path,
    run: str,
    devices: int,
    outcome: str = "completed",
    *,
    options: Mapping[str, Any] | None = None,
    accuracies: Sequence[float] = (0.5, 0.9, 0.98),
    rate: float = 1000.0,
    windows: Sequence[Window] = (WINDOW,),
    ranks: Sequence[RankRecord] | None = None,
    settings: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
    parameters: int = 650,
    **monitored: Any,
) -> Path:
    repeat = int(run.rsplit(".r", 1)[1])
    definition = _definition(run, devices, repeat, options or {}, settings or {})
    folder = runs_folder / run
    folder.mkdir(parents=True)
    if outcome in {"failed", "timed-out", "interrupted"}:
        leave_failure(folder, definition, outcome, f"why {run} {outcome}")
        return folder
    trained = outcome != "out-of-memory"
    epochs = [
        EpochRecord(epoch, float(epoch), 0.5, rate, 2.0 / epoch, 2.1 / epoch, accuracy, 0.1)
        for epoch, accuracy in enumerate(accuracies if trained else (), start=1)
    ]
    measured = Measurements(
        parameters=parameters,
        epochs_completed=len(epochs),
        throughput_samples_per_second=rate,
        windows=list(windows),
        train_seconds=sum(epoch.train_seconds for epoch in epochs),
        evaluation_seconds=1.5,
        final_accuracy=accuracies[-1],
        best_accuracy=max(accuracies),
        peak_memory_bytes=700_000_000 + devices,
        peak_memory_kind="process peak RSS",
        loader_wait_fraction=0.02,
        startup=Startup(
            imports_seconds=2.0,
            process_group_seconds=0.5,
            data_seconds=0.25,
            model_seconds=1.25,
            first_step_seconds=0.125,
        ),
        **monitored,
    )
    met: dict[str, Any] = {
        "commit": "abc123",
        "versions": {"torch": "2.15.0"},
        "hosts": ["node-a"],
        "devices": ["CPU process"] * devices,
        "cpu_model": "A CPU",
        "operating_system": "Linux",
        "launcher": "torchrun",
        "started_at": "2026-01-01T00:00:00+00:00",
        "ended_at": "2026-01-01T00:01:30+00:00",
        "slurm_job_id": None,
        "restart_count": 0,
        "inputs": {},
        "gpu_limits": [],
    }
    met |= origin or {}
    environment = {key: met[key] for key in ("hosts", "cpu_model", "operating_system", "versions")}
    provenance = Provenance.model_validate({"environments": [environment]} | met)
    write_rows(folder / EPOCHS, EpochRecord, epochs)
    if ranks is None:
        ranks = [_rank(rank) for rank in range(devices)] if trained else []
    write_rows(folder / RANKS, RankRecord, ranks)
    summary = RunRecord.model_validate(
        {
            "definition": definition,
            "outcome": outcome,
            "reason": "" if outcome == "completed" else f"why {run} is {outcome}",
            "measurements": measured if trained else None,
            "provenance": provenance if trained else None,
        }
    )
    write_json(folder / SUMMARY, summary)
    return folder


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """Leaves the records of a run in a folder; epoch ``n`` of its training takes ``n`` seconds.

    ``settings`` and ``origin`` replace single settings of the run and parts of its provenance. Further
    keyword arguments are what its monitor has measured.
    """
    return _write_run
