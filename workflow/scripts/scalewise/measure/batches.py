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
    if batch_size not in found and (listed := _listed(batch, batch_size, found)) is not None:
        return listed
    return max((size for size in found if size <= batch_size), default=None)


def _listed(batch: Any, batch_size: int, sizes: list[int]) -> int | None:
    """Return the length of a batch that is a list of samples, or has one for each column; None of another.

    Images of several sizes, boxes and graphs come so: the first dimensions of their tensors are no samples.

    Args:
        batch: The batch.
        batch_size: Most samples.
        sizes: First dimensions of its tensors.
    """
    columns = list(batch.values()) if isinstance(batch, dict) else batch
    if not isinstance(columns, (list, tuple)):
        return None
    if all(isinstance(each, (list, tuple)) for each in columns):
        lengths = {len(each) for each in columns}
        # the last batch is smaller; tensors of one size are columns of their own
        if len(lengths) == 1 and (batch_size in lengths or len(set(sizes)) > 1):
            return lengths.pop()
    elif columns is batch and all(isinstance(each, dict) for each in batch):
        return len(batch)
    return batch_size if len(batch) == batch_size > 2 and columns is batch else None


def samples_of_inputs(inputs: Any) -> int | None:
    """Return the number of samples in a module's inputs: the first dimension of most tensors."""
    found = list(_first_dimensions(inputs))
    return _usual(found) if found else None


def shape_of(batch: Any) -> tuple[int, ...]:
    """Return the shape of the first tensor in a batch; empty without one."""
    return next((tuple(getattr(each, "shape", ())) for each in _tensors(batch)), ())


def checksum(batch: Any) -> int | None:
    """Return a checksum of values from all parts of all tensors in a batch; None if they cannot be read."""
    try:
        sums = [
            repr(values[:: -(-len(values) // CHECKED_VALUES)].tolist())
            for tensor in _tensors(batch)
            for each in _parts(tensor)
            if len(values := each.detach().as_subclass(torch.Tensor).flatten())
        ]
    except Exception:  # noqa: BLE001  # of a tensor of the user's: what else is known of the batch stays
        return None
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
