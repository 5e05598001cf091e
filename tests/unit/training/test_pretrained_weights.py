"""Published weights come through whole and without their pickle."""

from __future__ import annotations

import errno
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.data_files import write_checksums
from tests.small_disk import needs_small_disk, on_small_disk

from scalewise.training.data.datasets import DatasetError
from scalewise.training.data.fetch import Mirror, read_checksums
from scalewise.training.data.pretrained import prepare_weights
from scalewise.training.data.weights_file import write_weights

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

    stored = load_file(prepare_from(near))

    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[name], value) for name, value in state.items())


class _Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.mkdir, (self.path,)  # type: ignore[return-value]


@pytest.mark.refuses("security: pickle for weights")
def test_a_program_in_place_of_weights_is_refused_and_not_executed(near: Path) -> None:
    sprung = near / "sprung"
    torch.save({"fc.bias": _Trap(sprung)}, near / NAME)
    with pytest.raises(DatasetError, match=rf"{NAME}: cannot be read"):
        prepare_from(near)
    assert not sprung.exists()
    torch.load(near / NAME, weights_only=False)
    assert sprung.exists(), "the trap would have worked"


@pytest.mark.parametrize(
    "content", [b"", b"<html>404</html>", pickle.dumps({"a": 1})], ids=["empty", "HTML", "pickle"]
)
def test_what_holds_no_weights_is_named_and_nothing_is_left(content: bytes, near: Path) -> None:
    (near / NAME).write_bytes(content)
    with pytest.raises(DatasetError, match=f"{NAME}: (cannot be read|holds no tensors)"):
        prepare_from(near)
    assert not list(near.parent.glob("out/*"))


SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"

WRITE = """
import sys, torch
from pathlib import Path
from scalewise.training.data.weights_file import write_weights
try:
    write_weights({"a": torch.zeros(1_000_000)}, Path(sys.argv[1]))
except OSError as error:
    print(error.errno, error.strerror, error.filename, sep="; ")
"""


@needs_small_disk
@pytest.mark.fault(19)
@pytest.mark.slow
def test_weights_on_a_full_disk_are_the_systems_error_with_the_path(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    command = [sys.executable, "-c", WRITE, str(disk / "weights")]
    ended = subprocess.run(
        on_small_disk(disk, "1m", command),
        env={"PYTHONPATH": str(SCRIPTS), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == f"{errno.ENOSPC}; No space left on device; {disk / 'weights'}\n", ended.stderr


@pytest.mark.parametrize("hindrance", ["no folder", "a limit on file sizes"])
def test_weights_that_cannot_be_written_are_the_systems_error_with_the_path(
    hindrance: str, tmp_path: Path
) -> None:
    path = tmp_path / ("missing" if hindrance == "no folder" else ".") / "weights"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hindrance != "no folder":
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match=re.escape(str(path))) as refused:
            write_weights({"a": torch.zeros(1_000_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused.value.errno == (errno.ENOENT if hindrance == "no folder" else errno.EFBIG)


def test_names_without_tensors_are_refused(near: Path) -> None:
    torch.save({"epoch": 3}, near / NAME)
    with pytest.raises(DatasetError, match="holds no tensors by name"):
        prepare_from(near)
