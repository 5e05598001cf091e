"""A prepared file is proved before it is trained on, and ranks of a node share its pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from scalewise.training.data import storage
from scalewise.training.data.datasets import DatasetError, load, prepare
from scalewise.training.data.storage import ORDER, DamagedFileError, verify

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"


def arrays(samples: int = 64, pixels: int = 64) -> dict[str, NDArray[np.generic]]:
    generator = np.random.default_rng(0)
    return {
        "train_images": generator.integers(0, 256, (samples, 3, pixels, pixels), dtype=np.uint8),
        "train_labels": np.arange(samples, dtype=np.int64) % 5,
        "test_images": generator.integers(0, 256, (7, 3, pixels, pixels), dtype=np.uint8),
        "test_labels": np.arange(7, dtype=np.int64) % 5,
    }


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    path = tmp_path / "dataset.safetensors"
    storage.write(arrays(), path)
    return path


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def data_begins(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_any_reader_of_safetensors_reads_the_file(prepared: Path) -> None:
    stored = load_file(prepared)
    assert {name: np.array_equal(stored[name], array) for name, array in arrays().items()} == dict.fromkeys(
        stored, True
    )
    assert set(stored) == set(ORDER)
    assert data_begins(prepared) % 8 == 0, "numbers of 8 bytes begin where such may"


@pytest.mark.parametrize("place", [0, 100, 600, 700, 20_000, -1])
def test_one_flipped_bit_is_found(place: int, prepared: Path) -> None:
    load(prepared)
    flip(prepared, place if place < 0 else data_begins(prepared) + place)
    with pytest.raises(
        DatasetError, match=r"differs from what was stored.*Delete it and give the same command again"
    ):
        load(prepared)


def test_of_a_large_file_the_labels_are_always_proved_and_images_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PIECE_BYTES", 4096)
    path = tmp_path / "dataset.safetensors"
    storage.write(arrays(), path)
    begins = data_begins(path)
    flip(path, begins + 8)
    for _ in range(5):
        with pytest.raises(DamagedFileError, match="from byte"):
            verify(path, at_most_bytes=4096)
    flip(path, begins + 8)

    flip(path, begins + 300_000)
    found = 0
    for _ in range(60):
        try:
            verify(path, at_most_bytes=40 * 4096)  # of 213 pieces
        except DamagedFileError:
            found += 1
    assert 0 < found < 60


def test_the_header_stays_small_for_a_large_dataset() -> None:
    total = 10**12
    assert total / storage._piece_bytes(total) <= storage.MAX_PIECES
    assert storage._piece_bytes(1) == storage._piece_bytes(8 << 30) == storage.PIECE_BYTES
    assert storage._piece_bytes((8 << 30) + 1) == 2 * storage.PIECE_BYTES


def test_a_file_without_sums_is_not_trained_on(tmp_path: Path) -> None:
    save_file(arrays(), tmp_path / "plain.safetensors")
    with pytest.raises(DatasetError, match=r"plain\.safetensors is damaged \(it has no sums of its pieces"):
        load(tmp_path / "plain.safetensors")


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
        [sys.executable, "-c", "import sys, scalewise.training.data.datasets; print(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "torch" in loaded
    assert {"requests", "filelock", "PIL", "sklearn"} & set(loaded) == set()


def test_labels_are_numbers_that_a_loss_takes(prepared: Path) -> None:
    data = load(prepared)
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.classes == 5


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.write_text("a file where the folder should be")
    with pytest.raises(DatasetError, match=r"dataset\.safetensors: cannot be written .*Make room"):
        prepare("digits", folder / "dataset.safetensors")
