"""Trainings whose checkpoints are cut off, damaged, of something else, or find no room."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from tests.cores import needs_two_cores
from tests.distributed.checkpoint_writer import FILES, checkpoints_in, state_at
from tests.distributed.runs import (
    ENDLESS,
    PAUSE_SECONDS,
    PERILOUS,
    Finished,
    Kill,
    Runs,
    Started,
    prepare_digits,
)
from tests.reliability.thoroughness import times
from tests.small_disk import needs_small_disk, seen_by
from tests.small_runs import rank_setup
from tests.waiting import LIMIT_SECONDS, ended_output, wait_until

from scalewise.builtin.checkpoints.storage import load
from scalewise.execution.checkpoint_files import (
    MANIFEST,
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    FileSum,
    Manifest,
)
from scalewise.execution.rank_files import RankFiles
from scalewise.records import EPOCHS, HISTORY, SUMMARY, write_json

pytestmark = [
    needs_two_cores,
    pytest.mark.timeout(times(quick=1800, thorough=2400)),
]

Record = Callable[[str, object], None]
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


def killed_while_writing(perilous: Runs, name: str, devices: int) -> bool:
    """Start a run, and kill all its ranks as soon as a checkpoint is half written; whether one was."""
    training = perilous.start(name, devices, HEAVY, pause_seconds=PAUSE_SECONDS, checkpoint_seconds=0.05)
    parts = training.folder / "checkpoints"
    # what an earlier start has left is cleared away with the first that this one writes
    left = begun_in(parts)
    wait_until(
        lambda: has_begun(parts, left) or training.process.poll() is not None,
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


def begun_in(folder: Path) -> set[tuple[str, int, int]]:
    """The files of checkpoints without a name yet, each with its inode and time of change."""
    found = set()
    for path in folder.glob(".step-*/*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            found.add((str(path), status.st_ino, status.st_ctime_ns))
    return found


def has_begun(folder: Path, left: set[tuple[str, int, int]]) -> bool:
    """Whether a checkpoint is being written; what killed writers have left stays as it is."""
    return bool(begun_in(folder) - left)


@pytest.mark.fault(18)
def test_a_training_goes_on_from_the_checkpoint_before_the_one_it_died_in(
    perilous: Runs, record_property: Record
) -> None:
    undisturbed = perilous.complete("calm", 2, HEAVY)
    # the first checkpoint of all has none before it
    training = perilous.start("cut", 2, HEAVY, peril=Kill(45, "stop"), pause_seconds=0.1)
    training.wait_until(training.mark.exists, "no batch 45", 0.01)
    training.process.send_signal(signal.SIGTERM)
    training.end()
    wanted, kills, half_written = times(quick=1, thorough=6), 0, 0
    # some come too late
    while half_written < wanted and kills < wanted + 9:
        half_written += killed_while_writing(perilous, "cut", 2)
        kills += 1
    assert half_written, f"each of {kills} kills came after the checkpoint"
    run = perilous.complete("cut", 2, HEAVY)
    assert len(run.resumed_at) == kills + 1
    assert run.resumption.problems == []
    assert run.learned == undisturbed.learned
    record_property("figure", f"whole trainings: {kills} of {kills} resumed, weights and records identical")


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.fault(20)
def test_a_damaged_checkpoint_is_told_and_the_training_goes_on_from_the_one_before(
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
    assert run.resumption.problems == [
        f"not used: {each.folder} has no times of the {each.manifest.step} steps of rank 0: their records "
        f"in {checkpoints / 'starts'} are missing or damaged. Move, copy or restore {checkpoints} only as a "
        "whole."
        for each in (newest, before)
    ]
    assert run.learned == undisturbed_run(1).learned


@pytest.mark.fault(20)
def test_what_cannot_be_read_for_a_while_costs_no_checkpoint(
    perilous: Runs, stopped: Path, undisturbed_run: Calm, record_property: Record
) -> None:
    begun = perilous.begun(stopped)
    newest, before = checkpoints_of(begun / "checkpoints")
    # of no use either, and no reason to forget what was trained
    (begun / HISTORY).write_text("{", encoding="utf-8")
    (times_of_steps,) = (begun / "checkpoints" / "starts" / "1").glob("0.*record.json")
    for path in (newest.folder / "shared.pt", times_of_steps):
        aside = path.rename(begun / "aside")
        path.symlink_to(path.name)
        code, stderr = perilous.start("stopped", 1).end()
        assert code == 1
        assert f"{path} cannot be read: Too many levels of symbolic links" in stderr
        assert "nothing was deleted and nothing trained" in stderr
        path.unlink()
        aside.rename(path)
        assert checkpoints_of(begun / "checkpoints") == [newest, before]

    run = perilous.complete("stopped", 1)
    assert run.resumed_at == [newest.manifest.step]
    assert run.learned == undisturbed_run(1).learned
    record_property("figure", "unreadable for a while: refused to start, nothing deleted, then resumed")


@pytest.mark.fault(20)
def test_a_checkpoint_whose_bytes_are_right_is_kept_though_it_cannot_be_loaded(
    perilous: Runs, stopped: Path, undisturbed_run: Calm
) -> None:
    """As where a node has no memory for it: the one before would not do better, and neither may go."""
    begun = perilous.begun(stopped)
    newest, before = checkpoints_of(begun / "checkpoints")
    torch.save({"model": PurePath("no tensor")}, newest.folder / "shared.pt")
    content = (newest.folder / "shared.pt").read_bytes()
    summed = FileSum(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    files = newest.manifest.files | {"shared.pt": summed}
    write_json(newest.folder / MANIFEST, newest.manifest.model_copy(update={"files": files}).with_checksum())

    code, stderr = perilous.start("stopped", 1).end()
    assert code == 1
    assert f"{newest.folder / 'shared.pt'} cannot be loaded as a checkpoint of tensors" in stderr
    assert "nothing was deleted and nothing trained" in stderr
    assert [each.folder for each in checkpoints_of(newest.folder.parent)] == [newest.folder, before.folder]

    # the cure that it names
    shutil.rmtree(newest.folder)
    run = perilous.complete("stopped", 1)
    assert run.resumed_at == [before.manifest.step]
    assert run.learned == undisturbed_run(1).learned


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
def test_a_training_that_diverges_on_one_rank_keeps_the_last_good_checkpoint(perilous: Runs) -> None:
    training = perilous.start("wild", 2, peril=Kill(90, "nan", rank=1), pause_seconds=PAUSE_SECONDS)
    summary = training.finish().summary
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
    perilous: Runs, stopped: Path, tmp_path: Path, other: str
) -> None:
    begun = perilous.begun(stopped)
    assert checkpoints_of(begun / "checkpoints")
    changed, dataset = {"learning_rate": 0.04}, None
    if other == "dataset":
        dataset = tmp_path / "prepared.safetensors"
        images = load_digits().images
        prepare_digits(dataset, images[:1437], images[1437:1737])
        changed = {}
    again = perilous.complete("stopped", 1, changed, dataset=dataset)
    assert again.folder == begun
    assert again.resumed_at == []
    found = again.resumption
    assert (found.starts, found.resumed_at_steps, found.lost_steps) == (1, [], 0)
    assert len(again.epochs) == PERILOUS["epochs"]


# --- no room ------------------------------------------------------------------------------------------


@pytest.mark.fault(19)
@needs_small_disk
def test_a_folder_that_cannot_hold_its_checkpoints_is_told_before_the_first_step(perilous: Runs) -> None:
    place = perilous.folder / "small" / "d1.r1" / "checkpoints"
    training = perilous.start("small", 1, within=(place, "5m"))
    failure, stderr = training.fail()
    expected = rf"no room for checkpoints: {re.escape(str(place))}: No space left on device "
    expected += r"\([\d,]+ bytes needed, [\d,]+ free\)\. Free space there"
    assert re.search(expected, stderr), stderr
    assert re.search(expected, failure.reason)
    assert "epoch 1/" not in (training.folder / "train.log").read_text(encoding="utf-8")
    assert not (training.folder / EPOCHS).exists()


@pytest.mark.fault(19)
def test_a_limit_on_the_size_of_files_is_told_before_the_first_step(perilous: Runs) -> None:
    limit = ("sh", "-c", 'ulimit -f 2000 && exec "$@"', "sh")
    _, stderr = perilous.start("limited", 1, first=limit).fail()
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
    perilous: Runs, undisturbed_run: Calm, record_property: Record
) -> None:
    place = perilous.folder / "filled" / "d1.r1" / "checkpoints"
    training = perilous.start("filled", 1, within=(place, "40m"), pause_seconds=PAUSE_SECONDS)
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
    run = training.finish()
    assert run.learned == undisturbed_run(1).learned
    found = run.resumption
    assert any("No space left on device" in problem for problem in found.problems)
    assert found.starts == 1
    record_property("figure", "disk full: old checkpoint whole, training completed")


@pytest.mark.fault(19)
@needs_small_disk
def test_a_run_whose_whole_folder_is_full_for_a_while_trains_on(
    perilous: Runs, undisturbed_run: Calm, record_property: Record
) -> None:
    """Neither its words on its progress nor its log may end it."""
    place = perilous.folder / "crammed" / "d1.r1"
    training = perilous.start("crammed", 1, within=(place, "40m"), peril=Kill(80, "stop"), pause_seconds=0.1)
    training.wait_until(
        lambda: any(seen_by(training.process.pid, place).glob("checkpoints/step-*")), "no checkpoint", 0.01
    )
    # what is open stays, also once the namespace of the mount has gone
    opened = os.open(seen_by(training.process.pid, place), os.O_PATH)
    try:
        inside = Path(f"/proc/self/fd/{opened}")
        fill(inside / "filler")
        training.wait_until(training.mark.exists, "no batch 80")
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


# --- a run whose folder cannot be written ends with a sentence that says so; the other runs keep theirs ---


@dataclass
class Neighbours:
    """A run that has ended well, and another beside it whose folder is a hindrance."""

    runs: Runs
    good: Path
    folder: Path

    def __post_init__(self) -> None:
        self._before = self._content()
        self.folder.mkdir(parents=True)

    def start(self, **given: Any) -> Started:
        changed = {"devices": [1]} | given.pop("changed", {})
        return self.runs.start("hindered", 1, changed, timeout_seconds=30, **given)

    def fail(self, hindered: Started) -> list[str]:
        """The lines that it ends with."""
        code, stderr = hindered.end()
        assert code == 1, stderr
        assert self._content() == self._before
        return stderr.splitlines()

    def _content(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.good.iterdir()}


@pytest.fixture
def neighbours(undisturbed_run: Calm, runs: Runs) -> Neighbours:
    good = shutil.copytree(undisturbed_run(1).folder, runs.folder / "good" / "d1.r1")
    return Neighbours(runs, good, runs.folder / "hindered" / "d1.r1")


@pytest.mark.fault(29)
@needs_small_disk
def test_a_folder_that_cannot_be_written_is_named_with_the_cure_in_one_sentence(
    neighbours: Neighbours, record_property: Record
) -> None:
    place = shlex.quote(str(neighbours.folder))
    script = f'mount --bind {place} {place} && mount -o remount,ro,bind {place} && exec "$@"'
    namespace = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    (line,) = neighbours.fail(neighbours.start(first=namespace))
    assert line.startswith(f"scalewise: hindered/d1.r1 failed: {neighbours.folder}/")
    assert "Read-only file system" in line
    assert "Make it writable, or use another folder. Then give the same command again" in line
    record_property("figure", "one line, with path and cure; other runs to the byte as before")


@pytest.mark.fault(29, 19)
@needs_small_disk
def test_a_folder_without_room_is_named_with_the_bytes_that_are_left(neighbours: Neighbours) -> None:
    (line,) = neighbours.fail(neighbours.start(within=(neighbours.folder, "4k")))
    assert line.startswith(f"scalewise: hindered/d1.r1 failed: {neighbours.folder}")
    assert re.search(
        r"No space left on device \([\d,]+ bytes free\)\. Free space there; .*\. Then give the same", line
    )


@pytest.mark.fault(29)
@needs_small_disk
def test_a_folder_that_is_full_at_the_end_of_a_training_is_named_with_the_rank_that_could_not_write(
    neighbours: Neighbours,
) -> None:
    hindered = neighbours.start(changed=ENDLESS | {"epochs": 60}, within=(neighbours.folder, "60m"))
    folder = seen_by(hindered.process.pid, neighbours.folder)
    hindered.wait_until((folder / "attempt" / "progress.json").exists, "no progress")
    fill(folder / "filling")
    first = neighbours.fail(hindered)[0]
    assert first.startswith("scalewise: hindered/d1.r1 failed: ")
    assert f"{neighbours.folder} has 0 free bytes left: make room there." in first


ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).with_name("checkpoint_writer.py")


@dataclass
class Writer:
    """checkpoint_writer.py at work, and a file with all that it has printed."""

    process: subprocess.Popen[str]
    output: Path
    read: int = 0

    def begin(self, step: int) -> None:
        """Have it write from a step on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def line(self, missing: str) -> str:
        """The next line that it prints."""
        found = wait_until(self._lines, missing, ended=lambda: ended_output(self.process))[0]
        self.read += 1
        return found

    def _lines(self) -> list[str]:
        """Return the whole lines that were not read yet."""
        return self.output.read_text(encoding="utf-8").split("\n")[self.read : -1]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    output = tmp_path / "output.txt"
    with output.open("w", encoding="utf-8") as stdout:
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(tmp_path / "checkpoints")],
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'workflow' / 'scripts'}"},
            stdin=subprocess.PIPE,
            stdout=stdout,
            text=True,
        )
    yield Writer(process, output)
    process.communicate(timeout=LIMIT_SECONDS)


def newest_whole(folder: Path) -> Checkpoint:
    """What a training would go on from."""
    for checkpoint in checkpoints_in(folder).valid([]):
        with suppress(CheckpointError):
            for name in FILES:
                checkpoint.check(name)
            return checkpoint
    raise AssertionError(f"no whole checkpoint among {sorted(folder.iterdir())}")


@pytest.mark.fault(18)
@pytest.mark.timeout(times(quick=1200, thorough=2400))
def test_a_kill_at_any_moment_of_a_checkpoint_costs_that_one_alone(
    writer: Writer, tmp_path: Path, record_property: Record
) -> None:
    folder, moments = tmp_path / "checkpoints", random.Random(18)
    kills, half_written, step = times(quick=6, thorough=50), 0, 0
    for kill in range(kills):
        left = begun_in(folder)
        writer.begin(step + 1)
        _, pid = writer.line("no writer begins").split()
        if not step:
            # without a first one there is nothing to go on from
            step = int(writer.line("the first checkpoint is missing"))
        if kill % 2:
            # in the middle of a checkpoint
            begun = partial(has_begun, folder, left)
            wait_until(begun, "no checkpoint begins", longest_pause_seconds=0.001)
        else:
            time.sleep(moments.uniform(0.0, 0.4))
        os.kill(int(pid), signal.SIGKILL)
        written = list(iter(lambda: writer.line("the writer has not ended"), "gone"))
        step = max(step, *map(int, written)) if written else step

        found = newest_whole(folder)
        # one may have got its name before the writer could say so
        assert found.manifest.step in {step, step + 1}
        step = found.manifest.step
        for name in FILES:
            assert load(found.check(name), torch.device("cpu"))["weights"].equal(
                state_at(step, name)["weights"]
            )
        half_written += any(folder.glob(".step-*"))
        assert all(path.name.startswith((".gone-", ".step-", "step-")) for path in folder.iterdir())
    # kills between two checkpoints would show nothing
    assert half_written
    record_property("figure", f"{kills} of {kills} resumed, {half_written} with a half-written one beside it")
