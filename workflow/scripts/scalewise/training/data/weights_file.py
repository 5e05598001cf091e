"""Pretrained weights as ranks read them: a safetensors file with a sum of its tensors, and no pickle."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from scalewise.training.data.storage import DamagedFileError, DatasetError

SUM = "tensors_sha256"
"""Name of the sum among the file's metadata."""


class WeightsError(DatasetError):
    """Pretrained weights that cannot be used; the message names the file, the tensors and the fix."""


def write_weights(state: Mapping[str, torch.Tensor], path: Path) -> None:
    """Store tensors by their names; those that share memory are stored each for itself.

    Raises:
        OSError: The file cannot be written.
    """
    tensors = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    try:
        save_file(tensors, path, {SUM: _sum(tensors)})
    except SafetensorError as error:
        # the number stands in its words alone: "... No space left on device (os error 28)"
        number = re.search(r"\(os error (\d+)\)", str(error))
        code = int(number[1]) if number is not None else errno.EIO
        said = os.strerror(code) if number is not None else str(error)
        raise OSError(code, said, str(path)) from error


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read what ``write_weights`` wrote.

    Raises:
        DamagedFileError: The file is something else.
        OSError: The file cannot be read.
    """
    try:
        with safe_open(path, "pt") as file:
            expected = (file.metadata() or {}).get(SUM)
            tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedFileError(str(error)) from error
    if expected is None:
        raise DamagedFileError("it has no sum of its tensors")
    if _sum(tensors) != expected:
        raise DamagedFileError("its tensors are not those that were stored")
    return tensors


def _sum(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
