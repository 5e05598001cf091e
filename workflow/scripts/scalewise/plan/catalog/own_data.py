"""Sizes of the user's own data, from headers and file names alone: no image is read to plan a study."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import IO

from scalewise.plan.config.errors import RefusedValueError
from scalewise.plan.config.paths import invalid_path

MAX_HEADER_BYTES = 1 << 20
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Ends of file names that torchvision's ImageFolder takes for images."""

FOLDER_FORM = "Make train/ and test/ (or val/) in it, each with a folder of images for every class."

Shapes = dict[str, tuple[str, list[int]]]
"""Name -> (type, shape)."""


class DatasetFileError(RefusedValueError):
    """Data that cannot be used."""


def array_shapes(path: Path) -> Shapes:
    """Name -> (type, shape) of the arrays of an .npz or .safetensors file; uint8 is U8 in both.

    Raises:
        DatasetFileError: the file is missing or not what its name says.
    """
    npz = path.suffix == ".npz"
    try:
        return _npz_shapes(path) if npz else _safetensors_shapes(path)
    except OSError as error:
        raise DatasetFileError(
            f"is {str(path)!r}, which cannot be read ({error.strerror or error})",
            f"Give the path of a{'n' if npz else ''} {path.suffix} file, from the folder snakemake runs in.",
        ) from error
    except (
        *(ValueError, KeyError, TypeError, AttributeError, RecursionError, SyntaxError, MemoryError),
        *(zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError),
    ) as error:
        writer = "numpy.savez" if npz else "safetensors.numpy.save_file"
        raise DatasetFileError(
            f"is {str(path)!r}, which is not a{'n' if npz else ''} {path.suffix[1:]} file ({error})",
            f"Convert the data with {writer}.",
        ) from error


def _safetensors_shapes(path: Path) -> Shapes:
    """The format is 8 bytes of little-endian length, then JSON (https://huggingface.co/docs/safetensors).

    Reading it here keeps numpy out of every job's parse.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            raise ValueError(f"its header would be {length} bytes long")
        header = json.loads(file.read(length))
    return {
        name: (str(entry["dtype"]), [int(size) for size in entry["shape"]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _npz_shapes(path: Path) -> Shapes:
    with zipfile.ZipFile(path) as archive:
        shapes = {}
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as file:
                    shapes[member.removesuffix(".npy")] = _npy_shape(file)
    return shapes


def _npy_shape(file: IO[bytes]) -> tuple[str, list[int]]:
    """The format: a mark, two bytes of version, the header's length, and a dictionary as Python writes it."""
    if file.read(6) != b"\x93NUMPY":
        raise ValueError("a member is no array of numpy's")
    length_bytes = 2 if file.read(2)[:1] == b"\x01" else 4
    length = int.from_bytes(file.read(length_bytes), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header would be {length} bytes long")
    # literals alone: nothing of the file is executed
    header = ast.literal_eval(file.read(length).decode("latin-1").strip())
    kind = str(header["descr"])
    if "O" in kind:
        raise ValueError("an array of Python objects, which is a pickle")
    return "U8" if kind == "|u1" else kind, [int(size) for size in header["shape"]]


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Split (train, test) -> folders of its classes in the order of their names, as ImageFolder numbers them.

    Raises:
        DatasetFileError: the folder does not hold train/ and test/ or val/, with the same classes, or a class
            has a name that cannot be used.
    """
    splits = {"train": folder / "train", "test": folder / "test"}
    if not splits["test"].is_dir():
        splits["test"] = folder / "val"
    for split, path in splits.items():
        if not path.is_dir():
            missing = "train/" if split == "train" else "test/ or val/"
            raise DatasetFileError(f"is {str(folder)!r}, which has no folder {missing}", FOLDER_FORM)
    found = {split: _visible(path) for split, path in splits.items()}
    for path in (path for paths in found.values() for path in paths):
        if refusal := invalid_path(str(path)):
            what, fix = refusal
            raise DatasetFileError(f"is {str(folder)!r}, where a class {what}", fix)
    names = {split: {path.name for path in paths} for split, paths in found.items()}
    if odd := sorted(names["train"] ^ names["test"]):
        here, there = ("train", splits["test"].name)
        if odd[0] in names["test"]:
            here, there = there, here
        raise DatasetFileError(
            f"is {str(folder)!r}, which has a class {odd[0]!r} in {here}/ but not in {there}/",
            "Give both the same classes.",
        )
    return found


def class_images(folder: Path) -> list[Path]:
    """The images of one class, in the order of their names; other files are left aside, as ImageFolder does.

    Raises:
        DatasetFileError: there is none, or a folder within.
    """
    images = []
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in visible:
        if entry.name.lower().endswith(IMAGE_SUFFIXES):
            images.append(entry.name)
        elif entry.is_dir():
            raise DatasetFileError(
                f"is {str(folder.parents[1])!r}, which has a folder {entry.name!r} within its class "
                f"{folder.name!r}",
                "Put the images of a class directly into its folder.",
            )
    if not images:
        raise DatasetFileError(
            f"is {str(folder.parents[1])!r}, whose {folder.parent.name}/{folder.name}/ has no image",
            f"Images end in {', '.join(IMAGE_SUFFIXES)}.",
        )
    return [folder / name for name in sorted(images)]


def count_images(folder: Path, prepared: Path) -> tuple[int, int]:
    """Training and test images of a folder.

    It is counted at every parse of the workflow, so what has been prepared since the last change
    of a class folder is asked first: its header is one read, a million names are not.

    Args:
        folder: The user's.
        prepared: The file that would be made of it.

    Raises:
        DatasetFileError: the folder cannot be used.
    """
    folders = class_folders(folder)
    changed = tuple((path, path.stat().st_mtime_ns) for paths in folders.values() for path in paths)
    try:
        if prepared.stat().st_mtime_ns > max((stamp for _, stamp in changed), default=0):
            shapes = array_shapes(prepared)
            return shapes["train_images"][1][0], shapes["test_images"][1][0]
    except (OSError, DatasetFileError, LookupError):
        pass  # not prepared yet, or damaged: the rule makes it anew
    train = len(folders["train"])
    return _count(changed[:train]), _count(changed[train:])


@functools.lru_cache(maxsize=64)
def _count(folders: tuple[tuple[Path, int], ...]) -> int:
    """Kept while no folder changes: every point of a sweep asks."""
    return sum(len(class_images(folder)) for folder, _ in folders)


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not re.match(r"\.", path.name))
