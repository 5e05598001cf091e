"""Records of runs without any training, as the program writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.small_runs import definition

from scalewise.config.experiment import Experiment
from scalewise.plan.run_definition import RunDefinition, parse_run_name
from scalewise.records import (
    EPOCHS,
    FAILURE,
    RANKS,
    RECORD,
    EpochRecord,
    Failure,
    Measurements,
    Provenance,
    RankRecord,
    RunRecord,
    Window,
    write_json,
    write_rows,
)

CPU_PROCESS = "CPU process"
BEGAN = "2026-01-01T00:00:00+00:00"
STARTUP = {
    "launch_seconds": 0.0,
    "imports_seconds": 2.0,
    "preparation_seconds": 2.0,
    "first_step_seconds": 0.125,
}
WINDOW = Window(first_step=0, steps=1, samples=256, seconds=0.25, warmup=False)


def measurements(**changes: Any) -> Measurements:
    """Return the figures of a run of one step, without measurements of its devices."""
    usual: dict[str, Any] = {
        "parameters": 650,
        "epochs_completed": 0,
        "throughput_samples_per_second": 1000.0,
        "windows": [WINDOW],
        "train_seconds": 1.0,
        "evaluation_seconds": 1.5,
        "final_accuracy": None,
        "best_accuracy": None,
        "peak_memory_bytes": 700_000_000,
        "peak_memory_kind": "process peak RSS",
        "loader_wait_fraction": 0.02,
        **STARTUP,
    }
    return Measurements(**usual | changes)


def rank_record(rank: int, **changes: Any) -> RankRecord:
    """Return the row of a rank without measurements of its steps."""
    usual: dict[str, Any] = {
        "rank": rank,
        "local_rank": rank,
        "host": "node1",
        "device": CPU_PROCESS,
        "visible_devices": "",
        "threads": 1,
        "cpu_affinity": "0",
        "train_samples": 256,
        "step_seconds_p50": 0.25,
        "loader_wait_seconds": None,
        "peak_memory_bytes": 700_000_000,
    }
    return RankRecord(**usual | dict.fromkeys(STARTUP) | changes)


def provenance(run: RunDefinition, **changes: Any) -> Provenance:
    """Return where and how a run of 90 seconds was made: on one model of device, with equal software."""
    device = "A GPU" if run.accelerator == "cuda" else CPU_PROCESS
    usual: dict[str, Any] = {
        "commit": "abc123",
        "hosts": [f"node{number + 1}" for number in range(run.shape.nodes)],
        "devices": [device] * run.shape.world_size,
        "launcher": run.launcher,
        "started_at": BEGAN,
        "ended_at": "2026-01-01T00:01:30+00:00",
        "slurm_job_id": None,
        "restart_count": 0,
        "inputs": {},
        "gpu_limits": [],
    }
    environment: dict[str, Any] = {"cpu_model": "A CPU", "operating_system": "Linux"}
    environment["versions"] = {"torch": "2.15.0"}
    environment |= {key: changes.pop(key) for key in [*environment] if key in changes}
    usual |= changes
    environment["hosts"] = usual["hosts"]
    return Provenance.model_validate({"environments": [environment]} | usual)


def run_record(run: RunDefinition, **changes: Any) -> RunRecord:
    """Return the record of a run that has completed, without its figures."""
    usual = {"outcome": "completed", "reason": "", "measurements": None, "provenance": provenance(run)}
    return RunRecord.model_validate({"definition": run} | usual | changes)


def leave_result(
    folder: Path, record: RunRecord, epochs: Sequence[EpochRecord] = (), ranks: Sequence[RankRecord] = ()
) -> Path:
    """Write the records of a run that has a result; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / EPOCHS, EpochRecord, epochs)
    write_rows(folder / RANKS, RankRecord, ranks)
    write_json(folder / RECORD, record)
    return folder


def leave_failure(folder: Path, run: RunDefinition, outcome: str, reason: str, **changes: Any) -> Path:
    """Write why a run has no result; return its folder.

    Args:
        changes: Fields that are not the usual ones.
    """
    usual = {"definition": run, "inputs": {}, "ended_at": BEGAN, "seconds": 0.0}
    usual |= {"limit_seconds": 600.0, "outcome": outcome, "reason": reason}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FAILURE, Failure.model_validate(usual | changes))
    return folder


def experiment(**changed: Any) -> Experiment:
    """Return the study that the runs of ``write_run`` are of: three on 1 device, three on 2."""
    training = {"dataset": "digits", "model": "linear", "global_batch_size": 256}
    return Experiment.model_validate(training | {"devices": [1, 2], "repeats": 3} | changed)


def write_run(
    runs_folder: Path,
    run: str,
    outcome: str = "completed",
    *,
    options: Mapping[str, Any] | None = None,
    accuracies: Sequence[float] = (0.5, 0.9, 0.98),
    rate: float = 1000.0,
    settings: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
    **measured: Any,
) -> Path:
    """Write the records of a run on one node, whose epoch ``n`` takes ``n`` seconds; return its folder.

    Args:
        runs_folder: Holds a folder for each run.
        run: Its name, ``d2.r1``, which has the number of its devices.
        accuracies: Of each epoch; none of a training that ends before its first evaluation.
        settings: Those that are not the usual ones.
        origin: Replaces parts of the provenance.
        measured: Figures that are not the usual ones.
    """
    point, repeat = parse_run_name(run)
    devices = int(point.split(".")[0].removeprefix("d"))
    changed = {"global_batch_size": 256, "seed": repeat} | dict(options or {}) | dict(settings or {})
    planned = definition(devices, **changed).model_copy(
        update={
            "run": run,
            "repeat": repeat,
            "batch_size_per_device": 256 // devices,
            "global_batch_size": 256,
            "options": dict(options or {}),
        }
    )
    if outcome in {"failed", "timed-out", "interrupted"}:
        return leave_failure(runs_folder / run, planned, outcome, f"why {run} {outcome}")
    reason = "" if outcome == "completed" else f"why {run} is {outcome}"
    if outcome == "out-of-memory":
        lost = run_record(planned, outcome=outcome, reason=reason, provenance=None)
        return leave_result(runs_folder / run, lost)
    epochs = [
        EpochRecord(epoch, float(epoch), 0.5, rate, 2.0 / epoch, 2.1 / epoch, accuracy, 0.1)
        for epoch, accuracy in enumerate(accuracies, start=1)
    ]
    figures: dict[str, Any] = {
        "epochs_completed": len(epochs),
        "throughput_samples_per_second": rate,
        "train_seconds": sum(epoch.train_seconds for epoch in epochs),
        "final_accuracy": accuracies[-1] if accuracies else None,
        "best_accuracy": max(accuracies, default=None),
        "peak_memory_bytes": 700_000_000 + devices,
    }
    record = run_record(
        planned,
        outcome=outcome,
        reason=reason,
        measurements=measurements(**figures | measured),
        provenance=provenance(planned, **origin or {}),
    )
    return leave_result(runs_folder / run, record, epochs, [rank_record(rank) for rank in range(devices)])
