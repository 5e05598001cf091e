"""Trainings whose checkpoints are cut off, damaged, of something else, or find no room."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePath

import pytest
import torch
from scalewise.builtin.checkpoints.storage import load
from scalewise.execution.checkpoint_files import MANIFEST, Checkpoint, CheckpointFolder, FileSum, Manifest
from tests.distributed.runs import ENDLESS, PAUSE_SECONDS, Finished, Kill, Runs
from tests.machine import needs_small_disk, needs_two_cores, seen_by
from tests.marked_outcomes import Record
from tests.reliability.thoroughness import times
from tests.small_runs import rank_setup
from tests.waiting import wait_until

from scalewise.execution.rank_files import RankFiles
from scalewise.records import EPOCHS, HISTORY, SUMMARY, read_failure, write_json

pytestmark = [
    needs_two_cores,
    pytest.mark.timeout(times(quick=1800, thorough=2400)),
]

Calm = Callable[[int], Finished]


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


def killed_while_writing(perilous: Runs, name: str) -> bool:
    """Start a run, and kill its rank as soon as a checkpoint is half written; whether one was."""
    training = perilous.start(name, 1, HEAVY, pause_seconds=PAUSE_SECONDS, checkpoint_seconds=0.05)
    parts = training.folder / "checkpoints"
    # what an earlier start has left is cleared away with the first that this one writes
    left = begun_in(parts)
    wait_until(
        lambda: begun_in(parts) - left or training.process.poll() is not None,
        f"{name} begins no checkpoint",
        longest_pause_seconds=0.002,
    )
    with suppress(ProcessLookupError):
        os.kill(training.pid(0), signal.SIGKILL)
    training.end()
    assert training.left_over() == {}
    return any(parts.glob(".step-*"))


def begun_in(folder: Path) -> set[tuple[str, int, int]]:
    """The files of checkpoints without a name yet, each with its inode and time of change."""
    found = set()
    # a folder may get its name meanwhile
    with suppress(FileNotFoundError):
        for path in folder.glob(".step-*/*"):
            status = path.stat()
            found.add((str(path), status.st_ino, status.st_ctime_ns))
    return found


@pytest.mark.fault(18)
def test_a_training_resumes_from_the_checkpoint_before_the_one_it_died_in(
    perilous: Runs, record_property: Record
) -> None:
    undisturbed = perilous.complete("calm", 1, HEAVY)
    # the first checkpoint of all has none before it
    training = perilous.start("cut", 1, HEAVY, peril=Kill(45, "stop"), pause_seconds=0.1)
    training.wait_until(training.mark.exists, "no batch 45", 0.01)
    training.process.send_signal(signal.SIGTERM)
    training.end()
    wanted, kills, half_written = times(quick=1, thorough=6), 0, 0
    # some come too late
    while half_written < wanted and kills < wanted + 9:
        half_written += killed_while_writing(perilous, "cut")
        kills += 1
    assert half_written, f"each of {kills} kills came after the checkpoint"
    run = perilous.complete("cut", 1, HEAVY)
    assert len(run.resumed_at) == kills + 1
    assert run.resumption.problems == []
    assert run.learned == undisturbed.learned
    record_property("figure", f"whole trainings: {kills} of {kills} resumed, weights and records identical")


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.fault(20)
def test_a_damaged_checkpoint_is_reported_and_the_training_resumes_from_the_one_before(
    perilous: Runs, stopped: Path, undisturbed_run: Calm
) -> None:
    begun = perilous.begun(stopped)
    newest, before = checkpoints_of(begun / "checkpoints")
    flip_a_byte(newest.folder / "shared.pt")

    run = perilous.complete("stopped", 1)

    assert run.resumed_at == [before.manifest.step]
    # train.py asks the manifests alone; the ranks find the damage
    assert run.resumption.lost_steps == newest.manifest.step - before.manifest.step
    (problem,) = run.resumption.problems
    assert problem.startswith(f"not used: {newest.folder / 'shared.pt'} has sha256 ")
    assert problem in "\n".join(run.log)
    assert run.learned == undisturbed_run(1).learned


@pytest.mark.fault(20)
def test_a_checkpoint_whose_times_are_missing_is_refused_with_their_folder(
    perilous: Runs, stopped: Path, undisturbed_run: Calm
) -> None:
    """Its run would have no throughput of the steps before it."""
    checkpoints = perilous.begun(stopped) / "checkpoints"
    newest, before = checkpoints_of(checkpoints)
    shutil.rmtree(checkpoints / "starts")

    run = perilous.complete("stopped", 1)

    assert run.resumed_at == []
    assert run.resumption.lost_steps == newest.manifest.step
    assert [text.partition(" of the ")[0] for text in run.resumption.problems] == [
        f"not used: {each.folder} has no times" for each in (newest, before)
    ]
    assert str(checkpoints / "starts") in run.resumption.problems[0]
    assert run.learned == undisturbed_run(1).learned


@pytest.mark.fault(20)
def test_what_cannot_be_read_or_loaded_now_costs_no_checkpoint(
    perilous: Runs, stopped: Path, undisturbed_run: Calm, record_property: Record
) -> None:
    begun = perilous.begun(stopped)
    newest, before = checkpoints_of(begun / "checkpoints")
    shared = newest.folder / "shared.pt"
    # of no use either, and no reason to forget what was trained
    (begun / HISTORY).write_text("{", encoding="utf-8")

    def refused(path: Path, problem: str) -> None:
        code, stderr = perilous.start("stopped", 1).end()
        assert code == 1
        assert f"{path} {problem}" in stderr
        assert "nothing was deleted and nothing trained" in stderr

    (times_of_steps,) = (begun / "checkpoints" / "starts" / "1").glob("0.*record.json")
    for path in (shared, times_of_steps):
        aside = path.rename(begun / "aside")
        path.symlink_to(path.name)
        refused(path, "cannot be read: Too many levels of symbolic links")
        path.unlink()
        aside.rename(path)
        assert checkpoints_of(begun / "checkpoints") == [newest, before]

    # its bytes are right, as where a node has no memory for it: the one before would not do better
    torch.save({"model": PurePath("no tensor")}, shared)
    content = shared.read_bytes()
    summed = FileSum(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    files = newest.manifest.files | {"shared.pt": summed}
    write_json(newest.folder / MANIFEST, newest.manifest.model_copy(update={"files": files}).with_checksum())
    refused(shared, "cannot be loaded as a checkpoint of tensors")
    assert [each.folder for each in checkpoints_of(newest.folder.parent)] == [newest.folder, before.folder]

    # the fix that it names
    shutil.rmtree(newest.folder)
    run = perilous.complete("stopped", 1)
    assert run.resumed_at == [before.manifest.step]
    assert run.learned == undisturbed_run(1).learned
    record_property("figure", "unreadable for a while: refused to start, nothing deleted, then resumed")


def test_a_training_that_lost_its_folder_to_another_writes_no_checkpoint_there(perilous: Runs) -> None:
    """As on a node that had stalled for so long that the run was begun elsewhere."""
    training = perilous.start("taken", 1, pause_seconds=PAUSE_SECONDS)
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
def test_a_training_that_diverges_on_one_rank_is_a_result_and_keeps_the_last_good_checkpoint(
    perilous: Runs, record_property: Record
) -> None:
    # the last of the fifteenth epoch's six steps
    run = perilous.start("wild", 2, peril=Kill(90, "nan", rank=1), pause_seconds=PAUSE_SECONDS).finish()
    assert run.summary.outcome == "diverged"
    assert "the loss is no longer finite in epoch 15 (training nan, " in run.summary.reason
    assert list(run.epochs["epoch"]) == list(range(1, 16))
    assert read_failure(run.folder) is None
    kept = checkpoints_of(run.folder / "checkpoints")
    assert kept
    for checkpoint in kept:
        assert checkpoint.manifest.step < 90
        shared = load(checkpoint.check("shared.pt"), torch.device("cpu"))
        assert all(bool(tensor.isfinite().all()) for tensor in shared["model"].values())
    record_property("figure", f"outcome {run.summary.outcome}, exit 0")


def test_a_run_of_other_settings_begins_at_the_beginning(perilous: Runs, stopped: Path) -> None:
    begun = perilous.begun(stopped)
    assert checkpoints_of(begun / "checkpoints")
    again = perilous.complete("stopped", 1, {"learning_rate": 0.04, "epochs": 2})
    assert again.folder == begun
    assert again.resumed_at == []
    found = again.resumption
    assert (found.starts, found.resumed_at_steps, found.lost_steps) == (1, [], 0)
    assert len(again.epochs) == 2


# --- no room ------------------------------------------------------------------------------------------


@pytest.mark.fault(19)
@needs_small_disk
def test_a_folder_that_cannot_hold_its_checkpoints_is_reported_before_the_first_step(perilous: Runs) -> None:
    place = perilous.folder / "small" / "d1.r1" / "checkpoints"
    training = perilous.start("small", 1, within=(place, "5m"))
    failure, stderr = training.fail()
    expected = rf"no room for checkpoints: {re.escape(str(place))}: No space left on device "
    expected += r"\([\d,]+ bytes needed, [\d,]+ free\)\. Free space there"
    assert re.search(expected, stderr), stderr
    assert re.search(expected, failure.reason)
    assert "epoch 1/" not in (training.folder / "train.log").read_text(encoding="utf-8")
    assert not (training.folder / EPOCHS).exists()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 20)) == 1 << 20:
            pass
        while filler.write(bytes(4096)):
            pass


@pytest.mark.fault(19)
@needs_small_disk
def test_a_run_whose_whole_folder_is_full_for_a_while_trains_on(
    perilous: Runs, undisturbed_run: Calm, record_property: Record
) -> None:
    """Neither its words on its progress nor its log may end it."""
    place = perilous.folder / "crammed" / "d1.r1"
    training = perilous.start("crammed", 1, within=(place, "40m"), peril=Kill(80, "stop"), pause_seconds=0.05)
    training.wait_until(
        lambda: any(seen_by(training.process.pid, place).glob("checkpoints/step-*")), "no checkpoint", 0.01
    )
    # what is open stays, also once the namespace of the mount has gone
    opened = os.open(seen_by(training.process.pid, place), os.O_PATH)
    try:
        inside = Path(f"/proc/self/fd/{opened}")
        fill(inside / "filler")
        training.wait_until(training.mark.exists, "no batch 80")
        assert checkpoints_of(inside / "checkpoints")
        (inside / "filler").unlink()
        code, stderr = training.end()
        assert code == 0, stderr
        run = Finished(inside)
        assert run.learned == undisturbed_run(1).learned
        found = run.resumption
    finally:
        os.close(opened)
    assert found.starts == 1
    assert any("No space left on device" in problem for problem in found.problems)
    record_property("figure", "the whole run folder full from about step 10 to 80: training completed")


# --- a run whose folder cannot be written ends with one sentence that says so ---------------------------

READ_ONLY = 'mount --bind {0} {0} && mount -o remount,ro,bind {0} && exec "$@"'


@pytest.mark.fault(29, 19)
@needs_small_disk
@pytest.mark.parametrize("problem", ["read-only", "full"])
def test_a_folder_that_cannot_be_written_is_named_with_the_fix_in_one_sentence(
    runs: Runs, problem: str, record_property: Record
) -> None:
    folder = runs.folder / "hindered" / "d1.r1"
    folder.mkdir(parents=True)
    script = READ_ONLY.format(shlex.quote(str(folder)))
    namespace = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    hindrance = {"first": namespace} if problem == "read-only" else {"within": (folder, "4k")}
    code, stderr = runs.start("hindered", 1, timeout_seconds=30, **hindrance).end()
    assert code == 1
    (line,) = stderr.splitlines()
    assert line.startswith(f"scalewise: hindered/d1.r1 failed: {folder}")
    said = {
        "read-only": r"Read-only file system.*Make it writable, or use another folder\.",
        "full": r"No space left on device \([\d,]+ bytes free\)\. Free space there; .*\.",
    }
    assert re.search(rf"{said[problem]} Then give the same", line)
    record_property("figure", "one line, with path and fix")


@pytest.mark.fault(29)
@needs_small_disk
def test_a_folder_that_is_full_at_the_end_of_a_training_is_named_with_the_rank_that_could_not_write(
    runs: Runs,
) -> None:
    place = runs.folder / "hindered" / "d1.r1"
    hindered = runs.start("hindered", 1, ENDLESS | {"epochs": 20}, within=(place, "60m"), timeout_seconds=30)
    folder = seen_by(hindered.process.pid, place)
    hindered.wait_until((folder / "attempt" / "progress.json").exists, "no progress")
    fill(folder / "filling")
    code, stderr = hindered.end()
    assert code == 1
    first = stderr.splitlines()[0]
    assert first.startswith("scalewise: hindered/d1.r1 failed: ")
    assert f"{place} has 0 free bytes left: make room there." in first
