"""A checkpoint is written whole, or an error says which path took how many of how many bytes, and why."""

from __future__ import annotations

import errno
import pickle
import re
from pathlib import Path

import pytest
import torch
from tests.data_files import Trap
from tests.small_disk import largest_file

from scalewise.builtin.checkpoints.storage import check_space, load, save
from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.execution.os_errors import describe_write_error

STATE = {"weights": torch.arange(100_000.0), "step": 3, "names": ["a", "b"]}
CPU = torch.device("cpu")
SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"


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
