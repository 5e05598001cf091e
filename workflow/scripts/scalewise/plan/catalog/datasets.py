"""Sizes of datasets, which the planner needs without loading them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from scalewise.plan.catalog.own_data import (
    FOLDER_FORM,
    DatasetFileError,
    array_shapes,
    class_folders,
    count_images,
)
from scalewise.plan.config.paths import invalid_path, missing, unexpanded

__all__ = ["DatasetFileError"]  # part of what is promised here

MIRROR_VARIABLE = "SCALEWISE_DATA_MIRROR"
"""Carries ``data_mirror`` of the site to what downloads."""

CHECKSUMS_VARIABLE = "SCALEWISE_DATA_CHECKSUMS"
"""Carries ``data_checksums`` of the site to what downloads."""

MAX_BYTES = 64 * 10**9
"""Most that a synthetic dataset may take: beyond it a digit too many is likelier than intent."""

PREPARED_DATASET = "resources/datasets/{dataset}/dataset.safetensors"
"""The file of a dataset that every rank maps, as the rules name it: by ``dataset_id``."""

ARRAYS = ("test_images", "test_labels", "train_images", "train_labels")

_SYNTHETIC = re.compile(
    r"synthetic-(?P<channels>\d{1,9})x(?P<height>\d{1,9})x(?P<width>\d{1,9})"
    r"(?:-(?P<classes>\d{1,9})classes)?(?:-(?P<samples>\d{1,12})samples)?",
    re.ASCII,  # other scripts have digits too, which no folder here is named by
)


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Sizes of an image classification dataset.

    Args:
        train_samples: Images to train on.
        test_samples: Images to evaluate on.
        height: Pixels.
        width: Pixels.
    """

    train_samples: int
    test_samples: int
    channels: int
    height: int
    width: int


DATASETS = {
    "digits": DatasetFacts(1437, 360, 1, 8, 8),
    "mnist": DatasetFacts(60_000, 10_000, 1, 28, 28),
    "cifar10": DatasetFacts(50_000, 10_000, 3, 32, 32),
    "cifar100": DatasetFacts(50_000, 10_000, 3, 32, 32),
}


def is_own_data(dataset: str) -> bool:
    """Whether the name is a path to the user's own data."""
    return "/" in dataset or dataset.endswith((".safetensors", ".npz"))


def is_folder(dataset: str) -> bool:
    """Whether the name is a path to a folder of images."""
    return is_own_data(dataset) and not dataset.endswith((".safetensors", ".npz"))


def is_synthetic(dataset: str) -> bool:
    """Whether random images are to be made."""
    return dataset.startswith("synthetic-") and not is_own_data(dataset)


def dataset_id(dataset: str, image_size: int | None = None) -> str:
    """Folder name of a dataset under ``resources/datasets``; a path becomes its stem and a hash.

    Args:
        dataset: A name or a path.
        image_size: Pixels; a folder of images is stored once for each.
    """
    if not is_own_data(dataset):
        return dataset
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", Path(dataset).stem) or "data"
    name = f"{stem[:40]}-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}"
    return f"{name}-{image_size}" if image_size and is_folder(dataset) else name


def prepared_path(dataset: str, image_size: int | None = None) -> Path:
    """The file that every rank maps."""
    return Path(PREPARED_DATASET.format(dataset=dataset_id(dataset, image_size)))


def own_inputs(dataset: str) -> list[str]:
    """The user's files that a dataset is made of, whose change makes it anew.

    A folder's classes stand for their images: a folder's time changes when a file comes or goes.
    """
    if not is_own_data(dataset):
        return []
    if not is_folder(dataset):
        return [dataset]
    return [str(path) for paths in class_folders(Path(dataset)).values() for path in paths]


def decode_options(dataset: str, image_size: int | None) -> list[str]:
    """Arguments of ``prepare_dataset.py``: a size changes what is stored of a folder, and of nothing else."""
    return ["--image-size", str(image_size)] if image_size and is_folder(dataset) else []


def dataset_facts(dataset: str, image_size: int | None = None) -> DatasetFacts:
    """Sizes of a dataset as the model gets it.

    Args:
        dataset: A name or a path.
        image_size: Height and width that images are brought to; None leaves them as they are.

    Raises:
        KeyError: unknown name.
        DatasetFileError: the user's data is missing or not what is expected.
    """
    if is_own_data(dataset) and (refusal := invalid_path(dataset)):
        raise DatasetFileError(*refusal)
    if is_own_data(dataset) and not Path(dataset).exists() and (refusal := unexpanded(dataset)):
        raise DatasetFileError(*refusal)
    if is_synthetic(dataset):
        facts = synthetic_facts(dataset)[0]
    elif not is_own_data(dataset):
        facts = DATASETS[dataset]
    elif is_folder(dataset):
        return _folder_facts(dataset, image_size)
    else:
        facts = _file_facts(Path(dataset))
    if image_size is None:
        return facts
    return DatasetFacts(facts.train_samples, facts.test_samples, facts.channels, image_size, image_size)


def synthetic_facts(dataset: str) -> tuple[DatasetFacts, int]:
    """Sizes of a synthetic dataset and its number of classes, all of which its name says.

    Raises:
        DatasetFileError: the name does not say them, or they are absurd.
    """
    match = _SYNTHETIC.fullmatch(dataset)
    if match is None:
        raise DatasetFileError(
            f"is {dataset!r}, which does not say a shape",
            "Write channels, height and width, and the rest if you like: "
            "synthetic-3x32x32-100classes-50000samples.",
        )
    channels, height, width = (int(match[part]) for part in ("channels", "height", "width"))
    classes, samples = int(match["classes"] or 10), int(match["samples"] or 10_000)
    if not channels * height * width:
        raise DatasetFileError(f"is {dataset!r}, whose images have no pixels", "Write sizes of 1 and more.")
    if not 2 <= classes <= samples:
        raise DatasetFileError(
            f"is {dataset!r}, with {classes} classes for {samples} samples",
            "Have two classes or more, and a sample of each.",
        )
    tested = max(classes, samples // 10)
    size = (samples + tested) * channels * height * width
    if size > MAX_BYTES:
        raise DatasetFileError(
            f"is {dataset!r}, which would take {size / 1e9:,.0f} GB",
            f"At most {MAX_BYTES / 1e9:.0f} GB are made: write fewer samples or smaller images.",
        )
    return DatasetFacts(samples, tested, channels, height, width), classes


def _folder_facts(dataset: str, image_size: int | None) -> DatasetFacts:
    folder = Path(dataset)
    if not folder.is_dir():
        what = "which does not exist" if not folder.is_symlink() else missing(dataset)
        what = "which is a file of an unknown kind" if folder.exists() else what
        raise DatasetFileError(
            f"is {str(folder)!r}, {what}",
            "Give a folder of images, or an .npz or .safetensors file, from the folder snakemake runs in. "
            + FOLDER_FORM,
        )
    if image_size is None:
        raise DatasetFileError(
            f"is {str(folder)!r}, a folder of images, and image_size is not set",
            "Set image_size: its images are brought to that height and width, 224 for example.",
        )
    try:
        train, test = count_images(folder, prepared_path(dataset, image_size))
    except OSError as error:
        raise DatasetFileError(
            f"is {str(folder)!r}, which cannot be read ({error.strerror}: {error.filename})",
            "Make it readable for yourself.",
        ) from error
    return DatasetFacts(train, test, 3, image_size, image_size)


def _file_facts(path: Path) -> DatasetFacts:
    shapes = array_shapes(path)
    kind = "array" if path.suffix == ".npz" else "tensor"
    if missing := sorted(set(ARRAYS) - shapes.keys()):
        raise DatasetFileError(
            f"is {str(path)!r}, which has no {kind} named {', '.join(missing)}",
            f"Store {', '.join(ARRAYS)}.",
        )
    for split in ("train", "test"):
        images, labels = shapes[f"{split}_images"], shapes[f"{split}_labels"]
        if images[0] != "U8" or len(images[1]) != 4:
            raise DatasetFileError(
                f"is {str(path)!r}, whose {split}_images are {images[0]} of shape {images[1]}",
                "Store uint8 of shape [samples, channels, height, width].",
            )
        if len(labels[1]) != 1 or labels[1][0] != images[1][0]:
            raise DatasetFileError(
                f"is {str(path)!r}, which has {images[1][0]} {split}_images but "
                f"{split}_labels of shape {labels[1]}",
                "Store one label an image.",
            )
    count, channels, height, width = shapes["train_images"][1]
    tested = shapes["test_images"][1]
    if tested[1:] != [channels, height, width]:
        raise DatasetFileError(
            f"is {str(path)!r}, whose test_images are {tested[1:]} but whose train_images are "
            f"{[channels, height, width]}",
            "Give both splits one image shape.",
        )
    return DatasetFacts(count, tested[0], channels, height, width)
