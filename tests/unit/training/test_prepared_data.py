"""Data are prepared once, in any published format, and read back whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
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
from tests.small_disk import largest_file
from torch import nn

from scalewise.builtin.data.datasets import DatasetError, load, read, write
from scalewise.builtin.data.decoders import decode_cifar, decode_mnist
from scalewise.builtin.data.fetch import FILES, Mirror, PublishedFile, read_checksums
from scalewise.builtin.data.preparation import check, prepare, prepare_weights
from scalewise.plan.catalog.datasets import DATASETS, DatasetFacts, dataset_facts

Arrays = dict[str, NDArray[Any]]


def sound() -> Arrays:
    """40 images to train on and 20 to test on, of 5 classes."""
    generator = np.random.default_rng(0)

    def images(count: int) -> NDArray[np.uint8]:
        return generator.integers(0, 256, (count, 3, 6, 5), dtype=np.uint8)

    return {
        "train_images": images(40),
        "train_labels": np.arange(40, dtype=np.int64) % 5,
        "test_images": images(20),
        "test_labels": np.arange(20, dtype=np.int64) % 5,
    }


def with_label(name: str, label: int) -> Arrays:
    arrays = sound()
    arrays[name][0] = label
    return arrays


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "new" / "folders" / "dataset.safetensors"
    facts = prepare("digits", path)
    assert facts == DATASETS["digits"]
    return path


def test_every_dataset_of_the_catalogue_is_published_or_shipped() -> None:
    assert FILES.keys() - {"resnet18"} == DATASETS.keys() - {"digits"}


def test_the_digits_are_what_the_catalogue_promises(digits: Path) -> None:
    data = load(digits)
    facts = DATASETS["digits"]
    shape = (facts.channels, facts.height, facts.width)
    assert data.train_images.shape == (facts.train_samples, *shape)
    assert data.test_images.shape == (facts.test_samples, *shape)
    assert data.train_images.dtype == data.test_images.dtype == torch.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.classes == 10
    assert int(data.train_images.max()) == 16


def test_every_digit_is_in_both_splits_and_no_image_is_in_two(digits: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in load_file(digits).items()}
    assert set(arrays["test_labels"].tolist()) == set(arrays["train_labels"].tolist()) == set(range(10))
    # scikit-learn's 1,797 images are all different
    both = np.concatenate([arrays["train_images"], arrays["test_images"]]).reshape(1797, -1)
    assert len(np.unique(both, axis=0)) == 1797


def test_preparing_twice_gives_the_same_file(digits: Path, tmp_path: Path) -> None:
    prepare("digits", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == digits.read_bytes()


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
        wrong("wrong type", {"test_images": of("test_images").astype(np.int8)}, "test_images are int8"),
        wrong("wrong type", {"test_labels": of("test_labels").astype(float)}, "test_labels are float64"),
        wrong("wrong shape", {"train_images": of("train_images")[:, 0]}, r"shape \[40, 6, 5\]"),
        wrong("wrong shape", {"train_labels": of("train_labels")[:-1]}, r"shape \[39\], not 40 integers"),
        wrong("", {"test_images": of("test_images")[:0]}, "at least one sample"),
        wrong("", {"test_labels": of("test_labels").reshape(-1, 1)}, "not 20 integers"),
        wrong(
            "", {"test_images": of("test_images")[:, :, :, :4]}, r"\[3, 6, 5\] each, test_images \[3, 6, 4\]"
        ),
        wrong("labels out of range", with_label("train_labels", -1), "train_labels go down to -1"),
        wrong("labels out of range", with_label("test_labels", -3), "test_labels go down to -3"),
        wrong("labels out of range", with_label("test_labels", 5), "go up to 5, but training has 5 classes"),
        # no list as long as the largest label is made to find that out
        wrong("labels out of range", with_label("train_labels", 2**62), f"train_labels go up to {2**62}"),
        wrong("labels out of range", with_label("test_labels", 2**62), f"test_labels go up to {2**62}"),
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


def data_begins(path: Path) -> int:
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_any_reader_of_safetensors_reads_the_file(prepared: Path) -> None:
    stored = load_file(prepared)
    assert stored.keys() == tensors().keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors().items())
    assert data_begins(prepared) % 8 == 0, "numbers of 8 bytes begin where such may"


def test_a_file_without_a_checksum_is_not_trained_on(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "plain.safetensors")
    with pytest.raises(DatasetError, match=r"plain\.safetensors is damaged \(it differs"):
        load(tmp_path / "plain.safetensors")


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
    limit = 10_000
    if hindrance == "a file in the way":
        path.parent.write_text("a file where the folder should be")
        limit = 10_000_000
    with (
        largest_file(limit),
        pytest.raises(DatasetError, match=r"dataset\.safetensors: cannot be written .*Make room"),
    ):
        write(tensors(), path)
    assert not path.parent.is_dir() or list(path.parent.iterdir()) == []


def test_synthetic_images_are_what_their_name_says_and_always_the_same(tmp_path: Path) -> None:
    name = "synthetic-2x5x7-3classes-400samples"
    facts = prepare(name, tmp_path / "a.safetensors")
    prepare(name, tmp_path / "b.safetensors")

    assert facts == DatasetFacts(400, 40, 2, 5, 7) == dataset_facts(name)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    data = load(tmp_path / "a.safetensors")
    assert data.classes == 3
    assert len(data.train_images.unique(dim=0)) == 400


def test_a_model_learns_from_synthetic_images(tmp_path: Path) -> None:
    prepare("synthetic-1x6x6-4classes-400samples", tmp_path / "a.safetensors")
    data = load(tmp_path / "a.safetensors")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    optimizer = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(data.train_images / 255), data.train_labels).backward()
        optimizer.step()
    found = network(data.test_images / 255).argmax(1)
    assert (found == data.test_labels).float().mean() > 0.9


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
