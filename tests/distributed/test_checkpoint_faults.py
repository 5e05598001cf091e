"""Trainings that are cut off while they write a checkpoint, diverge, or find no room."""

import os
import re
import shlex
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.distributed.runs import ENDLESS, Runs
from tests.machine import needs_small_disk, needs_two_cores, seen_by
from tests.marked_outcomes import Record
from tests.reliability.thoroughness import times
from tests.waiting import wait_until

from scalewise.records import read_failure

pytestmark = needs_two_cores

HEAVY = {"model": "planted_heavy", "epochs": 5, "save_model": True}


def killed_while_writing(runs: Runs) -> bool:
    """Start the run, and kill its rank as soon as a checkpoint is half written; whether one was."""
    training = runs.start("cut", 1, HEAVY)
    part = training.folder / "program" / "checkpoints" / ".part"
    # what an earlier start has left is cleared away with the first that this one writes
    left = part.stat().st_ino if part.exists() else None

    def begun() -> bool:
        with suppress(FileNotFoundError):
            return part.stat().st_ino != left
        return False

    wait_until(
        lambda: (training.saved and begun()) or training.process.poll() is not None,
        "no checkpoint is begun",
        longest_pause_seconds=0.002,
    )
    with suppress(ProcessLookupError):
        os.kill(training.pid(0), signal.SIGKILL)
    training.end()
    assert training.left_over() == {}
    return part.exists()


@pytest.mark.fault(18)
def test_a_training_resumes_from_the_checkpoint_before_the_one_it_died_in(
    runs: Runs, record_property: Record
) -> None:
    undisturbed = runs.complete("calm", 1, HEAVY)
    wanted, kills, half_written = times(quick=1, thorough=4), 0, 0
    # some come too late
    while half_written < wanted and kills < wanted + 4:
        half_written += killed_while_writing(runs)
        kills += 1
    assert half_written, f"each of {kills} kills came after the checkpoint"
    run = runs.complete("cut", 1, HEAVY)
    assert run.from_step
    assert run.learned == undisturbed.learned
    record_property("figure", f"{half_written} checkpoints cut off, weights and epochs identical")


@pytest.mark.fault(6)
def test_a_training_that_diverges_on_one_rank_is_a_result(runs: Runs, record_property: Record) -> None:
    changed = {"model": "planted_lost_on_rank_1", "epochs": 9, "save_model": True}
    run = runs.start("wild", 2, changed)
    finished = run.finish()
    assert finished.summary.outcome == "diverged"
    assert "the loss is no longer finite in epoch 3" in finished.summary.reason
    assert list(finished.epochs["epoch"]) == [1, 2, 3]
    assert read_failure(run.folder) is None
    record_property("figure", f"outcome {finished.summary.outcome}, exit 0")


# --- no room ------------------------------------------------------------------------------------------


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 20)) == 1 << 20:
            pass
        while filler.write(bytes(4096)):
            pass


@pytest.mark.fault(29, 19)
@needs_small_disk
def test_a_run_whose_disk_is_full_is_named_with_its_folder_and_the_room(
    runs: Runs, record_property: Record
) -> None:
    place = runs.folder / "crammed" / "d1.r1"
    training = runs.start("crammed", 1, ENDLESS, within=(place, "40m"), timeout_seconds=30)
    folder = seen_by(training.process.pid, place)
    training.wait_until(lambda: any((folder / "program").glob("checkpoints/epoch-*")), "no checkpoint")
    fill(folder / "filler")
    code, stderr = training.end()
    assert code == 1
    first = stderr.splitlines()[0]
    assert first.startswith("scalewise: crammed/d1.r1 failed: ")
    assert f"{place} has 0 free bytes left: make room there." in first
    record_property("figure", "the whole run folder full after a checkpoint: named with path and fix")


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
