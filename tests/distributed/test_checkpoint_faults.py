"""Whole trainings whose checkpoints are cut off, damaged, of something else, or find no room."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePath

import pytest
import torch
from tests.cores import needs_two_cores
from tests.distributed.interrupted_runs import (
    PAUSE_SECONDS,
    SETTINGS,
    Kill,
    Runs,
    ended,
    prepare_some_digits,
    resumed_at,
    resumption,
)
from tests.reliability.thoroughness import times
from tests.small_disk import needs_small_disk, seen_by
from tests.small_runs import rank_setup
from tests.waiting import wait_until

from scalewise.builtin.checkpoints.storage import load
from scalewise.execution.checkpoint_files import MANIFEST, Checkpoint, CheckpointFolder, FileSum, Manifest
from scalewise.execution.rank_files import RankFiles
from scalewise.records import EPOCHS, HISTORY, SUMMARY, read_failure, read_summary, write_json

pytestmark = [
    needs_two_cores,
    pytest.mark.timeout(times(quick=1800, thorough=2400)),
]

Record = Callable[[str, object], None]
Calm = Callable[[int], Path]


def checkpoints_of(folder: Path) -> list[Checkpoint]:
    """Those that a run finds in its folder, the newest first; all of their files are whole."""
    manifests = sorted(folder.glob(f"step-*/{MANIFEST}"))
    manifest = Manifest.model_validate_json(manifests[-1].read_text(encoding="utf-8"))
    found = list(CheckpointFolder(folder, manifest.definition, manifest.inputs).valid([]))
    for checkpoint in found:
        for name in checkpoint.manifest.files:
            checkpoint.check(name)
    return found


HEAVY = {"model": "planted_heavy"}
"""Of which a checkpoint takes long enough to be cut off in the middle."""


def killed_while_writing(runs: Runs, name: str, devices: int) -> bool:
    """Start a run, and kill all its ranks as soon as a checkpoint is half written; whether one was."""
    training = runs.start(name, devices, HEAVY, pause_seconds=PAUSE_SECONDS, checkpoint_seconds=0.05)
    parts = training.folder / "checkpoints"
    # what an earlier start has left is cleared away with the first that this one writes
    left = {path.stat().st_ino for path in parts.glob(".step-*")}
    wait_until(
        lambda: written_now(parts, left) or training.process.poll() is not None,
        f"{name} begins no checkpoint",
        longest_pause_seconds=0.002,
    )
    # asked for here: before, there may be the notes of an earlier start
    for rank in range(devices):
        with suppress(ProcessLookupError):
            os.kill(training.pid(rank), signal.SIGKILL)
    training.end()
    assert training.left_over() == {}
    return any(parts.glob(".step-*"))


def written_now(parts: Path, left: set[int]) -> bool:
    with suppress(FileNotFoundError):
        return any(path.stat().st_ino not in left for path in parts.glob(".step-*"))
    return False


@pytest.mark.fault(18)
def test_a_training_goes_on_from_the_checkpoint_before_the_one_it_died_in(
    runs: Runs, record_property: Record
) -> None:
    undisturbed = runs.start("calm", 2, HEAVY)
    assert undisturbed.end()[0] == 0
    # the first checkpoint of all has none before it
    training = runs.start("cut", 2, HEAVY, peril=Kill(45, "stop"), pause_seconds=0.1)
    training.wait_until(runs.mark(training.folder).exists, "no batch 45", 0.01)
    training.process.send_signal(signal.SIGTERM)
    training.end()
    wanted, kills, half_written = times(quick=1, thorough=6), 0, 0
    # some come too late
    while half_written < wanted and kills < wanted + 9:
        half_written += killed_while_writing(runs, "cut", 2)
        kills += 1
    assert half_written, f"each of {kills} kills came after the checkpoint"
    folder = runs.complete("cut", 2, HEAVY)
    assert len(resumed_at(folder)) == kills + 1
    assert resumption(folder).problems == []
    assert ended(folder) == ended(undisturbed.folder)
    record_property("figure", f"whole trainings: {kills} of {kills} resumed, weights and records identical")


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.fault(20)
def test_a_damaged_checkpoint_is_told_and_the_training_goes_on_from_the_one_before(
    runs: Runs, stopped: Path, undisturbed_run: Calm
) -> None:
    begun = runs.begun(stopped)
    newest, before = checkpoints_of(begun / "checkpoints")
    flip_a_byte(newest.folder / "shared.pt")

    folder = runs.complete("stopped", 1)

    assert resumed_at(folder) == [before.manifest.step]
    # train.py asks the manifests alone; the ranks find the damage
    assert resumption(folder).lost_steps == newest.manifest.step - before.manifest.step
    (problem,) = resumption(folder).problems
    assert problem.startswith(f"not used: {newest.folder / 'shared.pt'} has sha256 ")
    assert problem in (folder / "train.log").read_text(encoding="utf-8")
    assert ended(folder) == ended(undisturbed_run(1))


@pytest.mark.fault(20)
def test_a_checkpoint_whose_times_are_missing_is_refused_with_their_folder(
    runs: Runs, stopped: Path, undisturbed_run: Calm
) -> None:
    """Its run would have no throughput of the steps before it."""
    checkpoints = runs.begun(stopped) / "checkpoints"
    newest, before = checkpoints_of(checkpoints)
    shutil.rmtree(checkpoints / "starts")

    folder = runs.complete("stopped", 1)

    assert resumed_at(folder) == []
    assert resumption(folder).lost_steps == newest.manifest.step
    assert resumption(folder).problems == [
        f"not used: {each.folder} has no times of the {each.manifest.step} steps of rank 0: their records "
        f"in {checkpoints / 'starts'} are missing or damaged. Move, copy or restore {checkpoints} only as a "
        "whole."
        for each in (newest, before)
    ]
    assert ended(folder) == ended(undisturbed_run(1))


@pytest.mark.fault(20)
def test_what_cannot_be_read_for_a_while_costs_no_checkpoint(
    runs: Runs, stopped: Path, undisturbed_run: Calm, record_property: Record
) -> None:
    begun = runs.begun(stopped)
    newest, before = checkpoints_of(begun / "checkpoints")
    # of no use either, and no reason to forget what was trained
    (begun / HISTORY).write_text("{", encoding="utf-8")
    (times_of_steps,) = (begun / "checkpoints" / "starts" / "1").glob("0.*record.json")
    for path in (newest.folder / "shared.pt", times_of_steps):
        aside = path.rename(begun / "aside")
        path.symlink_to(path.name)
        code, stderr = runs.start("stopped", 1).end()
        assert code == 1
        assert f"{path} cannot be read: Too many levels of symbolic links" in stderr
        assert "nothing was deleted and nothing trained" in stderr
        path.unlink()
        aside.rename(path)
        assert checkpoints_of(begun / "checkpoints") == [newest, before]

    folder = runs.complete("stopped", 1)
    assert resumed_at(folder) == [newest.manifest.step]
    assert ended(folder) == ended(undisturbed_run(1))
    record_property("figure", "unreadable for a while: refused to start, nothing deleted, then resumed")


@pytest.mark.fault(20)
def test_a_checkpoint_whose_bytes_are_right_is_kept_though_it_cannot_be_loaded(
    runs: Runs, stopped: Path, undisturbed_run: Calm
) -> None:
    """As where a node has no memory for it: the one before would not do better, and neither may go."""
    begun = runs.begun(stopped)
    newest, before = checkpoints_of(begun / "checkpoints")
    torch.save({"model": PurePath("no tensor")}, newest.folder / "shared.pt")
    content = (newest.folder / "shared.pt").read_bytes()
    summed = FileSum(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    files = newest.manifest.files | {"shared.pt": summed}
    write_json(newest.folder / MANIFEST, newest.manifest.model_copy(update={"files": files}).with_checksum())

    code, stderr = runs.start("stopped", 1).end()
    assert code == 1
    assert f"{newest.folder / 'shared.pt'} cannot be loaded as a checkpoint of tensors" in stderr
    assert "nothing was deleted and nothing trained" in stderr
    assert [each.folder for each in checkpoints_of(newest.folder.parent)] == [newest.folder, before.folder]

    # the cure that it names
    shutil.rmtree(newest.folder)
    folder = runs.complete("stopped", 1)
    assert resumed_at(folder) == [before.manifest.step]
    assert ended(folder) == ended(undisturbed_run(1))


def test_a_training_that_lost_its_folder_to_another_writes_no_checkpoint_there(runs: Runs) -> None:
    """As on a node that had stalled for so long that the run was begun elsewhere."""
    training = runs.start("taken", 1, pause_seconds=PAUSE_SECONDS)
    checkpoints = training.folder / "checkpoints"
    training.wait_until(lambda: any(checkpoints.glob("step-*")), "no checkpoint", 0.01)
    RankFiles(training.attempt, "another").begin(rank_setup())
    refused = r"checkpoint at step \d+ not written: the run's folder is another training's by now"
    training.wait_for_line(refused)
    kept = sorted(checkpoints.iterdir())
    training.wait_for_line(rf"{refused}(.|\n)*{refused}")
    training.process.kill()
    training.end()
    assert sorted(checkpoints.iterdir()) == kept
    assert [path.name for path in training.attempt.iterdir()] == ["rank_setup.json"]
    assert not (training.folder / SUMMARY).exists()


@pytest.mark.fault(6)
def test_a_training_that_diverges_on_one_rank_keeps_the_last_good_checkpoint(runs: Runs) -> None:
    training = runs.start("wild", 2, peril=Kill(90, "nan", rank=1), pause_seconds=PAUSE_SECONDS)
    code, stderr = training.end()
    assert code == 0, stderr
    summary = read_summary(training.folder)
    assert summary.outcome == "diverged"
    assert "the loss is no longer finite" in summary.reason
    kept = checkpoints_of(training.folder / "checkpoints")
    assert kept
    for checkpoint in kept:
        assert checkpoint.manifest.step < 90
        shared = load(checkpoint.check("shared.pt"), torch.device("cpu"))
        assert all(bool(tensor.isfinite().all()) for tensor in shared["model"].values())


@pytest.mark.parametrize("other", ["settings", "dataset"])
def test_a_run_of_something_else_begins_at_the_beginning(
    runs: Runs, stopped: Path, tmp_path: Path, other: str
) -> None:
    begun = runs.begun(stopped)
    assert checkpoints_of(begun / "checkpoints")
    changed, dataset = {"learning_rate": 0.04}, None
    if other == "dataset":
        dataset = tmp_path / "prepared.safetensors"
        prepare_some_digits(dataset, samples=1437, test_samples=300)
        changed = {}
    again = runs.start("stopped", 1, changed, dataset=dataset)
    code, stderr = again.end()
    assert code == 0, stderr
    assert again.folder == begun
    assert resumed_at(again.folder) == []
    found = resumption(again.folder)
    assert (found.starts, found.resumed_at_steps, found.lost_steps) == (1, [], 0)
    assert len(ended(again.folder).epochs) == SETTINGS["epochs"]


# --- no room ------------------------------------------------------------------------------------------


@pytest.mark.fault(19)
@needs_small_disk
def test_a_folder_that_cannot_hold_its_checkpoints_is_told_before_the_first_step(runs: Runs) -> None:
    place = runs.folder / "small" / "d1.r1" / "checkpoints"
    training = runs.start("small", 1, within=(place, "5m"))
    code, stderr = training.end()
    assert code == 1
    expected = rf"no room for checkpoints: {re.escape(str(place))}: No space left on device "
    expected += r"\([\d,]+ bytes needed, [\d,]+ free\)\. Free space there"
    assert re.search(expected, stderr), stderr
    failure = read_failure(training.folder)
    assert failure is not None
    assert re.search(expected, failure.reason)
    assert "epoch 1/" not in (training.folder / "train.log").read_text(encoding="utf-8")
    assert not (training.folder / EPOCHS).exists()


@pytest.mark.fault(19)
@pytest.mark.starts_ranks
def test_a_limit_on_the_size_of_files_is_told_before_the_first_step(runs: Runs) -> None:
    limit = ("sh", "-c", 'ulimit -f 2000 && exec "$@"', "sh")
    training = runs.start("limited", 1, first=limit)
    code, stderr = training.end()
    assert code == 1
    assert re.search(r"no room for checkpoints: .*File too large .*raise `ulimit -f`", stderr), stderr


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 20)) == 1 << 20:
            pass
        while filler.write(bytes(4096)):
            pass


@pytest.mark.fault(19)
@needs_small_disk
def test_a_disk_that_fills_costs_the_checkpoint_that_is_written_and_no_training(
    runs: Runs, undisturbed_run: Calm, record_property: Record
) -> None:
    place = runs.folder / "filled" / "d1.r1" / "checkpoints"
    training = runs.start("filled", 1, within=(place, "40m"), pause_seconds=PAUSE_SECONDS)
    # the mount is of the namespace that a rank lives in, too
    inside = seen_by(training.pid(0), place)
    training.wait_until(lambda: any(inside.glob("step-*")), "no checkpoint", 0.01)
    fill(inside / "filler")
    line = training.wait_for_line(r"checkpoint at step \d+ not written: .*")
    assert re.search(r"No space left on device \([\d,]+ bytes needed, [\d,]+ free\)\. Free space there", line)
    assert str(place) in line
    assert checkpoints_of(inside)
    # once a second it tries again
    training.wait_until(lambda: not any(inside.glob(".step-*")), "a part of a checkpoint is left", 0.01)
    code, stderr = training.end()
    assert code == 0, stderr
    assert ended(training.folder) == ended(undisturbed_run(1))
    found = resumption(training.folder)
    assert any("No space left on device" in problem for problem in found.problems)
    assert found.starts == 1
    record_property("figure", "disk full: old checkpoint whole, training completed")


@pytest.mark.fault(19)
@needs_small_disk
def test_a_run_whose_whole_folder_is_full_for_a_while_trains_on(
    runs: Runs, undisturbed_run: Calm, record_property: Record
) -> None:
    """Neither its words on its progress nor its log may end it."""
    place = runs.folder / "crammed" / "d1.r1"
    training = runs.start("crammed", 1, within=(place, "40m"), peril=Kill(120, "stop"), pause_seconds=0.1)
    training.wait_until(
        lambda: any(seen_by(training.process.pid, place).glob("checkpoints/step-*")), "no checkpoint", 0.01
    )
    # what is open stays, also once the namespace of the mount has gone
    opened = os.open(seen_by(training.process.pid, place), os.O_PATH)
    try:
        inside = Path(f"/proc/self/fd/{opened}")
        fill(inside / "filler")
        training.wait_until(runs.mark(place).exists, "no batch 120")
        (inside / "filler").unlink()
        code, stderr = training.end()
        assert code == 0, stderr
        assert ended(inside) == ended(undisturbed_run(1))
        found = resumption(inside)
    finally:
        os.close(opened)
    assert found.starts == 1
    assert any("No space left on device" in problem for problem in found.problems)
    record_property("figure", "the whole run folder full from about step 10 to 120: training completed")
