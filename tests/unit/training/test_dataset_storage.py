"""A prepared file is compared with its checksum before it is used, and ranks of a node share its pages."""

from __future__ import annotations

import os
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.data_files import Trap
from tests.small_disk import needs_small_disk, on_small_disk

from scalewise.builtin.data.datasets import DatasetError, load, write

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"


def tensors(samples: int = 64, pixels: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def images(count: int) -> torch.Tensor:
        return torch.randint(256, (count, 3, pixels, pixels), generator=generator, dtype=torch.uint8)

    return {
        "train_images": images(samples),
        "train_labels": torch.arange(samples) % 5,
        "test_images": images(7),
        "test_labels": torch.arange(7) % 5,
    }


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    path = tmp_path / "dataset.safetensors"
    write(tensors(), path)
    return path


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def data_begins(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_any_reader_of_safetensors_reads_the_file(prepared: Path) -> None:
    stored = load_file(prepared)
    assert stored.keys() == tensors().keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors().items())
    assert data_begins(prepared) % 8 == 0, "numbers of 8 bytes begin where such may"


@pytest.mark.parametrize("place", [0, 100, 600, 700, 20_000, -1])
def test_one_flipped_bit_is_found(place: int, prepared: Path) -> None:
    load(prepared)
    flip(prepared, place if place < 0 else data_begins(prepared) + place)
    with pytest.raises(
        DatasetError, match=r"differs from what was stored.*Delete it and give the same command again"
    ):
        load(prepared)


def test_a_file_without_a_checksum_is_not_trained_on(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "plain.safetensors")
    with pytest.raises(DatasetError, match=r"plain\.safetensors is damaged \(it differs"):
        load(tmp_path / "plain.safetensors")


@pytest.mark.refuses("data: truncated")
@pytest.mark.parametrize("kept", [0, 4, 60, -1], ids=["empty", "cut length", "cut header", "cut data"])
def test_a_cut_file_is_refused_by_name_with_the_cure(kept: int, prepared: Path) -> None:
    prepared.write_bytes(prepared.read_bytes()[:kept])
    with pytest.raises(DatasetError, match=r"dataset\.safetensors is damaged .*Delete it and give the same"):
        load(prepared)


def test_a_file_that_has_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"file .*gone\.safetensors is missing\. Give the same command"):
        load(tmp_path / "gone.safetensors")


@pytest.mark.refuses("data: pickle", "security: pickle for data")
def test_a_pickle_in_place_of_data_is_refused_and_not_executed(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path = tmp_path / "dataset.safetensors"
    path.write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(DatasetError, match="is damaged"):
        load(path)
    assert list(tmp_path.iterdir()) == [path]
    pickle.loads(path.read_bytes())
    assert sprung.exists(), "the trap would have worked"


def test_images_are_mapped_and_not_copied(prepared: Path) -> None:
    """Pages of the file itself, which every process of a node has in common."""
    data = load(prepared)
    assert int(data.train_images.sum()) > 0  # has them read
    address = data.train_images.data_ptr()
    mapping = mapping_of(address)
    assert str(prepared) in mapping[0]
    sizes = {key: int(kb) for line in mapping for key, kb in re.findall(r"^(\w+): +(\d+) kB", line)}
    assert sizes["Rss"] * 1024 >= data.train_images.numel()
    assert sizes["Anonymous"] == 0, "none is this process's own"


def test_a_rank_that_writes_changes_neither_the_file_nor_other_ranks(prepared: Path) -> None:
    first, second = load(prepared), load(prepared)
    before = prepared.read_bytes()
    first.train_images.zero_()
    assert int(second.train_images.sum()) > 0
    assert prepared.read_bytes() == before


def mapping_of(address: int) -> list[str]:
    """The lines of /proc/self/smaps on the mapping that holds an address."""
    path = Path("/proc/self/smaps")
    if not path.exists():
        pytest.skip("needs /proc/self/smaps, which Linux has")
    lines: list[str] = []
    for line in path.read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            if lines:
                break
            if int(span[1], 16) <= address < int(span[2], 16):
                lines = [line]
        elif lines:
            lines.append(line)
    return lines


@pytest.mark.slow
def test_no_rank_needs_what_downloads_and_decodes() -> None:
    """A container of a site need not have it, and no rank pays for its import."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, scalewise.builtin.data.datasets; print(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "torch" in loaded
    assert {"requests", "filelock", "PIL", "sklearn"} & set(loaded) == set()


@pytest.mark.parametrize("hindrance", ["a file in the way", "a limit on file sizes"])
def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(hindrance: str, tmp_path: Path) -> None:
    path = tmp_path / "out" / "dataset.safetensors"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hindrance == "a file in the way":
        path.parent.write_text("a file where the folder should be")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(DatasetError, match=r"dataset\.safetensors: cannot be written .*Make room"):
            write(tensors(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not path.parent.is_dir() or list(path.parent.iterdir()) == []


WRITE = """
import sys, torch
from pathlib import Path
from typing import Any
from scalewise.builtin.data.datasets import write
write({"a": torch.zeros(1_000_000)}, Path(sys.argv[1]))
"""


@needs_small_disk
@pytest.mark.fault(19)
@pytest.mark.slow
def test_a_full_disk_is_named_with_the_path(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    ended = subprocess.run(
        on_small_disk(disk, "1m", [sys.executable, "-c", WRITE, str(disk / "weights")]),
        env={"PYTHONPATH": str(SCRIPTS), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"weights: cannot be written \(.*No space left on device.*\)\. Make room", ended.stderr)
