"""Checkpoints that are whole are loaded; a damaged one is named and passed over, and never unpickled."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.data_files import Trap
from tests.machine import largest_file
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from scalewise.training.checkpoints import resume, save


@pytest.fixture(scope="module", autouse=True)
def single_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


class Small:
    """A training whose weights are the number of its epochs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.rows: list[dict[str, Any]] = []

    def train(self, epochs: int) -> None:
        for epoch in range(len(self.rows) + 1, epochs + 1):
            nn.init.constant_(self.network.weight, epoch)
            self.network(torch.ones(1, 4)).sum().backward()
            self.optimizer.step()
            nn.init.constant_(self.network.weight, epoch)
            self.rows.append({"epoch": epoch, "test_accuracy": epoch / 10})
            save(self.folder, self.network, self.optimizer, {}, self.rows)

    def resume(self) -> int:
        """Return the epoch whose weights are loaded; 0 for none."""
        self.rows = resume(self.folder, self.network, self.optimizer, {})
        assert [row["epoch"] for row in self.rows] == list(range(1, len(self.rows) + 1))
        if self.rows:
            assert self.network.weight.unique().tolist() == [len(self.rows)]
            assert self.optimizer.state
        return len(self.rows)


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "checkpoints"
    Small(folder).train(3)
    return folder


@pytest.fixture
def saved(three_epochs: Path, tmp_path: Path) -> Path:
    """The checkpoints of a training of three epochs."""
    return Path(shutil.copytree(three_epochs, tmp_path / "checkpoints"))


def test_the_last_two_are_kept_and_the_newest_is_loaded(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["epoch-000002", "epoch-000003"]
    assert Small(saved).resume() == 3


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped byte": flip,
    "cut off": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "a web page": lambda _: b"<!DOCTYPE html><title>504 Gateway Time-out</title>",
}
FILES = ("__0_0.distcp", ".metadata", "training.json")


@pytest.mark.fault(20)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(
    saved: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved / "epoch-000003" / name
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    training = Small(saved)
    assert training.resume() == 2
    said = capsys.readouterr().out
    assert f"not used: {saved / 'epoch-000003'} is damaged" in said
    assert name == "training.json" or name in said
    # and is replaced by the next of the same epoch
    training.train(3)
    assert Small(saved).resume() == 3


@pytest.mark.fault(20)
def test_a_checkpoint_with_a_missing_file_is_passed_over(saved: Path) -> None:
    for epoch, name in ((3, "__0_0.distcp"), (2, ".metadata")):
        (saved / f"epoch-{epoch:06d}" / name).unlink()
    assert Small(saved).resume() == 0


@pytest.mark.fault(20)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_now_costs_no_checkpoint(saved: Path, name: str) -> None:
    path = saved / "epoch-000003" / name
    aside = path.rename(saved.parent / "aside")
    path.symlink_to(path.name)
    with pytest.raises(OSError, match="symbolic links"):
        Small(saved).resume()
    path.unlink()
    aside.rename(path)
    assert Small(saved).resume() == 3


@pytest.mark.refuses("security: pickle for a checkpoint")
@pytest.mark.parametrize("name", FILES)
def test_a_pickle_in_place_of_a_file_is_not_unpickled(saved: Path, name: str, tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"
    (saved / "epoch-000003" / name).write_bytes(pickle.dumps(Trap(mark)))
    assert Small(saved).resume() == 2
    assert not mark.exists()


@pytest.mark.refuses("security: pickle for a checkpoint")
def test_metadata_without_a_checksum_are_not_unpickled(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, newest = tmp_path / "unpickled", saved / "epoch-000003"
    (newest / ".metadata").write_bytes(pickle.dumps(Trap(mark)))
    written = json.loads((newest / "training.json").read_text(encoding="utf-8"))
    del written["sha256"][".metadata"]
    (newest / "training.json").write_text(json.dumps(written), encoding="utf-8")
    assert Small(saved).resume() == 2
    assert not mark.exists()
    assert f"not used: {newest} is damaged (.metadata)" in capsys.readouterr().out


@pytest.mark.fault(19)
def test_a_checkpoint_that_finds_no_room_leaves_those_before_as_they_were(saved: Path) -> None:
    training = Small(saved)
    training.resume()
    with largest_file(512), pytest.raises(CheckpointException):
        training.train(4)
    assert Small(saved).resume() == 3
    training.rows.pop()
    training.train(4)
    assert Small(saved).resume() == 4
