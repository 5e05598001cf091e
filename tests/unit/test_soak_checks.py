"""The checks of a soak: they pass what is right and name the place of what is not."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.soak_checks import judge, planned_runs, resumed
from tests.planting import leave_result, measurements, run_record

from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import EpochRecord, Resumption, RunRecord, read_summary, write_json, write_rows

TRAINING = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 60,
    "epochs": 2,
    "devices": [1, 2],
    "repeats": 2,
    "save_model": True,
    "deterministic": True,
}
EPOCHS = [EpochRecord(epoch, 0.5, 0.1, 3000.0, 0.7, 0.6, 0.8, 0.1) for epoch in (1, 2)]
RESUMED = Resumption(starts=2, resumed_at_steps=[7], lost_steps=3)


def record(definition: RunDefinition, epochs: int = 2) -> RunRecord:
    measured = measurements(epochs_completed=epochs, resumption=RESUMED)
    return run_record(definition, measurements=measured, provenance=None)


def leave_run(folder: Path, definition: RunDefinition) -> None:
    leave_result(folder, record(definition), EPOCHS)
    (folder / "model.safetensors").write_bytes(f"weights {definition.shape} {definition.repeat}".encode())


@pytest.fixture
def planned(tmp_path: Path) -> dict[tuple[str, str], RunDefinition]:
    site = tmp_path / "site.yaml"
    site.write_text("accelerator: cpu\ndevices_per_node: 2\ncpus_per_node: 2\n")
    return planned_runs({"experiments": {"undisturbed": TRAINING, "e": TRAINING, "f": TRAINING}}, site)


@pytest.fixture
def results(tmp_path: Path, planned: dict[tuple[str, str], RunDefinition]) -> Path:
    """A study of eight runs under faults, all of them right."""
    results = tmp_path / "results"
    for (experiment, name), definition in planned.items():
        leave_run(results / experiment / "runs" / name, definition)
    for experiment in ("undisturbed", "e", "f"):
        write_table(results, experiment, [name for owner, name in planned if owner == experiment])
    return results


def write_table(results: Path, experiment: str, names: list[str]) -> None:
    with (results / experiment / "runs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["run", "outcome"], *([name, "completed"] for name in names)])


def test_study_that_came_through_is_found_right(
    results: Path, planned: dict[tuple[str, str], RunDefinition]
) -> None:
    verdict = judge(results, planned, "undisturbed")
    assert verdict.problems == []
    assert (verdict.right, verdict.runs) == (8, 8)
    assert resumed([verdict]) == (8, 8, 24)


def test_timings_may_differ_between_a_run_and_its_undisturbed_likeness(
    results: Path, planned: dict[tuple[str, str], RunDefinition]
) -> None:
    slower = [EpochRecord(epoch, 9.5, 9.1, 3.0, 0.7, 0.6, 0.8, 0.1) for epoch in (1, 2)]
    write_rows(results / "e" / "runs" / "d1.r1" / "epochs.csv", EpochRecord, slower)
    assert judge(results, planned, "undisturbed").problems == []


def other_outcome(run: Path) -> None:
    summary = read_summary(run)
    write_json(run / "summary.json", summary.model_copy(update={"outcome": "diverged"}))


def other_definition(run: Path) -> None:
    summary = read_summary(run)
    changed = summary.definition.model_copy(update={"global_batch_size": 30})
    write_json(run / "summary.json", summary.model_copy(update={"definition": changed}))


def fewer_epochs(run: Path) -> None:
    summary = read_summary(run)
    write_json(run / "summary.json", record(summary.definition, epochs=1))


def other_loss(run: Path) -> None:
    write_rows(
        run / "epochs.csv",
        EpochRecord,
        [EPOCHS[0], EpochRecord(2, 0.5, 0.1, 3000.0, 0.7000001, 0.6, 0.8, 0.1)],
    )


def epoch_twice(run: Path) -> None:
    write_rows(run / "epochs.csv", EpochRecord, [EPOCHS[0], *EPOCHS])


def other_weights(run: Path) -> None:
    (run / "model.safetensors").write_bytes(b"weights of another")


def half_written(run: Path) -> None:
    (run / ".summary.json.17.part").write_text("{")


def draft_left(run: Path) -> None:
    (run / ".lock.5eed").mkdir()


def holder_left(run: Path) -> None:
    (run / "lock").mkdir()


def checkpoints_left(run: Path) -> None:
    (run / "checkpoints" / "step-000000007").mkdir(parents=True)


def copied(run: Path) -> None:
    shutil.copytree(run, run.with_name("d4.r1"))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        pytest.param(shutil.rmtree, r"d2\.r2/summary\.json: No such file", id="a run that is missing"),
        pytest.param(other_outcome, r"d2\.r2: diverged \(\), not completed", id="a run that diverged"),
        pytest.param(other_definition, r"d2\.r2: trained .* planned was", id="a run of other settings"),
        pytest.param(fewer_epochs, r"d2\.r2: 1 epochs done, 2 were planned", id="a run cut short"),
        pytest.param(other_loss, r"d2\.r2/epochs\.csv: not the epochs of", id="another loss"),
        pytest.param(epoch_twice, r"d2\.r2/epochs\.csv: not the epochs of", id="an epoch recorded twice"),
        pytest.param(other_weights, r"d2\.r2/model\.safetensors: sha256", id="other weights"),
        pytest.param(half_written, r"\.summary\.json\.17\.part: left half written", id="half a file"),
        pytest.param(draft_left, r"\.lock\.5eed: left half written", id="a draft"),
        pytest.param(holder_left, r"d2\.r2/lock: left by a run", id="a lock that stays"),
        pytest.param(checkpoints_left, r"d2\.r2/checkpoints: left by a run", id="checkpoints that stay"),
        pytest.param(copied, r"d4\.r1: a run that was not planned", id="a run that nobody planned"),
    ],
)
def test_what_is_wrong_with_a_run_is_named_with_its_place(
    results: Path,
    planned: dict[tuple[str, str], RunDefinition],
    spoil: Callable[[Path], None],
    complaint: str,
) -> None:
    spoil(results / "f" / "runs" / "d2.r2")
    verdict = judge(results, planned, "undisturbed")
    assert len(verdict.problems) == 1
    assert re.search(complaint, verdict.problems[0])


@pytest.mark.parametrize(
    ("names", "times"),
    [(["d1.r1", "d1.r2", "d2.r1"], 0), (["d1.r1", "d1.r2", "d2.r1", "d2.r2", "d2.r2"], 2)],
)
def test_run_that_the_tables_have_not_just_once_is_named(
    results: Path, planned: dict[tuple[str, str], RunDefinition], names: list[str], times: int
) -> None:
    write_table(results, "e", names)
    verdict = judge(results, planned, "undisturbed")
    assert verdict.problems == [
        f"{results / 'e' / 'runs.csv'}: d2.r2 stands there {times} times, not 1",
    ]
