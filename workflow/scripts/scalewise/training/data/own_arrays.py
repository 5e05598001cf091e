"""The user's own data, and images made at random, as arrays that need not fit into memory."""

from __future__ import annotations

import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.torch import load_file

from scalewise.plan.catalog.datasets import ARRAYS, synthetic_facts
from scalewise.plan.catalog.own_data import class_folders, class_images
from scalewise.training.data.decoders import FormatError
from scalewise.training.data.storage import Arrays, scratch_array

IMAGE_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")
"""Formats that are read, whatever a file's name says, and no others: some of Pillow's start programs."""

MAX_THREADS = 8
"""Most threads that decode images: a login node has other users."""

REPORT_SECONDS = 20
SYNTHETIC_CHUNK_BYTES = 64 << 20


def read_safetensors(path: Path) -> Arrays:
    """Map the four arrays of a file.

    Raises:
        FormatError: The file is damaged or lacks an array.
    """
    try:
        tensors = load_file(path)
        return {name: tensors[name].numpy() for name in ARRAYS}
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{path}: cannot be read ({error}). Write it with safetensors.numpy.save_file."
        ) from error
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path}: has no array {error}. Store {', '.join(ARRAYS)}.") from error


def read_npz(path: Path) -> Arrays:
    """Read the four arrays of a file; arrays of objects are pickles, and refused.

    Raises:
        FormatError: The file is damaged or lacks an array.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _read_npy(archive, name) for name in ARRAYS}
    except KeyError as error:
        raise FormatError(f"{path}: {error.args[0]}. Store {', '.join(ARRAYS)}.") from error
    except (
        *(ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error),
        *(RuntimeError, NotImplementedError, TypeError, AttributeError),
    ) as error:
        raise FormatError(f"{path}: cannot be read ({error}). Write it with numpy.savez.") from error


def _read_npy(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """Read an array to the end of its member: its sum is not looked at before."""
    if f"{name}.npy" not in archive.namelist():
        raise KeyError(f"{name} is not in it")
    with archive.open(f"{name}.npy") as member:
        array: NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{name} goes on after its {array.size:,} values")
    return array


def read_folder(folder: Path, image_size: int, scratch: Path, notify: Callable[[str], None]) -> Arrays:
    """Read a folder of images by class, in RGB, with classes numbered as torchvision's ImageFolder does.

    The shorter side is brought to the size wanted, and the middle is cut out.

    Args:
        folder: Holds train/ and test/ or val/.
        image_size: Height and width of the result, in pixels.
        scratch: A folder for arrays on disk.
        notify: Gets a line of progress now and then.

    Raises:
        FormatError: An image cannot be read.
        DatasetFileError: The folder has another form.
    """
    arrays: Arrays = {}
    for split, classes in class_folders(folder).items():
        listed = [(path, label) for label, held in enumerate(classes) for path in class_images(held)]
        images = scratch_array(scratch, f"{split}_images", (len(listed), 3, image_size, image_size))
        paths = [path for path, _ in listed]
        # decoding and resizing let go of the interpreter's lock
        with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
            for index, image in enumerate(_in_step(pool, paths, image_size, notify, split)):
                images[index] = image
        arrays[f"{split}_images"] = images
        arrays[f"{split}_labels"] = np.array([label for _, label in listed], np.int64)
    return arrays


def _in_step(
    pool: ThreadPoolExecutor, paths: list[Path], image_size: int, notify: Callable[[str], None], split: str
) -> Iterator[NDArray[np.uint8]]:
    """Yield images in order, few ahead of their use: a map over all would hold all."""
    reported = time.monotonic()
    for begin in range(0, len(paths), 256):
        yield from pool.map(lambda path: read_image(path, image_size), paths[begin : begin + 256])
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            notify(f"{split}: {min(begin + 256, len(paths)):,} of {len(paths):,} images")


def read_image(path: Path, image_size: int) -> NDArray[np.uint8]:
    """Read an image: RGB, shorter side resized, middle cut out; [3, image_size, image_size].

    Raises:
        FormatError: The file is damaged, no image, or absurdly large.
    """
    try:
        with Image.open(path, formats=IMAGE_FORMATS) as opened:
            # of PNG it proves the sums, which decoding passes over; nothing else has any
            opened.verify()
        with Image.open(path, formats=IMAGE_FORMATS) as opened:
            image = opened.convert("RGB")
    except UnidentifiedImageError as error:
        raise FormatError(
            f"{path}: is no image in {', '.join(IMAGE_FORMATS)}. Remove or convert it."
        ) from error
    # Pillow raises what its decoders raise
    except (OSError, ValueError, SyntaxError, IndexError, EOFError, Image.DecompressionBombError) as error:
        raise FormatError(f"{path}: cannot be read ({error}). Remove or replace it.") from error
    width, height = image.size
    if width <= height:
        size = (image_size, image_size * height // width)
    else:
        size = (image_size * width // height, image_size)
    left, top = round((size[0] - image_size) / 2), round((size[1] - image_size) / 2)
    resized = image.resize(size, Image.Resampling.BILINEAR)
    square = resized.crop((left, top, left + image_size, top + image_size))
    return np.asarray(square, np.uint8).transpose(2, 0, 1)


def make_synthetic(dataset: str, scratch: Path) -> Arrays:
    """Make random images with a faint pattern for each class, so that a loss can fall; always the same.

    Args:
        dataset: A name that says shape, classes and samples.
        scratch: A folder for arrays on disk.
    """
    facts, classes = synthetic_facts(dataset)
    shape = (facts.channels, facts.height, facts.width)
    generator = np.random.default_rng(0)
    # a gain of each class on each pixel: half the range is noise, and up to half is the class's
    patterns = generator.integers(0, 128, (min(classes, 1024), *shape), dtype=np.uint8)
    step = max(SYNTHETIC_CHUNK_BYTES // patterns[0].nbytes, 1)
    arrays: Arrays = {}
    for split, samples in (("train", facts.train_samples), ("test", facts.test_samples)):
        labels = np.arange(samples, dtype=np.int64) % classes
        images = scratch_array(scratch, f"{split}_images", (samples, *shape))
        for begin in range(0, samples, step):
            chunk = images[begin : begin + step]
            noise = generator.integers(0, 128, chunk.shape, dtype=np.uint8)
            np.add(noise, patterns[labels[begin : begin + step] % len(patterns)], out=chunk)
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images, labels
    return arrays
