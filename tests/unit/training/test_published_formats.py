"""Published files come through whole; what pretends to be them is refused by name, and no pickle runs."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from tests.data_files import (
    Trap,
    class_images,
    idx,
    write_checksums,
    write_cifar10,
    write_cifar100,
    write_mirror,
    write_mnist,
)

from scalewise.builtin.data.datasets import DatasetError, load, read
from scalewise.builtin.data.decoders import decode_cifar, decode_mnist
from scalewise.builtin.data.fetch import FILES, Mirror, PublishedFile, read_checksums
from scalewise.builtin.data.preparation import prepare, prepare_weights

refuses = pytest.mark.refuses


def mnist_files(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in write_mnist(folder, samples=40, test_samples=20)}


def test_mnist_comes_through_unchanged(tmp_path: Path) -> None:
    arrays = decode_mnist(mnist_files(tmp_path))
    for split, count, seed in (("train", 40, 0), ("test", 20, 1)):
        images, labels = class_images(count, 10, (28, 28), seed)
        assert np.array_equal(arrays[f"{split}_images"], images[:, None])
        assert np.array_equal(arrays[f"{split}_labels"], labels)


@pytest.mark.parametrize(("dataset", "write"), [("cifar10", write_cifar10), ("cifar100", write_cifar100)])
def test_cifar_comes_through_unchanged(dataset: str, write: Callable[..., Path], tmp_path: Path) -> None:
    """The five training members in order, whatever order they have in the archive; fine labels."""
    arrays = decode_cifar(dataset, write(tmp_path, samples=33, test_samples=20, classes=10))
    for split, count, seed in (("train", 33, 0), ("test", 20, 1)):
        images, labels = class_images(count, 10, (3072,), seed)
        assert np.array_equal(arrays[f"{split}_images"], images.reshape(-1, 3, 32, 32))
        assert np.array_equal(arrays[f"{split}_labels"], labels)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "cifar100"])
def test_a_site_with_small_files_of_its_own_trains_on_them(dataset: str, tmp_path: Path) -> None:
    near = write_mirror(tmp_path / "near", samples=120, test_samples=100)
    mirror = Mirror(str(near), read_checksums(near / "SHA256SUMS"))
    prepared = tmp_path / "dataset.safetensors"

    facts = prepare(dataset, prepared, downloads=tmp_path / "downloads", mirror=mirror)

    assert (facts.train_samples, facts.test_samples) == (120, 100)
    data = load(prepared)
    assert data.classes == (100 if dataset == "cifar100" else 10)
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64, "as a loss takes them"


def test_a_published_dataset_of_another_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files that pass for the published ones the catalogue knows the sizes."""
    path = write_cifar10(tmp_path)
    published = PublishedFile(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), (str(tmp_path),))
    monkeypatch.setitem(FILES, "cifar10", (published,))
    with pytest.raises(DatasetError, match=r"decoded as .*train_samples=200.* catalogue says .*50000"):
        prepare("cifar10", tmp_path / "out", downloads=tmp_path / "downloads")


def packed(content: bytes) -> bytes:
    return gzip.compress(content)


IMAGES = idx(np.zeros((4, 2, 2), np.uint8))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(packed(IMAGES[:-1]), "has 31 bytes", id="cut values"),
        pytest.param(packed(IMAGES + b"1"), "has 33 bytes", id="too long"),
        pytest.param(packed(b"\0\0\x08\x01" + IMAGES[4:]), "begins with 00000801", id="labels"),
        pytest.param(packed(b"\0\0\x0d\x03" + IMAGES[4:]), "begins with 00000d03", id="fractions"),
        pytest.param(packed(b"\0\0\x08\x03" + b"\xff" * 12), "begins with 00000803ff", id="absurd sizes"),
    ],
)
def test_an_idx_file_of_another_form_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    files = mnist_files(tmp_path)
    path = files["train-images-idx3-ubyte.gz"]
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message) as refused:
        decode_mnist(files)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.refuses("data: labels out of range")
def test_a_label_that_no_digit_has_is_named_with_its_place(tmp_path: Path) -> None:
    files = mnist_files(tmp_path)
    labels = np.arange(40, dtype=np.uint8) % 10
    labels[7] = 11
    files["train-labels-idx1-ubyte.gz"].write_bytes(packed(idx(labels)))
    with pytest.raises(DatasetError, match=r"train-labels-idx1-ubyte\.gz: record 7 has label 11, not 0 to 9"):
        decode_mnist(files)


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
