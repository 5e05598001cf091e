"""Numbers of samples in batches of any form, and checksums that show whether two ranks got the same one."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch

MOST_ENTRIES = 8
"""Entries of a list in a batch that are read: more have seldom another size."""

MOST_LEVELS = 4
"""Lists, dictionaries and objects within each other that are read."""

CHECKED_VALUES = 4096
"""Most values of a tensor in a checksum."""


def samples_in(batch: Any, batch_size: int | None) -> int | None:
    """Return the number of samples in a batch of a DataLoader; None if unknown.

    Args:
        batch: Tensors in lists, dictionaries and objects.
        batch_size: Most samples, as the loader has it; None if it has none. A dimension of this size, or
            the largest below it, is that of the samples.
    """
    if type(batch) in (list, tuple) and batch:  # the usual forms first: this is done for every batch
        first = batch[0]
    elif type(batch) is dict and batch:
        first = next(iter(batch.values()))
    else:
        first = batch
    if type(first) is torch.Tensor:
        shape = first.shape
        if shape and shape[0] == batch_size:
            return batch_size
    found = list(_first_dimensions(batch))
    if not found:
        return len(batch) if batch_size is not None and isinstance(batch, (list, tuple)) else None
    if batch_size is None:
        return _usual(found)
    return max((size for size in found if size <= batch_size), default=None)


def samples_of_inputs(inputs: Any) -> int | None:
    """Return the number of samples in a module's inputs: the first dimension of most tensors."""
    found = list(_first_dimensions(inputs))
    return _usual(found) if found else None


def checksum(batch: Any) -> int | None:
    """Return a checksum of values from all parts of all tensors in a batch; None without tensors."""
    sums = [
        repr(values[:: -(-len(values) // CHECKED_VALUES)].tolist())
        for tensor in _tensors(batch)
        for each in _parts(tensor)
        if len(values := each.detach().flatten())
    ]
    return zlib.crc32("".join(sums).encode()) if sums else None


def _parts(tensor: Any) -> list[torch.Tensor]:
    """Return a tensor, or the tensors of a batch of graphs, if their values can be read."""
    entries = tensor.to_dict().values() if hasattr(tensor, "num_graphs") else [tensor]
    return [each for each in entries if isinstance(each, torch.Tensor) and each.layout == torch.strided]


def _usual(sizes: list[int]) -> int:
    return max(dict.fromkeys(sizes), key=sizes.count)


def _first_dimensions(value: Any) -> Iterator[int]:
    for each in _tensors(value):
        if hasattr(each, "num_graphs"):
            yield each.num_graphs
        elif len(each.shape):
            yield int(each.shape[0])


def _tensors(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield all that has a shape and a dtype, at any place in a batch; a batch of graphs as it is."""
    if hasattr(value, "num_graphs") or (
        hasattr(value, "dtype") and getattr(value, "shape", None) is not None
    ):
        yield value
    elif depth < MOST_LEVELS and not isinstance(value, (str, bytes)):
        for each in _entries(value)[:MOST_ENTRIES]:
            yield from _tensors(each, depth + 1)


def _entries(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value[:MOST_ENTRIES])
    values = getattr(value, "values", None)
    if callable(values):
        return list(values())
    return list(vars(value).values()) if hasattr(value, "__dict__") else []
