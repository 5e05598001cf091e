"""Published weights come through whole and without their pickle."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from tests.data_files import Trap, write_checksums

from scalewise.builtin.data.datasets import DatasetError, read
from scalewise.builtin.data.fetch import Mirror, read_checksums
from scalewise.builtin.data.preparation import prepare_weights

NAME = "resnet18-f37072fd.pth"


@pytest.fixture
def near(tmp_path: Path) -> Path:
    folder = tmp_path / "near"
    folder.mkdir()
    return folder


def prepare_from(near: Path) -> Path:
    output = near.parent / "out" / "model.safetensors"
    mirror = Mirror(str(near), read_checksums(write_checksums(near)))
    prepare_weights("resnet18", output, downloads=near.parent / "downloads", mirror=mirror)
    return output


@pytest.mark.parametrize("zipped", [True, False], ids=["today's format", "the format before it"])
def test_weights_come_through_by_their_names(zipped: bool, near: Path) -> None:
    shared = torch.arange(6.0)
    state = {
        "conv1.weight": shared.reshape(2, 3).T,
        "fc.bias": shared,
        "bn1.num_batches_tracked": torch.tensor(7),
    }
    torch.save(state, near / NAME, _use_new_zipfile_serialization=zipped)

    stored = read(prepare_from(near))

    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[name], value) for name, value in state.items())


@pytest.mark.refuses("security: pickle for weights")
def test_a_program_in_place_of_weights_is_refused_and_not_executed(near: Path) -> None:
    sprung = near / "sprung"
    torch.save({"fc.bias": Trap(sprung)}, near / NAME)
    with pytest.raises(DatasetError, match=f"{NAME}: does not hold tensors by name, and nothing else"):
        prepare_from(near)
    assert not sprung.exists()
    torch.load(near / NAME, weights_only=False)
    assert sprung.exists(), "the trap would have worked"


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>404</html>", pickle.dumps({"a": 1}), {"epoch": 3}, torch.zeros(3)],
    ids=["empty", "HTML", "pickle", "names without tensors", "a tensor without a name"],
)
def test_what_holds_no_weights_is_named_and_nothing_is_left(content: object, near: Path) -> None:
    if isinstance(content, bytes):
        (near / NAME).write_bytes(content)
    else:
        torch.save(content, near / NAME)
    with pytest.raises(DatasetError, match=f"{NAME}: does not hold tensors by name.*Delete it"):
        prepare_from(near)
    assert not list(near.parent.glob("out/*"))
