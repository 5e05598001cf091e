"""Data damaged at random, in every format: an error that says what to do, or the data as they were.

What protects what: a published file its sha256; an archive the sums of its own format; a prepared file,
data or weights, the sha256 in its header, and a checkpoint its own.
"""

from __future__ import annotations

import gzip
import hashlib
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tests.data_files import write_checksums, write_cifar10, write_mnist
from tests.reliability.thoroughness import times
from tests.small_runs import definition

from scalewise.builtin.checkpoints import storage as checkpoint_storage
from scalewise.builtin.data.datasets import DatasetError, load, read, write
from scalewise.builtin.data.decoders import decode_cifar, decode_mnist
from scalewise.builtin.data.fetch import Mirror, read_checksums
from scalewise.builtin.data.preparation import prepare
from scalewise.execution.checkpoint_files import MANIFEST, CheckpointError, CheckpointFolder

RecordProperty = Callable[[str, object], None]
Content = dict[str, NDArray[np.generic]]
Tensors = dict[str, torch.Tensor]
Reader = Callable[[], Content]

PAGE = b"<!DOCTYPE html><html><body>404</body></html>\n"
REFUSALS = (DatasetError, CheckpointError)


def damages(content: bytes, other: bytes, seed: int) -> bytes:
    """The bytes of a file after one damage; the first seven are of one kind each, then any of them."""
    chance = random.Random(seed)
    place = chance.randrange(len(content))
    kind = seed if seed < 7 else chance.randrange(4)
    match kind:
        case 0:
            return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
        case 1:
            return content[:place]
        case 2:
            return content + chance.randbytes(chance.randrange(1, 40))
        case 3:
            return content[:place] + chance.randbytes(1) + content[place + 1 :]
        case 4:
            return b""
        case 5:
            return PAGE
        case _:
            return other


def near_the_start(content: bytes, other: bytes, seed: int) -> bytes:
    """As ``damages``, in the first 400 bytes, where headers are."""
    return damages(content[:400], other, seed) + content[400:]


def survive(
    path: Path,
    read: Reader,
    others: bytes,
    record_property: RecordProperty,
    what: str,
    most: int = 0,
    harm: Callable[[bytes, bytes, int], bytes] = damages,
) -> Counter[str]:
    """Damage a file again and again, and see that what is read is the original or nothing.

    Args:
        path: of the sound file, which is put back at the end.
        read: what a study would do with it.
        others: bytes of another sound file of the kind.
        record_property: of pytest.
        what: for the table.
        most: damages; by default, few or many.
        harm: the bytes after a damage.
    """
    sound, expected = path.read_bytes(), read()
    ends: Counter[str] = Counter()
    for seed in range(most or times(quick=60, thorough=1000)):
        path.write_bytes(harm(sound, others, seed))
        found, refusal = attempted(read)
        ends["as it was" if found is not None else "refused"] += 1
        if found is None:
            assert path.name in refusal or path.parent.name in refusal, f"{seed}: {refusal}"
            continue
        assert found.keys() == expected.keys(), seed
        for name, array in expected.items():
            assert found[name].dtype == array.dtype, seed
            assert np.array_equal(found[name], array), f"damage {seed} came through in {name}"
    path.write_bytes(sound)
    assert ends["refused"] > ends.total() / 2
    record_property(
        "figure", f"{what}: {ends.total()} damages, {ends['refused']} refused, the rest without effect"
    )
    return ends


def attempted(read: Reader) -> tuple[Content | None, str]:
    """What is read, or what is said instead."""
    try:
        return read(), ""
    except REFUSALS as error:
        return None, str(error)


def of_file(path: Path) -> Content:
    """What ranks would map."""
    data = load(path)
    names = ("train_images", "train_labels", "test_images", "test_labels")
    return {name: getattr(data, name).numpy().copy() for name in names}


@pytest.mark.fault(21)
@pytest.mark.refuses("data: wrong checksum", "data: truncated", "data: html for an archive")
def test_a_published_file_that_is_damaged_on_its_mirror_or_at_home_is_never_prepared(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    near, downloads = tmp_path / "near", tmp_path / "downloads"
    near.mkdir()
    write_mnist(near, samples=100, test_samples=100)
    mirror = Mirror(str(near), read_checksums(write_checksums(near)))
    path = sorted(near.glob("*.gz"))[0]
    prepared = tmp_path / "dataset.safetensors"

    def harm(content: bytes, other: bytes, seed: int) -> bytes:
        # half of them in the time that gzip notes, which changes no value: the file's own sum alone knows
        return damages(content, other, seed) if seed % 2 else content[:4] + bytes([seed + 1]) + content[5:]

    def fetched() -> Content:
        shutil.rmtree(downloads, ignore_errors=True)
        return at_home()

    def at_home() -> Content:
        prepared.unlink(missing_ok=True)
        prepare("mnist", prepared, downloads=downloads, mirror=mirror, notify=lambda _: None)
        return of_file(prepared)

    other = gzip.compress(b"other")
    ends = survive(path, fetched, other, record_property, "a file on a mirror", 14, harm)
    assert ends["as it was"] == 0
    fetched()
    placed = downloads / "mnist" / path.name
    ends = survive(placed, at_home, other, record_property, "a file at home", 14, harm)
    assert ends["as it was"] == 0


@pytest.mark.refuses("data: truncated", "data: html for an archive")
@pytest.mark.parametrize("kind", ["images", "labels"])
def test_a_damaged_idx_file_never_decodes_to_other_values(
    kind: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    """Also where a site wrote its sums after the damage: the format's own hold."""
    files = {path.name: path for path in write_mnist(tmp_path, samples=20, test_samples=10)}
    path = next(path for name, path in files.items() if name.startswith("train") and kind in name)
    other = next(path for name, path in files.items() if name.startswith("train") and kind not in name)

    def decoded() -> Content:
        return decode_mnist(files)

    # the two files of a split in each other's place
    survive(path, decoded, other.read_bytes(), record_property, f"idx {kind}")
    survive(path, decoded, PAGE, record_property, f"header of idx {kind}", harm=near_the_start)


@pytest.mark.refuses("data: truncated", "data: html for an archive")
def test_a_damaged_archive_never_decodes_to_other_values(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    path = write_cifar10(tmp_path, samples=10, test_samples=5, classes=5)
    other = gzip.compress(b"other")
    survive(path, lambda: decode_cifar("cifar10", path), other, record_property, "archive of CIFAR-10")


@pytest.fixture
def images() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "train_images": torch.randint(256, (12, 1, 6, 5), generator=generator, dtype=torch.uint8),
        "train_labels": torch.arange(12) % 2,
        "test_images": torch.randint(256, (4, 1, 6, 5), generator=generator, dtype=torch.uint8),
        "test_labels": torch.arange(4) % 2,
    }


@pytest.mark.refuses("data: truncated", "data: pickle")
def test_a_prepared_file_that_is_damaged_is_never_trained_on(
    images: Tensors, tmp_path: Path, record_property: RecordProperty
) -> None:
    plain, path = tmp_path / "plain.safetensors", tmp_path / "dataset.safetensors"
    save_file(images, plain)
    write(images, path)
    other = pickle.dumps(images)
    survive(path, lambda: of_file(path), other, record_property, "prepared data", times(200, 3000))
    survive(
        *(path, lambda: of_file(path), plain.read_bytes(), record_property, "header of prepared data"),
        times(200, 3000),
        near_the_start,
    )


@pytest.mark.parametrize(("was", "becomes"), [("U8", "I8"), ("I64", "U64"), ("[12,1,6,5]", "[12,1,5,6]")])
def test_a_prepared_file_whose_header_was_edited_is_refused(
    was: str, becomes: str, images: Tensors, tmp_path: Path
) -> None:
    path = tmp_path / "dataset.safetensors"
    write(images, path)
    path.write_bytes(path.read_bytes().replace(was.encode(), becomes.encode()))
    with pytest.raises(
        DatasetError,
        match=r"it differs from what was stored.*Delete it and give the same",
    ):
        load(path)


@pytest.mark.refuses("data: truncated", "security: pickle for weights")
def test_weights_that_are_damaged_after_they_were_stored_are_never_loaded(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {"fc.weight": torch.randn(4, 3, generator=generator), "bn.count": torch.tensor(7)}
    path = tmp_path / "model.safetensors"
    write(state, path)

    def stored() -> Content:
        return {name: tensor.numpy().copy() for name, tensor in read(path).items()}

    survive(path, stored, pickle.dumps(state), record_property, "pretrained weights", times(200, 3000))


@pytest.mark.fault(20)
@pytest.mark.refuses("security: pickle for a checkpoint")
@pytest.mark.parametrize("name", ["rank0.pt", MANIFEST])
def test_a_checkpoint_that_is_damaged_is_never_gone_on_from(
    name: str, tmp_path: Path, record_property: RecordProperty
) -> None:
    """Not where the same file of the checkpoint before is put in its place, either."""
    folder = CheckpointFolder(tmp_path / "checkpoints", definition(learning_rate=0.1), {"dataset": "1"})
    for step in (10, 20):
        part = folder.begin(step)
        state = {"weight": torch.full((5, 4), float(step)), "step": step}
        folder.commit(part, step, step / 10, {"rank0.pt": checkpoint_storage.save(part / "rank0.pt", state)})
    older, newest = sorted(folder.folder.iterdir())

    def resumed() -> Content:
        refused: list[str] = []
        found = next(folder.valid(refused))
        if found.folder != newest:
            raise CheckpointError(*refused)
        state = checkpoint_storage.load(found.check("rank0.pt"), torch.device("cpu"))
        numbers = np.array([state["step"], found.manifest.step, found.manifest.elapsed_seconds])
        return {"weight": state["weight"].numpy(), "numbers": numbers}

    other = (older / name).read_bytes()
    survive(newest / name, resumed, other, record_property, f"{name} of a checkpoint", times(150, 2000))


def test_a_damage_is_one(tmp_path: Path) -> None:
    """Of each kind: what the tests here write is other than it was."""
    content = hashlib.sha256(b"content").digest() * 20
    assert all(damages(content, b"other", seed) != content for seed in range(7) if seed != 3)
    assert sum(damages(content, b"other", seed) == content for seed in range(7, 400)) < 10
