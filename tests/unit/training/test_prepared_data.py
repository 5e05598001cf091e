"""Data are prepared once, in any published format, and read back whole or, if damaged, not at all.

What protects what: a published file its sha256; an archive the sums of its own format; a prepared file,
data or weights, the sha256 in its header, and a checkpoint its own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from _pytest.mark import ParameterSet
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests.data_files import (
    Trap,
    idx,
    write_cifar10,
    write_mnist,
)
from tests.machine import largest_file
from tests.reliability.thoroughness import times

from scalewise.builtin.data.datasets import DatasetError, load, read, write
from scalewise.builtin.data.decoders import decode_cifar, decode_mnist
from scalewise.builtin.data.fetch import FILES, PublishedFile
from scalewise.builtin.data.preparation import check, prepare, prepare_weights
from scalewise.plan.catalog.datasets import DATASETS, DatasetFacts, dataset_facts

refuses = pytest.mark.refuses

Arrays = dict[str, NDArray[Any]]
Content = dict[str, NDArray[np.generic]]
Reader = Callable[[], Content]


def sound() -> Arrays:
    """40 images to train on and 20 to test on, of 5 classes."""
    arrays: Arrays = {}
    for split, count in (("train", 40), ("test", 20)):
        arrays[f"{split}_images"] = np.zeros((count, 3, 6, 5), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count, dtype=np.int64) % 5
    return arrays


def with_label(name: str, label: int) -> Arrays:
    arrays = sound()
    arrays[name][0] = label
    return arrays


def test_the_digits_are_what_the_catalogue_promises_and_no_image_is_in_two_splits(tmp_path: Path) -> None:
    assert FILES.keys() - {"resnet18"} == DATASETS.keys() - {"digits"}
    digits = tmp_path / "new" / "folders" / "dataset.safetensors"
    facts = prepare("digits", digits)
    assert facts == DATASETS["digits"]
    data = load(digits)
    shape = (facts.channels, facts.height, facts.width)
    assert data.train_images.shape == (facts.train_samples, *shape)
    assert data.test_images.shape == (facts.test_samples, *shape)
    assert data.train_images.dtype == data.test_images.dtype == torch.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.classes == 10
    assert int(data.train_images.max()) == 16
    assert set(data.test_labels.tolist()) == set(data.train_labels.tolist()) == set(range(10))
    # scikit-learn's 1,797 images are all different
    assert len(torch.cat([data.train_images, data.test_images]).unique(dim=0)) == 1797
    again = digits.with_name("again.safetensors")
    prepare("digits", again)
    assert again.read_bytes() == digits.read_bytes()


def wrong(kind: str, damaged: Arrays, message: str) -> ParameterSet:
    """A case of data that are refused as the catalogue says; without a kind it does not list them."""
    marks = pytest.mark.refuses(f"data: {kind}") if kind else ()
    return pytest.param(sound() | damaged, message, id=message, marks=marks)


def of(name: str) -> NDArray[Any]:
    return sound()[name]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        wrong("wrong type", {"train_images": of("train_images").astype(float)}, "train_images are float"),
        wrong("wrong type", {"test_labels": of("test_labels").astype(float)}, "test_labels are float64"),
        wrong("wrong shape", {"train_images": of("train_images")[:, 0]}, r"shape \[40, 6, 5\]"),
        wrong("wrong shape", {"train_labels": of("train_labels")[:-1]}, r"shape \[39\], not 40 integers"),
        wrong("", {"test_images": of("test_images")[:0]}, "at least one sample"),
        wrong(
            "", {"test_images": of("test_images")[:, :, :, :4]}, r"\[3, 6, 5\] each, test_images \[3, 6, 4\]"
        ),
        wrong("labels out of range", with_label("train_labels", -1), "train_labels go down to -1"),
        wrong("labels out of range", with_label("test_labels", 5), "go up to 5, but training has 5 classes"),
        # no list as long as the largest label is made to find that out
        wrong("labels out of range", with_label("train_labels", 2**62), f"train_labels go up to {2**62}"),
        wrong("empty class", with_label("train_labels", 6), "go up to 6.* class 5 has none"),
        wrong("empty class", {"train_labels": np.zeros(40, np.int64)}, "go up to 0.* class 1 has none"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused_by_name_and_value(
    damaged: Arrays, message: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(DatasetError, match=message) as refused:
        check(damaged, "mine")
    record_property("message", str(refused.value))
    assert str(refused.value).startswith("mine: ")


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


def test_images_are_mapped_not_copied_and_a_rank_that_writes_changes_neither_file_nor_other_ranks(
    prepared: Path,
) -> None:
    """Pages of the file itself, which every process of a node has in common."""
    data, other = load(prepared), load(prepared)
    before = prepared.read_bytes()
    # as any reader of safetensors has it; numbers of 8 bytes begin where such may
    stored = load_file(prepared)
    assert stored.keys() == tensors().keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors().items())
    assert int.from_bytes(before[:8], "little") % 8 == 0
    assert int(data.train_images.sum()) > 0  # has them read
    (mapping,) = (
        each
        for each in psutil.Process().memory_maps(grouped=False)
        if each.path == str(prepared) and holds(each.addr, data.train_images.data_ptr())
    )
    assert mapping.rss >= data.train_images.numel()
    assert mapping.anonymous == 0, "none is this process's own"
    data.train_images.zero_()
    assert int(other.train_images.sum()) > 0
    assert prepared.read_bytes() == before


def holds(addresses: str, address: int) -> bool:
    """Return whether an address is within those of a mapping, such as 7f00-7f80."""
    begin, end = (int(each, 16) for each in addresses.split("-"))
    return begin <= address < end


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "out" / "dataset.safetensors"
    said = r"dataset\.safetensors: cannot be written .*Make room"
    with largest_file(10_000), pytest.raises(DatasetError, match=said):
        write(tensors(), path)
    assert list(path.parent.iterdir()) == []


def test_synthetic_images_are_what_their_name_says_and_always_the_same(tmp_path: Path) -> None:
    name = "synthetic-2x5x7-3classes-400samples"
    facts = prepare(name, tmp_path / "a.safetensors")
    prepare(name, tmp_path / "b.safetensors")

    assert facts == DatasetFacts(400, 40, 2, 5, 7) == dataset_facts(name)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    data = load(tmp_path / "a.safetensors")
    assert data.classes == 3
    assert len(data.train_images.unique(dim=0)) == 400


def mnist_files(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in write_mnist(folder, samples=40, test_samples=20)}


def test_a_published_dataset_of_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files that pass for the published ones the catalogue knows the sizes."""
    path = write_cifar10(tmp_path)
    published = PublishedFile(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), str(tmp_path))
    monkeypatch.setitem(FILES, "cifar10", (published,))
    with pytest.raises(DatasetError, match=r"decoded as .*train_samples=200.* catalogue says .*50000"):
        prepare("cifar10", tmp_path / "out", downloads=tmp_path / "downloads")


IMAGES = idx(np.zeros((4, 2, 2), np.uint8))
LABELS = idx(np.array([3, 11, 4], np.uint8))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        pytest.param("images-idx3", IMAGES[:-1], "has 31 bytes", id="cut values"),
        pytest.param("images-idx3", b"\0\0\x08\x01" + IMAGES[4:], "begins with 00000801", id="labels"),
        pytest.param(
            "images-idx3", b"\0\0\x08\x03" + b"\xff" * 12, "begins with 00000803ff", id="absurd sizes"
        ),
        pytest.param(
            *("labels-idx1", LABELS, "record 1 has label 11, not 0 to 9"),
            id="label of no digit",
            marks=refuses("data: labels out of range"),
        ),
    ],
)
def test_an_idx_file_of_another_form_is_named(
    file: str, content: bytes, message: str, tmp_path: Path
) -> None:
    files = mnist_files(tmp_path)
    path = files[f"train-{file}-ubyte.gz"]
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DatasetError, match=message) as refused:
        decode_mnist(files)
    assert str(refused.value).startswith(f"{path}: ")


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


TRAIN = "cifar-100-binary/train.bin"


def hostile(kind: str, entry: tarfile.TarInfo, message: str) -> ParameterSet:
    """A case of an archive with such a member."""
    marks = refuses(f"data: archive with {kind}", "security: hostile archive")
    return pytest.param(entry, message, id=f"{entry.name}, type {entry.type.decode()}", marks=marks)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        hostile("../", member("../../outside"), r"leads out of it, '\.\./\.\./outside'"),
        hostile("../", member("a/../../outside"), "leads out of it"),
        hostile("../", member("/etc/outside"), "leads out of it, '/etc/outside'"),
        hostile("links", member(TRAIN, tarfile.SYMTYPE, "/etc/passwd"), f"a link .* as member '{TRAIN}'"),
        hostile("links", member(TRAIN, tarfile.LNKTYPE, "/etc/passwd"), f"a link .* as member '{TRAIN}'"),
        hostile("devices", member("null", tarfile.CHRTYPE), "a link or a device as member 'null'"),
        hostile("devices", member("pipe", tarfile.FIFOTYPE), "a link or a device as member 'pipe'"),
        pytest.param(member(TRAIN, tarfile.DIRTYPE), f"{TRAIN} is missing", id="folder of that name"),
    ],
)
def test_a_hostile_archive_is_refused_and_writes_nothing(
    entry: tarfile.TarInfo,
    message: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    archive = archive_of(tmp_path / "a.tar.gz", (entry, b""))
    with pytest.raises(DatasetError, match=message) as refused:
        decode_cifar("cifar100", archive)
    record_property("message", str(refused.value).replace(f"{tmp_path}/", ""))
    assert str(refused.value).startswith(f"{archive}: ")
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "has 0 bytes, not a whole number of 3074-byte records", id="empty"),
        pytest.param(bytes(3073), "has 3,073 bytes, not a whole number of", id="of CIFAR-10"),
        pytest.param(
            bytes(3074) + b"\0\x64" + bytes(3072),
            "record 1 has label 100, not 0 to 99",
            id="label",
            marks=refuses("data: labels out of range"),
        ),
    ],
)
def test_records_that_are_not_of_cifar_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    names = ("cifar-100-binary/train.bin", "cifar-100-binary/test.bin")
    archive = archive_of(tmp_path / "a.tar.gz", *((member(name), content) for name in names))
    with pytest.raises(DatasetError, match=rf"a\.tar\.gz: cifar-100-binary/train\.bin.*{message}"):
        decode_cifar("cifar100", archive)


PAGE = b"<!DOCTYPE html><html><body>404</body></html>\n"


@refuses("data: truncated", "data: html for an archive")
@pytest.mark.parametrize("damage", [lambda it: it[:-20], lambda _: PAGE], ids=["cut", "a web page"])
def test_what_cannot_be_unpacked_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    files, archive = mnist_files(tmp_path), write_cifar10(tmp_path)
    images = files["train-images-idx3-ubyte.gz"]
    readers: dict[Path, Reader] = {
        images: lambda: decode_mnist(files),
        archive: lambda: decode_cifar("cifar10", archive),
    }
    for path, decode in readers.items():
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(DatasetError, match=f"{path.name}: cannot be unpacked"):
            decode()
    archive.write_bytes(gzip.compress(PAGE))
    with pytest.raises(DatasetError, match=f"{archive.name}: cannot be unpacked"):
        readers[archive]()


NAME = "resnet18-f37072fd.pth"


@pytest.fixture
def near(tmp_path: Path) -> Path:
    folder = tmp_path / "near"
    folder.mkdir()
    return folder


def prepare_from(near: Path) -> Path:
    """Prepare the file in this folder as if it were the published one."""
    output = near.parent / "out" / "model.safetensors"
    published = PublishedFile(NAME, hashlib.sha256((near / NAME).read_bytes()).hexdigest(), str(near))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FILES, "resnet18", (published,))
        prepare_weights("resnet18", output, downloads=near.parent / "downloads")
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
    [b"<html>404</html>", {"epoch": 3}, torch.zeros(3)],
    ids=["HTML", "names without tensors", "a tensor without a name"],
)
def test_what_holds_no_weights_is_named_and_nothing_is_left(content: object, near: Path) -> None:
    if isinstance(content, bytes):
        (near / NAME).write_bytes(content)
    else:
        torch.save(content, near / NAME)
    with pytest.raises(DatasetError, match=f"{NAME}: does not hold tensors by name.*Delete it"):
        prepare_from(near)
    assert not list(near.parent.glob("out/*"))


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


def of_file(path: Path) -> Content:
    """What ranks would map."""
    data = load(path)
    names = ("train_images", "train_labels", "test_images", "test_labels")
    return {name: getattr(data, name).numpy().copy() for name in names}


@pytest.mark.refuses("data: truncated", "data: pickle")
def test_a_prepared_file_that_is_damaged_is_never_trained_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    images = tensors(samples=12, pixels=5)
    plain, path = tmp_path / "plain.safetensors", tmp_path / "dataset.safetensors"
    save_file(images, plain)
    write(images, path)
    sound, expected = path.read_bytes(), of_file(path)
    others = (pickle.dumps(images), plain.read_bytes())
    number, refused = times(200, 6000), 0
    for seed in range(number):
        # half of them in the first bytes, where the header is
        begin = sound[: len(sound) if seed % 2 else 400]
        path.write_bytes(damages(begin, others[seed % 2], seed // 2) + sound[len(begin) :])
        found, refusal = None, ""
        try:
            found = of_file(path)
        except DatasetError as error:
            refusal = str(error)
        if found is None:
            assert path.name in refusal, f"{seed}: {refusal}"
            refused += 1
            continue
        for name, array in expected.items():
            assert found[name].dtype == array.dtype, seed
            assert np.array_equal(found[name], array), f"damage {seed} came through in {name}"
    assert refused > number / 2
    record_property("figure", f"prepared data: {number} damages, {refused} refused, the rest without effect")
