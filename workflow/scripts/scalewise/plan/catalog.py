"""What the planner must know of datasets and models, without loading either.

The training room builds them; a test holds the two lists together.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

MAX_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Sizes of an image classification dataset.

    Args:
        train_samples: images to train on.
        test_samples: images to evaluate on.
        channels: channels of an image.
        height: pixels.
        width: pixels.
    """

    train_samples: int
    test_samples: int
    channels: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model asks of its batches.

    Args:
        batch_norm: normalises over the batch, so a batch of one image per device cannot train.
        min_pixels: least height and width of an image.
    """

    batch_norm: bool
    min_pixels: int


DATASETS = {"digits": DatasetFacts(1437, 360, 1, 8, 8)}
MODELS = {"digits_cnn": ModelFacts(True, 4), "linear": ModelFacts(False, 1)}


class DatasetFileError(ValueError):
    """A dataset file that cannot be used; ``what`` and ``cure`` are for the user."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}. {cure}")
        self.what = what
        self.cure = cure


def is_file_dataset(dataset: str) -> bool:
    """Whether the name is a path to the user's own data."""
    return "/" in dataset or dataset.endswith(".safetensors")


def dataset_id(dataset: str) -> str:
    """Folder name of a dataset under ``resources/datasets``; a path becomes its stem and a hash."""
    if not is_file_dataset(dataset):
        return dataset
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", Path(dataset).stem) or "data"
    return f"{stem[:40]}-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}"


def dataset_facts(dataset: str) -> DatasetFacts:
    """Sizes of a known dataset, or those in the header of the user's own file.

    Raises:
        KeyError: unknown name.
        DatasetFileError: the file is missing or not what is expected.
    """
    if not is_file_dataset(dataset):
        return DATASETS[dataset]
    shapes = _safetensors_shapes(Path(dataset))
    expected = {"train_images", "train_labels", "test_images", "test_labels"}
    if missing := sorted(expected - shapes.keys()):
        raise DatasetFileError(
            f"is {dataset!r}, which has no tensor named {', '.join(missing)}",
            f"Store {', '.join(sorted(expected))}.",
        )
    for split in ("train", "test"):
        images, labels = shapes[f"{split}_images"], shapes[f"{split}_labels"]
        if images[0] != "U8" or len(images[1]) != 4:
            raise DatasetFileError(
                f"is {dataset!r}, whose {split}_images are {images[0]} of shape {images[1]}",
                "Store uint8 of shape [samples, channels, height, width].",
            )
        if len(labels[1]) != 1 or labels[1][0] != images[1][0]:
            raise DatasetFileError(
                f"is {dataset!r}, which has {images[1][0]} {split}_images but "
                f"{split}_labels of shape {labels[1]}",
                "Store one label an image.",
            )
    count, channels, height, width = shapes["train_images"][1]
    tested = shapes["test_images"][1]
    if tested[1:] != [channels, height, width]:
        raise DatasetFileError(
            f"is {dataset!r}, whose test_images are {tested[1:]} but whose train_images are "
            f"{[channels, height, width]}",
            "Give both splits one image shape.",
        )
    return DatasetFacts(count, tested[0], channels, height, width)


def _safetensors_shapes(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Name -> (type, shape) from the header alone.

    The format is 8 bytes of little-endian length, then JSON
    (https://huggingface.co/docs/safetensors); reading it here keeps numpy out of every job's parse.
    """
    try:
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
    except OSError as error:
        raise DatasetFileError(
            f"is {str(path)!r}, which cannot be read ({error.strerror})",
            "Give the path of a .safetensors file, from the folder snakemake runs in.",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetFileError(
            f"is {str(path)!r}, which is not a safetensors file ({error})",
            "Convert the data with safetensors.numpy.save_file.",
        ) from error
