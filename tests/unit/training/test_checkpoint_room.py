"""A checkpoint is written whole, or an error says which path took how many of how many bytes, and why."""

from __future__ import annotations

import errno
import json
import pickle
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.data_files import Trap
from tests.small_disk import needs_small_disk, on_small_disk

from scalewise.builtin.checkpoints.storage import check_space, load, save
from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.execution.os_errors import describe_write_error

STATE = {"weights": torch.arange(100_000.0), "step": 3, "names": ["a", "b"]}
CPU = torch.device("cpu")
SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond it, as with ``ulimit -f``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt"
    written = save(path, STATE)
    assert written.bytes == path.stat().st_size
    found = load(path, CPU)
    assert torch.equal(found.pop("weights"), torch.arange(100_000.0))
    assert found == {"step": 3, "names": ["a", "b"]}


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
@pytest.mark.parametrize("short", [1, 100, 10_000, 395_000])
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
def test_a_disk_that_is_full_is_an_error_and_leaves_no_part(tmp_path: Path) -> None:
    needed = save(tmp_path / "whole.pt", STATE).bytes
    path = tmp_path / "rank0.pt"
    path.symlink_to("/dev/full")
    with pytest.raises(CheckpointError) as caught:
        save(path, STATE)
    message = str(caught.value)
    assert message.startswith(f"{path}: No space left on device ({needed:,} bytes needed, ")
    assert re.search(r"[\d,]+ free\)\. Free space there", message)
    assert not path.is_symlink()


ON_A_SMALL_DISK = """
import errno, json, shutil, sys
from pathlib import Path
import torch
from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.builtin.checkpoints.storage import check_space, save

def said(action):
    try:
        action()
    except CheckpointError as error:
        return str(error)
    return "no error"

folder = Path(sys.argv[1])
state = {"weights": torch.arange(100_000.0)}
told = {"enough": said(lambda: check_space(folder, 400_000, 900_000))}
whole = folder / "whole.pt"
needed = save(whole, state).bytes
told["needed"] = needed
told["too small"] = said(lambda: check_space(folder, 400_000, 900_000))
told["left by checks"] = sorted(path.name for path in folder.iterdir())
silent = 0
for part in range(0, needed, 4096):
    # the free space, and so the write that does not fit, is another each time
    filler = folder / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(folder).free - part))
    message = said(lambda: save(folder / "rank0.pt", state))
    silent += message == "no error" and (folder / "rank0.pt").stat().st_size != needed
    told["full"] = message
    (folder / "rank0.pt").unlink(missing_ok=True)
    filler.unlink()
told["silent"] = silent
told["kept"] = whole.stat().st_size
told["left"] = sorted(path.name for path in folder.iterdir())
print(json.dumps(told))
"""


@needs_small_disk
@pytest.mark.fault(19)
@pytest.mark.slow
def test_a_small_disk_is_told_before_it_is_needed_and_when_it_is_full(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    command = [sys.executable, "-c", ON_A_SMALL_DISK, str(folder)]
    ended = subprocess.run(
        on_small_disk(folder, "1m", command),
        env={"PYTHONPATH": str(SCRIPTS), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["enough"] == "no error"
    expected = rf"{re.escape(str(folder))}: No space left on device \(900,000 bytes needed, [\d,]+ free\)"
    assert re.match(expected, told["too small"])
    expected = (
        rf"{re.escape(str(folder))}/rank0.pt: No space left on device \({told['needed']:,} bytes needed, "
        r"[\d,]+ free\)\. Free space there"
    )
    assert re.match(expected, told["full"])
    assert told["silent"] == 0
    # what was there before is whole, and nothing else is left
    assert told["kept"] == told["needed"]
    assert told["left by checks"] == told["left"] == ["whole.pt"]


@pytest.mark.fault(19)
def test_a_limit_on_files_is_told_before_the_first_step(tmp_path: Path) -> None:
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
