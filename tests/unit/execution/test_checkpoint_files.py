"""Checkpoints of a run: whole or refused with path, bytes and reason; which is read, which is kept."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scalewise.builtin.checkpoints.storage import check_space, load, save
from scalewise.execution.checkpoint_files import (
    MANIFEST,
    VERSION,
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    FileSum,
)
from tests.data_files import Trap
from tests.machine import largest_file
from tests.reliability.thoroughness import times
from tests.small_runs import definition
from tests.waiting import wait_until

from scalewise.execution.os_errors import describe_write_error

NAMES = ("shared.pt", "rank0.pt")


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", definition(learning_rate=0.1), {"dataset": "1" * 64})


def content(step: int, name: str) -> bytes:
    return f"{name} at step {step}. ".encode() * 50


def write(checkpoints: CheckpointFolder, step: int) -> Checkpoint:
    part = checkpoints.begin(step)
    sums = {}
    for name in NAMES:
        data = content(step, name)
        (part / name).write_bytes(data)
        sums[name] = FileSum(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return checkpoints.commit(part, step, step / 10, sums)


def steps(checkpoints: CheckpointFolder) -> list[int]:
    return [checkpoint.manifest.step for checkpoint in checkpoints.valid([])]


def checked(checkpoints: CheckpointFolder, refused: list[str]) -> int | None:
    """The step of the newest checkpoint whose files are all as they were written."""
    for checkpoint in checkpoints.valid(refused):
        try:
            for name in NAMES:
                checkpoint.check(name)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            return checkpoint.manifest.step
    return None


def test_the_newest_comes_first_and_the_one_before_is_kept(checkpoints: CheckpointFolder) -> None:
    # 1000 is after 999 although its name would not be without its zeros
    for step in (9, 99, 999, 1000):
        write(checkpoints, step)
    assert steps(checkpoints) == [1000, 999]
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-000000999", "step-000001000"]


# --- damage -------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def answer_in_html(path: Path) -> None:
    page = b"<!DOCTYPE html><html><body>503 Service Unavailable</body></html>"
    # as long as the file was, so that no size gives it away
    path.write_bytes(page.ljust(path.stat().st_size))


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_the_older_one_there(path: Path) -> None:
    shutil.copy(path.parent.with_name("step-000000010") / path.name, path)


def change_a_number(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"20", b"21"))


DAMAGES = [flip, truncate, empty, answer_in_html, Path.unlink, make_a_folder]
DAMAGES += [put_the_older_one_there, change_a_number]


@pytest.mark.fault(20)
@pytest.mark.parametrize("name", [*NAMES, MANIFEST])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(
    checkpoints: CheckpointFolder, damage: Callable[[Path], None], name: str
) -> None:
    for step in (10, 20):
        write(checkpoints, step)
    damaged = checkpoints.folder / "step-000000020" / name
    size = damaged.stat().st_size
    damage(damaged)
    refused: list[str] = []
    assert checked(checkpoints, refused) == 10
    assert len(refused) == 1
    # the files of a manifest of another checkpoint are not those that it names
    assert str(damaged.parent if damage is put_the_older_one_there else damaged) in refused[0]
    if damage is truncate and name != MANIFEST:
        assert f"{size // 2} bytes, not the {size} " in refused[0]


@pytest.mark.fault(20)
@pytest.mark.parametrize("name", [*NAMES, MANIFEST])
def test_what_cannot_be_read_now_is_not_taken_for_damaged(checkpoints: CheckpointFolder, name: str) -> None:
    """A file system that is away for a while gives errors for files that are whole."""
    for step in (10, 20):
        write(checkpoints, step)
    path = checkpoints.folder / "step-000000020" / name
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        checked(checkpoints, [])
    assert len(list(checkpoints.folder.glob("step-*"))) == 2


def test_a_deletion_that_is_cut_off_leaves_nothing_that_looks_like_a_checkpoint(
    checkpoints: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(checkpoints, 10)
    chosen = write(checkpoints, 20)
    monkeypatch.setattr(shutil, "rmtree", lambda *_arguments, **_options: None)
    checkpoints.delete_newer_than(None)
    refused: list[str] = []
    assert list(checkpoints.valid(refused)) == []
    assert refused == []
    assert chosen.folder.with_name(f".gone-{chosen.folder.name}").exists()
    monkeypatch.undo()
    write(checkpoints, 30)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000000030"]


def test_a_file_that_no_manifest_names_is_never_read(checkpoints: CheckpointFolder) -> None:
    written = write(checkpoints, 10)
    (written.folder / "rank1.pt").write_bytes(b"unrelated")
    with pytest.raises(CheckpointError, match=r"rank1\.pt is not in .*manifest\.json"):
        written.check("rank1.pt")


# --- of another run -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "inputs", "said"),
    [
        ({"learning_rate": 0.2}, {"dataset": "1" * 64}, ("settings", "learning_rate", "0.1", "0.2")),
        ({}, {"dataset": "2" * 64}, ("dataset",)),
        ({}, {"dataset": "1" * 64, "weights": "3" * 64}, ("weights",)),
        ({}, {}, ("dataset",)),
    ],
    ids=["settings", "dataset", "weights", "without"],
)
def test_a_run_resumes_only_from_its_own_checkpoints(
    checkpoints: CheckpointFolder, changed: dict[str, Any], inputs: dict[str, str], said: tuple[str, ...]
) -> None:
    write(checkpoints, 10)
    other = CheckpointFolder(checkpoints.folder, definition(**{"learning_rate": 0.1} | changed), inputs)
    refused: list[str] = []
    assert list(other.valid(refused)) == []
    assert len(refused) == 1
    assert all(word in refused[0] for word in (*said, str(checkpoints.folder / "step-000000010")))
    assert steps(checkpoints) == [10]


def test_a_checkpoint_of_another_version_is_refused_with_both(checkpoints: CheckpointFolder) -> None:
    path = write(checkpoints, 10).folder / MANIFEST
    manifest = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(manifest | {"version": VERSION + 1}), encoding="utf-8")
    refused: list[str] = []
    assert list(checkpoints.valid(refused)) == []
    assert f"version {VERSION + 1}, not {VERSION}" in refused[0]


def test_a_new_run_keeps_its_own_checkpoint_where_another_run_left_later_steps(
    checkpoints: CheckpointFolder,
) -> None:
    for step in (900, 1000):
        write(checkpoints, step)
    other = CheckpointFolder(checkpoints.folder, definition(learning_rate=0.2), checkpoints.inputs)
    write(other, 10)
    assert steps(other) == [10]


@pytest.mark.fault(20)
def test_damaged_checkpoints_take_no_place_of_good_ones(checkpoints: CheckpointFolder) -> None:
    """Two are kept so that one may be damaged: a training that went back leaves two good ones again."""
    for step in (10, 20):
        write(checkpoints, step)
    empty(checkpoints.folder / "step-000000020" / MANIFEST)
    for step in (11, 12):
        write(checkpoints, step)
    assert steps(checkpoints) == [12, 11]


# --- half-written -------------------------------------------------------------------------------------


def test_a_checkpoint_counts_once_it_is_whole_and_not_before(checkpoints: CheckpointFolder) -> None:
    write(checkpoints, 10)
    part = checkpoints.begin(20)
    for name in NAMES:
        (part / name).write_bytes(content(20, name))
    assert steps(checkpoints) == [10]
    checkpoints.abandon(part)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000000010"]


def test_what_a_killed_writer_left_goes_with_the_next_checkpoint(checkpoints: CheckpointFolder) -> None:
    left = checkpoints.begin(10)
    (left / "rank0.pt").write_bytes(b"half")
    write(checkpoints, 20)
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000000020"]


def test_a_step_that_was_refused_can_be_written_again(checkpoints: CheckpointFolder) -> None:
    for step in (10, 20):
        write(checkpoints, step)
    empty(checkpoints.folder / "step-000000020" / "shared.pt")
    write(checkpoints, 20)
    assert checked(checkpoints, []) == 20
    assert steps(checkpoints) == [20, 10]


def test_a_failed_write_leaves_the_ones_before_whole(checkpoints: CheckpointFolder) -> None:
    for step in (10, 20):
        write(checkpoints, step)
    part = checkpoints.begin(30)
    # the part is gone, as after a disk that failed: the manifest cannot be written into it
    shutil.rmtree(part)
    with pytest.raises(OSError, match="No such file"):
        checkpoints.commit(part, 30, 3.0, {})
    assert steps(checkpoints) == [20, 10]


STATE = {"weights": torch.arange(100_000.0), "step": 3, "names": ["a", "b"]}
CPU = torch.device("cpu")


@pytest.mark.refuses("security: pickle for a checkpoint")
def test_a_pickle_in_place_of_a_checkpoint_runs_nothing(tmp_path: Path) -> None:
    trap = {"weights": Trap(tmp_path / "ran")}
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(trap, protocol=2))
    torch.save(trap, tmp_path / "zip.pt")
    for name in ("bare.pt", "zip.pt"):
        with pytest.raises(
            CheckpointError, match=rf"{name} cannot be loaded as a checkpoint of tensors: \w+"
        ):
            load(tmp_path / name, CPU)
    assert not (tmp_path / "ran").exists()


@pytest.mark.fault(19)
@pytest.mark.parametrize("short", [1, 395_000])
def test_a_file_that_may_not_grow_to_its_size_is_an_error_and_leaves_no_part(
    tmp_path: Path, short: int
) -> None:
    """Whichever write the limit falls into: the system takes a part of that one and says nothing."""
    path = tmp_path / "rank0.pt"
    needed = save(path, STATE).bytes
    with (
        largest_file(needed - short),
        pytest.raises(CheckpointError, match=re.escape(f"{path}: File too large ({needed:,} bytes needed")),
    ):
        save(path, STATE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault(19)
def test_a_limit_on_files_is_reported_before_the_first_step(tmp_path: Path) -> None:
    with (
        largest_file(399_999),
        pytest.raises(CheckpointError, match=r"File too large \(900,000 bytes needed.*raise `ulimit -f`"),
    ):
        check_space(tmp_path / "new", 400_000, 900_000)
    check_space(tmp_path / "new", 400_000, 900_000)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.fault(19)
def test_a_spent_quota_is_called_so(tmp_path: Path) -> None:
    """No quota can be set on most machines: this holds the words alone."""
    message = describe_write_error(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path / "rank0.pt", 1234)
    assert message.startswith(f"{tmp_path / 'rank0.pt'}: Disk quota exceeded (1,234 bytes needed, ")
    assert "Your quota there is spent" in message


# --- a kill at any moment -----------------------------------------------------------------------------


def state_at(step: int) -> dict[str, Any]:
    """State of which no two are alike, and which takes a while to write."""
    weights = torch.rand(1_700_000, generator=torch.Generator().manual_seed(step))
    return {"step": step, "weights": weights}


def write_from(checkpoints: CheckpointFolder, step: int) -> None:
    """Write checkpoints one after the other until killed."""
    torch.set_num_threads(1)
    while True:
        part = checkpoints.begin(step)
        sums = {name: save(part / name, state_at(step)) for name in NAMES}
        checkpoints.commit(part, step, 0.0, sums)
        step += 1


def parts_of(checkpoints: CheckpointFolder) -> set[tuple[str, int]]:
    """The files of checkpoints without a name yet, each with its time of change."""
    found = set()
    # a folder may get its name meanwhile
    with suppress(FileNotFoundError):
        for path in checkpoints.folder.glob(".step-*/*"):
            found.add((str(path), path.stat().st_ctime_ns))
    return found


@pytest.mark.fault(18)
@pytest.mark.slow
@pytest.mark.timeout(times(quick=1200, thorough=2400))
def test_a_kill_at_any_moment_of_a_checkpoint_costs_only_that_one(
    checkpoints: CheckpointFolder, record_property: Callable[[str, object], None]
) -> None:
    moments = random.Random(18)
    kills, half_written, step = times(quick=6, thorough=50), 0, 0
    for kill in range(kills):
        left = parts_of(checkpoints)
        writer = multiprocessing.get_context("fork").Process(target=write_from, args=(checkpoints, step + 1))
        writer.start()
        if not step:
            # without a first one there is nothing to go on from
            wait_until(lambda: steps(checkpoints), "no first checkpoint")
        if kill % 2:
            begun = partial(lambda left: parts_of(checkpoints) - left, left)
            wait_until(begun, "no checkpoint begins", longest_pause_seconds=0.001)
        else:
            time.sleep(moments.uniform(0.0, 0.4))
        writer.kill()
        writer.join()

        named = sorted(int(path.name.removeprefix("step-")) for path in checkpoints.folder.glob("step-*"))
        # each that has its name is whole
        assert checked(checkpoints, []) == named[-1] >= step
        step = named[-1]
        newest = next(checkpoints.valid([]))
        for name in NAMES:
            assert load(newest.check(name), CPU)["weights"].equal(state_at(step)["weights"])
        half_written += any(checkpoints.folder.glob(".step-*"))
        assert {path.name.partition("-")[0] for path in checkpoints.folder.iterdir()} <= {
            ".gone",
            ".step",
            "step",
        }
    # kills between two checkpoints would show nothing
    assert half_written
    record_property(
        "figure", f"{kills} of {kills} resumed, {half_written} with a half-written one next to it"
    )
