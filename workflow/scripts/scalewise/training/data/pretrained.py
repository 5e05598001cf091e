"""Published weights, fetched where there is an internet and stored as ranks read them: without pickle."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import torch

from scalewise.training.data.datasets import DOWNLOADS
from scalewise.training.data.fetch import FILES, Mirror, Notify, fetch
from scalewise.training.data.weights_file import WeightsError, write_weights


def prepare_weights(
    model: str,
    destination: Path,
    *,
    downloads: Path = DOWNLOADS,
    mirror: Mirror | None = None,
    notify: Notify = print,
) -> int:
    """Fetch the weights torchvision publishes for a model, and store them by their names.

    Args:
        model: A name such as resnet18.
        destination: The safetensors file to write.
        downloads: Holds what is fetched: downloads/{model}/{file}.
        mirror: The site's own source of downloads.
        notify: Gets a line of progress now and then.

    Returns:
        Number of tensors.

    Raises:
        DatasetError: The file cannot be had.
        WeightsError: The file holds no weights.
    """
    (file,) = FILES[model]
    path = fetch(file, downloads / model, mirror, notify)
    try:
        # the published format is a pickle; this reads tensors and refuses all else in it
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        # torch's own words for what is no tensor advise to read it all the same
        foreign = isinstance(error, pickle.UnpicklingError)
        reason = "not tensors alone" if foreign else str(error).partition("\n")[0] or type(error).__name__
        raise WeightsError(
            f"{path}: cannot be read ({reason}). Delete it and run snakemake again."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise WeightsError(f"{path}: holds no tensors by name. Delete it and run snakemake again.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        write_weights(state, temporary)
        temporary.replace(destination)
    finally:
        temporary.unlink(missing_ok=True)
    return len(state)
